"""`prefill-ranks`: what a rank holds of the depth while several take in a prompt together, beside N x T/P x D."""

import copy
import functools
import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from attention_residuals.bench.inference import draw_tokens, judge_logits, unpadded
from attention_residuals.bench.networks import MODELS, decoder_config, residual_of, vary_depth_weights
from attention_residuals.bench.peaks import peak_bytes
from attention_residuals.bench.progress import Work
from attention_residuals.bench.request import Request, Shape
from attention_residuals.bench.results import Column, Table, Value
from attention_residuals.distributed.layout import require_shared_matrices
from attention_residuals.distributed.prefill import SharedForward, share_of
from attention_residuals.distributed.ranks import run_on_ranks
from attention_residuals.distributed.tensor import shard_matrices
from attention_residuals.inference import GrowingCache, Session
from attention_residuals.models import Decoder, DecoderConfig, build_decoder
from attention_residuals.streams import AttnRes, Blocks, Residual, Stream

RANKS = (1, 2, 4)

CHUNKS = 8
"""Into so many the prompt is cut, as in the paper's case: 128K tokens in chunks of 16K."""

PAPER_SUBLAYERS, PAPER_BLOCKS, PAPER_WIDTH, PAPER_TYPE = 48, 8, 7168, torch.bfloat16
"""The paper gives the blocks alone; width, type and eight devices are those with which its figures agree. The number of
sublayers does not matter.
"""
PAPER_CASES = ((2**17, 1, "15 GB"), (2**17, 8, "1.9 GB"), (2**14, 8, "below 0.3 GB"))
"""Tokens at once, devices, and what section 4.2 of the paper says of them."""


def run_prefill_ranks(request: Request, work: Work) -> list[Table]:
    """The paper's case, and a small model on processes of this machine, each with one thread."""
    rows: list[dict[str, Value]] = []
    names = [name for name in MODELS if request.wants(name)]
    for shape in request.shapes:
        for name in names:
            require_shared_matrices(_config(name, shape), max(RANKS))
        work.title(f"prefill-ranks: {shape[0]} tokens")
        with work.stage("measuring", len(RANKS)):
            for ranks in RANKS:
                rows += _rows_of(ranks, shape, names)
                work.advance()
    columns = [
        Column("model", "model"),
        Column("ranks", "P", "d"),
        Column("chunk_tokens", "T", ",d"),
        Column("sources", "N", "d"),
        Column("sources_bytes", "N x T/P x D", ",.3f", factor=2**-20),
        Column("closed_bytes", "(N + 1) x T/P x D", ",.3f", factor=2**-20),
        Column("state_bytes", "counted", ",.3f", factor=2**-20),
        Column("cache_bytes", "keys, values", ",.1f", factor=2**-20),
        Column("beyond_bytes", "peak beyond", ",.1f", factor=2**-20),
        Column("status", "status"),
    ]
    title = "prefill-ranks: the most one of P ranks holds, T tokens at once, float32, MiB"
    return [paper_table(), Table(title, columns, rows)]


def paper_table() -> Table:
    """The paper's case: tensors of a state counted on the meta device, in bytes of one device."""
    stream = _on_meta(AttnRes(Blocks(PAPER_BLOCKS), two_phase=False), PAPER_SUBLAYERS, PAPER_WIDTH)
    rows: list[dict[str, Value]] = []
    for tokens, ranks, words in PAPER_CASES:
        share = share_of(tokens, ranks)
        state = stream.start(torch.empty(1, share, PAPER_WIDTH, dtype=PAPER_TYPE, device="meta"))
        fixed = total = 0
        for i in range(PAPER_SUBLAYERS):
            tensors = stream.pack(state)
            fixed = max(fixed, sum(tensor.nbytes for tensor in tensors[: stream.boundary(i).fixed]))
            total = max(total, sum(tensor.nbytes for tensor in tensors))
            state = stream.write(state, i, torch.empty_like(tensors[0]))
        row: dict[str, Value] = {"chunk_tokens": tokens, "ranks": ranks, "share_tokens": share, "paper": words}
        rows.append(row | {"sources": closed_sources(stream), "sources_bytes": fixed, "closed_bytes": total})
    columns = [
        Column("chunk_tokens", "T", ",d"),
        Column("ranks", "P", "d"),
        Column("share_tokens", "T/P", ",d"),
        Column("sources", "N", "d"),
        Column("sources_bytes", "N x T/P x D, GB", ".3f", factor=1e-9),
        Column("paper", "the paper"),
        Column("closed_bytes", "(N + 1) x T/P x D, GB", ".3f", factor=1e-9),
    ]
    title = (
        f"the paper's case: T of 128K tokens at once on P devices, {PAPER_BLOCKS} blocks, width {PAPER_WIDTH}, bfloat16"
    )
    return Table(title, columns, rows)


