"""`decode`, `prefill` and `prefill-memory`: cached inference beside the standard residual's."""

import copy
import functools
from collections.abc import Callable, Iterator

import torch
from jaxtyping import Int
from torch import Tensor

from attention_residuals.bench.contest import Contest, Entry
from attention_residuals.bench.networks import (
    MODELS,
    decoder_config,
    reference_logits,
    residual_of,
    vary_depth_weights,
)
from attention_residuals.bench.peaks import peak_bytes
from attention_residuals.bench.problems import Verdict
from attention_residuals.bench.progress import Work
from attention_residuals.bench.request import Request
from attention_residuals.bench.results import Column, Table, Value
from attention_residuals.bench.steps import REFERENCE
from attention_residuals.bench.timing import Task
from attention_residuals.inference import CHUNK_TOKENS, GrowingCache, Prompts, Session
from attention_residuals.models import Decoder, DecoderConfig, build_decoder

PROMPT_TOKENS = 16
"""Before the tokens that `decode` times."""

SLICE_TOKENS = 8
"""Tokens that one model decodes before the next one has its turn."""

JUDGED_LENGTHS = (5, 9)
JUDGED_TOKENS = 4

ALLOWED_ERROR = 1e-5
"""The most a logit in float32 may be off by, as a share of the largest."""

PEAK_CHUNKS = (None, CHUNK_TOKENS)


def run_decode(request: Request, work: Work) -> list[Table]:
    """Tokens one at a time with a cache, behind a short prompt; the models take turns every `SLICE_TOKENS`."""
    tables = []
    for batch, tokens, width, layers, block in request.shapes:
        models = _models(request, width, layers, block)
        prompt = draw_tokens(batch, PROMPT_TOKENS)
        entries = []
        for name, model in models.items():
            begin = functools.partial(decoding, model, prompt, tokens, min(SLICE_TOKENS, tokens))
            entries.append(_entry(name, model, "decode", Slices(begin)))
        title = (
            f"decode: {tokens} tokens in turns of {min(SLICE_TOKENS, tokens)}, batch {batch}, width {width}, "
            f"{layers} layers, Block of {block} sublayers"
        )
        tables += Contest(title, entries, REFERENCE).run(request.budget, work)
    return tables


def run_prefill(request: Request, work: Work) -> list[Table]:
    """A prompt taken in, in chunks as `generate` does it."""
    tables = []
    for batch, tokens, width, layers, block in request.shapes:
        models = _models(request, width, layers, block)
        prompt = draw_tokens(batch, tokens)
        entries = [_entry(name, model, "prefill", _prefill(model, prompt)) for name, model in models.items()]
        title = f"prefill: {tokens} tokens, batch {batch}, width {width}, {layers} layers, Block of {block} sublayers"
        tables += Contest(title, entries, REFERENCE).run(request.budget, work)
    return tables


def run_prefill_memory(request: Request, work: Work) -> list[Table]:
    """Peak of a prefill, at once and in chunks, beside the sources of the depth alone."""
    rows: list[dict[str, Value]] = []
    for tokens, width, layers, block in request.shapes:
        work.title(f"prefill-memory: {tokens} tokens")
        models = _models(request, width, layers, block)
        with work.stage("measuring", len(models) * len(PEAK_CHUNKS)):
            for name, model in models.items():
                for chunk in PEAK_CHUNKS:
                    rows.append(_peak_row(name, model, tokens, chunk))
                    work.advance()
    columns = [
        Column("model", "model"),
        Column("tokens", "tokens", ",d"),
        Column("chunk_tokens", "chunk", ",d"),
        Column("sources", "sources N", "d"),
        Column("state_bytes", "N x chunk x width, MiB", ",.1f", factor=2**-20),
        Column("cache_bytes", "keys and values, MiB", ",.1f", factor=2**-20),
        Column("peak_bytes", "peak, MiB", ",.1f", factor=2**-20),
        Column("beyond_bytes", "peak beyond keys and values, MiB", ",.1f", factor=2**-20),
        Column("status", "status"),
    ]
    return [Table("prefill-memory: peak of one prefill above the weights, float32", columns, rows)]


def _models(request: Request, width: int, layers: int, block: int) -> dict[str, Decoder]:
    models = {}
    for name in MODELS:
        if name == REFERENCE or request.wants(name):
            models[name] = build_decoder(decoder_config(width, layers, residual_of(name, block)), seed=0)
            vary_depth_weights(models[name])
    return models


def _entry(name: str, model: Decoder, phase: str, task: Task) -> Entry:
    return Entry(name, {phase: task}, lambda: judge_session(model), ours=True)


