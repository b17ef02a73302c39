"""`memory`: what depth attention holds more than the standard residual, counted storage by storage."""

import torch

from attention_residuals.bench.networks import decoder_config, judge_decoder, residual_of, vary_depth_weights
from attention_residuals.bench.peaks import LiveBytes
from attention_residuals.bench.problems import Verdict
from attention_residuals.bench.progress import Work
from attention_residuals.bench.request import Request, Shape
from attention_residuals.bench.results import Column, Table, Value
from attention_residuals.bench.steps import REFERENCE, block_of
from attention_residuals.models import SUBLAYERS_PER_LAYER, Decoder, build_decoder
from attention_residuals.streams.two_phase import FULL_GROUP_SUBLAYERS
from attention_residuals.train import Recompute, TrainConfig, token_losses
from attention_residuals.train.execution import prepare_execution

MEMORY_MODELS = ("block", "full")
RECOMPUTE = {"nothing": Recompute.NONE, "every sublayer": Recompute.FULL}


def run_memory(request: Request, work: Work) -> list[Table]:
    """Peak of live activations in forward and backward, above that of the standard residual, in units of U."""
    rows = []
    for shape in request.shapes:
        work.title(f"memory: {shape[0]} layers")
        models = [name for name in MEMORY_MODELS if request.wants(name)]
        with work.stage("counting", len(RECOMPUTE) * (1 + len(models))):
            for recompute in RECOMPUTE:
                _, base = _peak(REFERENCE, shape, recompute)
                work.advance()
                for name in models:
                    rows.append(_row(name, shape, recompute, base))
                    work.advance()
    columns = [
        Column("model", "model"),
        Column("layers", "layers", "d"),
        Column("recompute", "recomputed"),
        Column("more_bytes", "more, MiB", ",.2f", factor=2**-20),
        Column("more_units", "more, U", ".1f"),
        Column("state_units", "the sources alone, U", "d"),
        Column("bound_units", "bound, U", "d"),
        Column("more_units_a_read", "more a read, U", ".2f"),
        Column("within", "within the bound"),
        Column("status", "status"),
    ]
    return [Table("memory: peak above the standard residual, U = tokens x width x 4 bytes", columns, rows)]


def state_units(name: str, layers: int) -> int:
    """Tensors `[T, D]` that the sources of the output read are: the embedding, and one an output or block."""
    sublayers = SUBLAYERS_PER_LAYER * layers
    return 1 + (sublayers if name == "full" else -(-sublayers // block_of(layers)))


def bound_units(name: str, layers: int, recompute: str) -> int:
    """What a design may hold in U: 2 a read; and 2(N + 1) + 2S where everything between sources is recomputed.

    N + 1 are the sources of the output read, and as many gradients; S reads share a first phase.
    """
    if RECOMPUTE[recompute] is Recompute.NONE:
        return 2 * SUBLAYERS_PER_LAYER * layers
    group = FULL_GROUP_SUBLAYERS if name == "full" else block_of(layers)
    return 2 * state_units(name, layers) + 2 * group


def _row(name: str, shape: Shape, recompute: str, base: int) -> dict[str, Value]:
    layers, tokens, width = shape
    verdict, peak = _peak(name, shape, recompute)
    row: dict[str, Value] = {"model": name, "layers": layers, "tokens": tokens, "width": width}
    row |= {"recompute": recompute, "status": verdict.words, "largest_error": verdict.error}
    if not verdict.right:
        return row
    unit = tokens * width * 4
    units, bound = (peak - base) / unit, bound_units(name, layers, recompute)
    row |= {"peak_bytes": peak, "standard_peak_bytes": base, "more_bytes": peak - base, "more_units": units}
    row |= {"state_units": state_units(name, layers), "bound_units": bound}
    row |= {"more_units_a_read": units / (SUBLAYERS_PER_LAYER * layers), "within": "yes" if units <= bound else "no"}
    return row


def _peak(name: str, shape: Shape, recompute: str) -> tuple[Verdict, int]:
    layers, tokens, width = shape
    config = decoder_config(width, layers, residual_of(name, block_of(layers)))
    model = build_decoder(config, seed=0)
    prepare_execution(model, TrainConfig(config, steps=1, recompute=RECOMPUTE[recompute]))
    vary_depth_weights(model)
    return judge_decoder(model), peak_of_step(model, tokens)


def peak_of_step(model: Decoder, tokens: int) -> int:
    """The most bytes of activations alive at once in the forward and backward of one sequence.

    Without parameters and their gradients; an operator's own temporaries do not count.
    """
    batch = torch.randint(model.config.vocab_size, (1, tokens + 1), generator=torch.Generator().manual_seed(0))
    with LiveBytes() as live:
        live.leave_out_gradients(model)
        token_losses(model, batch).mean().backward()
    return live.peak
