"""`recurrent`: what Kimi Delta Attention takes by the number of tokens, beside softmax and latent attention.

Its cost a token should not depend on how many there are, nor that of one more token on how many came before.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from attention_residuals.bench.problems import Verdict
from attention_residuals.bench.progress import Work
from attention_residuals.bench.request import Request, Shape
from attention_residuals.bench.results import Column, Table, Value
from attention_residuals.bench.timing import Quartiles, Task, time_in_turns
from attention_residuals.inference import GrowingCache
from attention_residuals.nn import (
    Attention,
    Context,
    KimiDeltaAttention,
    LatentAttention,
    TokenMixer,
    delta_chunked,
    delta_recurrent,
    rotation,
)

Build = Callable[[int, int], TokenMixer]
"""A token mixer of so many features and heads."""

MIXERS: dict[str, Build] = {
    "delta": lambda width, heads: KimiDeltaAttention(width, heads, width // heads),
    "softmax": lambda width, heads: Attention(width, heads, heads, width // heads),
    "latent": lambda width, heads: LatentAttention(width, heads, width // 4, width // heads, 0, width // heads),
}
PHASES = ("forward", "both", "decode")
CHECKED_TOKENS = 512
"""Of the longest text, so many at most are checked: the oracle goes token by token."""


def run_recurrent(request: Request, work: Work) -> list[Table]:
    """A forward, one with its backward, and one more token, each after several numbers of tokens."""
    work.title("recurrent: token mixers by the number of tokens")
    with work.stage("checking against the oracle", 1):
        verdict = judge(max(tokens for tokens, _, _ in request.shapes))
        work.advance()
    names = [name for name in MIXERS if request.wants(name) and (name != "delta" or verdict.right)]
    cases = [(name, shape) for name in names for shape in request.shapes]
    tasks = {(*case, phase): task for case in cases for phase, task in _tasks(*case).items()}
    seconds = time_in_turns(tasks, request.budget, work)
    rows = [_row(name, shape, {phase: seconds[name, shape, phase] for phase in PHASES}) for name, shape in cases]
    columns = [
        Column("mixer", "token mixer"),
        *[Column(key, key, ",d") for key in ("tokens", "width", "heads")],
        Column("forward", "forward, µs a token", ",.1f", factor=1e6),
        Column("both", "with backward, µs a token", ",.1f", factor=1e6),
        Column("decode", "one more token, ms", ",.3f", factor=1e3),
        Column("decode_low", "its quartiles, ms", ",.3f", factor=1e3, until="decode_high"),
    ]
    facts: dict[str, Value] = {"chunks against the recurrence": verdict.words, "error": verdict.error}
    return [Table("recurrent: token mixers by the number of tokens, float32", columns, rows, facts)]


def judge(tokens: int) -> Verdict:
    """The delta rule over chunks beside the recurrence, both in float32, relative to the largest output."""
    generator = torch.Generator().manual_seed(0)
    tokens = min(tokens, CHECKED_TOKENS)
    query, key, value, decay = torch.randn(4, 1, tokens, 2, 16, generator=generator)
    beta = torch.rand(1, tokens, 2, generator=generator)
    arguments = (query / 4, key / key.norm(dim=-1, keepdim=True), value, -decay.exp(), beta)
    expected, _ = delta_recurrent(*(x.double() for x in arguments))
    error = ((delta_chunked(*arguments)[0] - expected).abs().max() / expected.abs().max()).item()
    right = error < 64 * torch.finfo(torch.float32).eps
    return Verdict(right, error, "right" if right else f"wrong: off by {error:.1e} of the largest")


def _tasks(name: str, shape: Shape) -> dict[str, Task]:
    tokens, width, heads = shape
    torch.manual_seed(0)
    mixer, x = MIXERS[name](width, heads), torch.randn(1, tokens, width)
    turned = width // heads if name == "softmax" else None
    return {
        "forward": torch.no_grad()(partial(mixer, x)),
        "both": lambda: mixer(x).sum().backward(),
        "decode": _one_more(mixer, x, turned),
    }


def _one_more(mixer: TokenMixer, x: Tensor, turned: int | None) -> Task:
    """One token after those of `x`. A cache of keys grows by one each time, which is little beside what it has."""
    cache = GrowingCache(2 * x.shape[1])

    def context(begin: int, end: int) -> Context:
        turn = None if turned is None else rotation(torch.arange(begin, end), turned, 1e4, x.dtype)
        return Context(turn, cache=cache)

    with torch.no_grad():
        mixer(x, context(0, x.shape[1]))
    after, one = context(x.shape[1], x.shape[1] + 1), x[:, :1]
    return torch.no_grad()(lambda: mixer(one, after))


def _row(name: str, shape: Shape, seconds: dict[str, list[float]]) -> dict[str, Value]:
    tokens, width, heads = shape
    found = {phase: Quartiles.of(times) for phase, times in seconds.items()}
    decode = found["decode"]
    return {
        "mixer": name,
        "tokens": tokens,
        "width": width,
        "heads": heads,
        "forward": found["forward"].median / tokens,
        "both": found["both"].median / tokens,
        "decode": decode.median,
        "decode_low": decode.low,
        "decode_high": decode.high,
    }
