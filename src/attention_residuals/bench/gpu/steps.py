"""Whole training steps of the decoder in bfloat16: forward, loss, backward and AdamW."""

import torch
import torch.nn.functional as F
from torch import Tensor

from attention_residuals.bench.gpu.contests import free_memory, peak_bytes
from attention_residuals.bench.gpu.schedule import Clock, describe_error
from attention_residuals.bench.gpu.settings import Settings
from attention_residuals.bench.gpu.turns import Stopwatch, device_seconds
from attention_residuals.bench.networks import MODELS, decoder_config, residual_of, vary_depth_weights
from attention_residuals.bench.results import Column, Table, Value
from attention_residuals.bench.timing import Quartiles, Task
from attention_residuals.models import Decoder, build_decoder

CHECKED_TOKENS = 24
ALLOWED_ERROR = 0.05
"""The most a loss in bfloat16 may be off by, relative to that in float64."""


def step_table(settings: Settings, compiled: bool, failure: str | None, clock: Clock) -> Table:
    """Steps of the standard, Block and Full residual, taking turns."""
    layers, width, batch, sequence, _ = settings.network
    rows: dict[str, dict[str, Value]] = {name: {"implementation": name, "status": ""} for name in MODELS}
    tasks: dict[str, Task] = {}
    for name in MODELS:
        if clock.over or (failure and name != "standard"):
            rows[name]["status"] = failure if failure and name != "standard" else "not measured: no time was left"
            continue
        try:
            task, rows[name]["status"] = _step(settings, name, compiled)
            task()
            rows[name]["peak_bytes"] = peak_bytes(task) if settings.on_gpu else None
            tasks[name] = task
        except Exception as error:  # a compiler that gives up is a finding
            rows[name]["status"] = f"failed: {describe_error(error)}"
    seconds, queued = device_seconds(tasks, min(settings.rounds, 20), clock, Stopwatch(settings.device))
    for name, values in seconds.items():
        time = Quartiles.of(values)
        rows[name] |= {"seconds_low": time.low, "seconds": time.median, "seconds_high": time.high}
        rows[name]["queued_seconds"] = queued[name]
        if "standard" in seconds:
            pairs = zip(values, seconds["standard"], strict=True)
            rows[name]["ratio"] = Quartiles.of([mine / other for mine, other in pairs]).median
    tasks.clear()
    free_memory(settings.device)
    title = (
        f"step: {layers} layers, width {width:,}, {batch} x {sequence:,} tokens, bfloat16, "
        f"{'compiled' if compiled else 'not compiled'}"
    )
    return Table(title, _COLUMNS, list(rows.values()))


_COLUMNS = [
    Column("implementation", "residual"),
    Column("seconds", "median, ms", ",.3f", factor=1e3),
    Column("seconds_low", "quartiles, ms", ",.3f", factor=1e3, until="seconds_high"),
    Column("ratio", "x standard", ".3f"),
    Column("queued_seconds", "queueing, ms", ",.3f", factor=1e3),
    Column("peak_bytes", "peak, MiB", ",.0f", factor=2.0**-20),
    Column("status", "status"),
]


def _step(settings: Settings, name: str, compiled: bool) -> tuple[Task, str]:
    """A step of one model, and how far its loss is from that in float64."""
    layers, width, batch, sequence, block = settings.network
    config = decoder_config(width, layers, residual_of(name, block))
    model = build_decoder(config, seed=0, device=settings.device, dtype=torch.bfloat16)
    vary_depth_weights(model)
    tokens = torch.randint(config.vocab_size, (batch, sequence + 1), device=settings.device)
    words = _judge(model, tokens[:1, : CHECKED_TOKENS + 1])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=settings.on_gpu)
    forward = torch.compile(_loss, fullgraph=True) if compiled else _loss

    def step() -> None:
        forward(model, tokens).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step, words


def _judge(model: Decoder, tokens: Tensor) -> str:
    """The loss of a few tokens against the same model in float64, which takes no kernels.

    Raises:
        ValueError: it is off.
    """
    with torch.no_grad():
        found = _loss(model, tokens).double()
        exact = build_decoder(model.config, seed=0, device=tokens.device, dtype=torch.float64)
        exact.load_state_dict(model.state_dict())
        error = ((found - _loss(exact, tokens)).abs() / found.abs()).item()
    if not error <= ALLOWED_ERROR:
        raise ValueError(f"the loss is off by {error:.1e}, allowed are {ALLOWED_ERROR:.0e}")
    return f"loss right to {error:.0e}"


def _loss(model: Decoder, tokens: Tensor) -> Tensor:
    logits = model(tokens[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