class Slices:
    """A task that is done piece by piece, begun anew when it is over.

    The speed of a machine moves within seconds. Models that take turns every few tokens meet the same speeds, where
    models that take turns after whole decodings do not.
    """

    def __init__(self, begin: Callable[[], Iterator[None]]):
        self._begin = begin
        self._pieces = begin()

    @torch.no_grad()
    def __call__(self) -> None:
        """One piece more."""
        try:
            next(self._pieces)
        except StopIteration:
            self._pieces = self._begin()
            next(self._pieces)


def decoding(model: Decoder, prompt: Int[Tensor, "batch time"], tokens: int, slice_tokens: int) -> Iterator[None]:
    """A decoding from its prompt on, `slice_tokens` tokens a piece; the prompt is a part of the first one."""
    session = Session(model, GrowingCache(reserve_tokens=prompt.shape[1] + tokens))
    logits = session.prefill(unpadded(prompt))
    for done in range(1, tokens + 1):
        logits = session.append(logits.argmax(-1))
        if done % slice_tokens == 0 or done == tokens:
            yield


def _prefill(model: Decoder, prompt: Int[Tensor, "batch time"], chunk_tokens: int | None = CHUNK_TOKENS) -> Task:
    @torch.no_grad()
    def prefill() -> None:
        Session(model, GrowingCache(reserve_tokens=prompt.shape[1])).prefill(unpadded(prompt), chunk_tokens)

    return prefill


def _peak_row(name: str, model: Decoder, tokens: int, chunk_tokens: int | None) -> dict[str, Value]:
    config, verdict = model.config, judge_session(model)
    assert isinstance(config, DecoderConfig)
    row: dict[str, Value] = {"model": name, "tokens": tokens, "width": config.width, "layers": config.layers}
    row |= {"chunk_tokens": chunk_tokens or tokens, "status": verdict.words, "largest_error": verdict.error}
    if not verdict.right:
        return row
    peak = peak_bytes(_prefill(model, draw_tokens(1, tokens), chunk_tokens))
    cache = 4 * 2 * config.layers * config.kv_heads * config.head_dim * tokens
    sources = _sources(model)
    row |= {"sources": sources, "state_bytes": 4 * sources * min(chunk_tokens or tokens, tokens) * config.width}
    row |= {"cache_bytes": cache, "peak_bytes": peak, "beyond_bytes": None if peak is None else peak - cache}
    return row


def _sources(model: Decoder) -> int:
    """Of the output read: tensors `[tokens, width]` that the state of the depth grows to."""
    reads = getattr(model.stream, "reads", None)
    return 1 if reads is None else reads.partition.sources(model.config.sublayers)


def judge_session(model: Decoder) -> Verdict:
    """Compare cached logits of a ragged batch, prefilled in chunks and gone on with, with the formula in float64."""
    return judge_logits(copy.deepcopy(model).double(), Session(model, GrowingCache()))


@torch.no_grad()
def judge_logits(exact: Decoder, session: Session) -> Verdict:
    """The same for a new session of a model, `exact` being the model in float64."""
    lengths = [length + JUDGED_TOKENS for length in JUDGED_LENGTHS]
    texts = [draw_tokens(1, length, seed=length)[0] for length in lengths]
    found = [session.prefill(Prompts.pad([text[:-JUDGED_TOKENS] for text in texts]), chunk_tokens=3)]
    for n in range(-JUDGED_TOKENS, 0):
        found.append(session.append(torch.stack([text[n] for text in texts])))
    worst = 0.0
    for row, text in enumerate(texts):
        wanted = reference_logits(exact, text.unsqueeze(0))[0, -JUDGED_TOKENS - 1 :]
        ours = torch.stack([logits[row] for logits in found]).double()
        worst = max(worst, ((ours - wanted).abs().max() / wanted.abs().max()).item())
    if not worst <= ALLOWED_ERROR:
        return Verdict(False, worst, f"wrong: a logit is off by {worst:.1e}, allowed are {ALLOWED_ERROR:.0e}")
    return Verdict(True, worst, f"right to {worst:.0e}")


def draw_tokens(batch: int, tokens: int, seed: int = 0) -> Int[Tensor, "batch time"]:
    """Prompts of random bytes."""
    return torch.randint(256, (batch, tokens), generator=torch.Generator().manual_seed(seed))


def unpadded(tokens: Int[Tensor, "batch time"]) -> Prompts:
    """Prompts of one length."""
    return Prompts(tokens, torch.ones_like(tokens, dtype=torch.bool))