def closed_sources(stream: Stream) -> int:
    """N: the most sources `[T, D]` of a sublayer's read that never change again. One more is the running sum."""
    return max(stream.boundary(i).fixed for i in range(stream.shape.sublayers))


class StateCount:
    """The most bytes of memory the tensors of a stream's state have held at once."""

    def __init__(self) -> None:
        self.most = 0

    @contextmanager
    def watch(self, model: Decoder) -> Iterator[None]:
        """Look at the state after every sublayer of `model`."""
        step = model.step

        def counted(*args: Any) -> Any:
            state = step(*args)
            self.most = max(self.most, held_bytes(model.stream.pack(state)))
            return state

        model.step = counted  # pyright: ignore[reportAttributeAccessIssue]
        try:
            yield
        finally:
            del model.step


def held_bytes(tensors: tuple[Tensor, ...]) -> int:
    """Of the memory behind them: a view of more than it shows counts as what it keeps alive."""
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
    return sum(storages.values())


def _rows_of(ranks: int, shape: Shape, names: list[str]) -> list[dict[str, Value]]:
    """A row for each model and chunk: the sizes to expect, and of what was measured the most of any rank."""
    with tempfile.TemporaryDirectory() as folder:
        run_on_ranks(ranks, Path(folder), functools.partial(_answer_for, shape=shape, names=names))
        found = [json.loads(_answer(Path(folder), rank).read_text()) for rank in range(ranks)]
    rows = []
    for (name, chunk), *answers in zip(_cases(shape, names), *found, strict=True):
        config, (tokens, width) = _config(name, shape), shape[:2]
        sources = closed_sources(_on_meta(config.residual, config.sublayers, width))
        unit = 4 * share_of(chunk, ranks) * width
        cache = 4 * 2 * config.layers * config.kv_heads * config.head_dim * tokens // ranks
        row: dict[str, Value] = {"model": name, "ranks": ranks, "tokens": tokens, "chunk_tokens": chunk}
        row |= {"width": width, "layers": config.layers, "sources": sources, "status": answers[0]["status"]}
        row |= {"sources_bytes": sources * unit, "closed_bytes": (sources + 1) * unit, "cache_bytes": cache}
        if all(answer["right"] for answer in answers):
            peaks = [answer["peak_bytes"] for answer in answers]
            row["state_bytes"] = max(answer["state_bytes"] for answer in answers)
            row["beyond_bytes"] = None if None in peaks else max(peaks) - cache
        rows.append(row)
    return rows


def _answer_for(rank: int, folder: Path, *, shape: Shape, names: list[str]) -> None:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tensor",))
    answers = [_measure(name, chunk, shape, mesh) for name, chunk in _cases(shape, names)]
    _answer(folder, rank).write_text(json.dumps(answers))


def _measure(name: str, chunk: int, shape: Shape, mesh: DeviceMesh) -> dict[str, Value]:
    model = build_decoder(_config(name, shape), seed=0)
    vary_depth_weights(model)
    exact = copy.deepcopy(model).double()
    forward = SharedForward(model, shard_matrices(model, mesh))
    verdict = judge_logits(exact, Session(model, GrowingCache(), forward))
    del exact
    prompt, state = unpadded(draw_tokens(1, shape[0])), StateCount()

    @torch.no_grad()
    def prefill() -> None:
        Session(model, GrowingCache(reserve_tokens=shape[0]), forward).prefill(prompt, chunk)

    with state.watch(model):
        peak = peak_bytes(prefill)
    return {"right": verdict.right, "status": verdict.words, "state_bytes": state.most, "peak_bytes": peak}


def _cases(shape: Shape, names: list[str]) -> list[tuple[str, int]]:
    return [(name, chunk) for name in names for chunk in (shape[0], share_of(shape[0], CHUNKS))]


def _config(name: str, shape: Shape) -> DecoderConfig:
    _, width, layers, block = shape
    return decoder_config(width, layers, residual_of(name, block))


def _on_meta(residual: Residual, sublayers: int, width: int) -> Stream:
    with torch.device("meta"):
        return residual.build(sublayers, width)


def _answer(folder: Path, rank: int) -> Path:
    return folder / f"rank-{rank}.json"
