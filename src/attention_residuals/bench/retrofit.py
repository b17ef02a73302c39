"""`retrofit`: a model of `transformers` with depth attention beside the original, in training and decoding."""

import copy
from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from attention_residuals.bench.contest import Contest, Entry
from attention_residuals.bench.inference import Slices
from attention_residuals.bench.networks import MODELS, decoder_config, residual_of
from attention_residuals.bench.problems import Verdict, draw_vectors
from attention_residuals.bench.progress import Work
from attention_residuals.bench.request import Request
from attention_residuals.bench.results import Table
from attention_residuals.bench.timing import Task
from attention_residuals.ops import attn_res_reference
from attention_residuals.retrofit import TokenWindows, TuneConfig, TuningText, retrofit
from attention_residuals.retrofit.tuning.loop import optimizer_step, start_tuning
from attention_residuals.retrofit.wiring import reading, walks_of
from attention_residuals.streams import AttnResStream, State, Sublayers

REFERENCE = "original"

NAMES = (REFERENCE, *MODELS[1:])

PROMPT_TOKENS = 16
SLICE_TOKENS = 8

JUDGED_TOKENS = 12
ALLOWED_ERROR = 1e-4
"""The most a logit in float32 may be off by, as a share of the largest."""

STILL = 1e-12
"""Share of the peak rate: steps are taken and lead nowhere."""


def run_retrofit(request: Request, work: Work) -> list[Table]:
    """A training step of all parameters, and tokens one at a time with a cache; models take turns."""
    tables = []
    for width, layers, batch, tokens, block, vocabulary in request.shapes:
        names = [name for name in NAMES if name == REFERENCE or request.wants(name)]
        entries = [_entry(name, (width, layers, block, vocabulary), batch, tokens) for name in names]
        title = (
            f"retrofit: Llama of width {width}, {layers} layers, {vocabulary:,} tokens, Block of {block} sublayers; "
            f"steps of {batch} x {tokens} tokens, decoding in turns of {SLICE_TOKENS}, batch {batch}, float32"
        )
        tables += Contest(title, entries, REFERENCE).run(request.budget, work)
    return tables


def build(name: str, width: int, layers: int, block: int, vocabulary: int) -> Any:
    """A random Llama, converted unless it is the reference, its depth queries away from zero."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes: Any = decoder_config(width, layers, residual_of("standard", block))
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocabulary,
            hidden_size=width,
            intermediate_size=sizes.mlp_width,
            num_hidden_layers=layers,
            num_attention_heads=sizes.heads,
            num_key_value_heads=sizes.kv_heads,
            head_dim=sizes.head_dim,
            max_position_embeddings=1 << 16,
        )
    ).eval()
    if name != REFERENCE:
        retrofit(model, Sublayers(1 if name == "full" else block), gradients=False)
        for walk in walks_of(model):
            vary(walk.stream)
    return model


@torch.no_grad()
def vary(stream: AttnResStream) -> None:
    """Weights that are not equal."""
    queries, norms = draw_vectors(len(stream.queries), stream.shape.width, torch.float32)
    for n, key in enumerate(stream.queries):
        stream.queries[key].copy_(queries[n])
        stream.key_norms[key].copy_(norms[n])


def _entry(name: str, shape: tuple[int, int, int, int], batch: int, tokens: int) -> Entry:
    model = build(name, *shape)
    drawn = torch.randint(shape[-1], (4 * (tokens + 1),), generator=torch.Generator().manual_seed(0))
    text = TuningText(TokenWindows(drawn, drawn, tokens))
    tuning = start_tuning(model, text, TuneConfig(train="all", batch_sequences=batch))
    windows = text.windows.batch(0, 0, batch)
    tuning.optimizers.set_rate(STILL)
    decoder = copy.deepcopy(model).eval().requires_grad_(False)
    phases = {"step": lambda: optimizer_step(tuning, windows), "decode": _decode(decoder, batch, tokens, shape[-1])}
    return Entry(name, phases, lambda: judge(decoder), ours=True)


def _decode(model: Any, batch: int, tokens: int, vocabulary: int) -> Task:
    prompt = torch.randint(vocabulary, (batch, PROMPT_TOKENS), generator=torch.Generator().manual_seed(1))

    def begin() -> Iterator[None]:
        found = model(input_ids=prompt, use_cache=True)
        for done in range(1, tokens + 1):
            found = model(input_ids=found.logits[:, -1:].argmax(-1), cache=found.cache)
            if done % SLICE_TOKENS == 0 or done == tokens:
                yield

    return Slices(begin)


@torch.no_grad()
def judge(model: Any) -> Verdict:
    """Compare logits of tokens decoded with a cache with those of one pass in float64, read by the formula."""
    ids = torch.randint(model.config.vocab_size, (2, JUDGED_TOKENS), generator=torch.Generator().manual_seed(2))
    exact = copy.deepcopy(model).double()
    with reading(exact, by_formula):
        wanted = exact(input_ids=ids, use_cache=False).logits
    half = JUDGED_TOKENS // 2
    found = model(input_ids=ids[:, :half], use_cache=True)
    rows = [found.logits]
    for n in range(half, JUDGED_TOKENS):
        found = model(input_ids=ids[:, n : n + 1], cache=found.cache)
        rows.append(found.logits)
    error = ((torch.cat(rows, 1).double() - wanted).abs().max() / wanted.abs().max()).item()
    if not error <= ALLOWED_ERROR:
        return Verdict(False, error, f"wrong: a logit is off by {error:.1e}, allowed are {ALLOWED_ERROR:.0e}")
    return Verdict(True, error, f"right to {error:.0e}")


def by_formula(stream: AttnResStream, state: State, i: int) -> Float[Tensor, "batch time width"]:
    """Read `i` by the paper's formula, times the gain of the stream."""
    sources = stream.sources(state)
    key = stream.OUTPUT if i == stream.shape.sublayers else str(i)
    if key not in stream.read_keys:
        return sources[-1]
    mixture = attn_res_reference(sources, stream.queries[key], stream.key_norms[key], eps=stream.reads.key_eps)[0]
    return stream.gain(len(sources)) * mixture
