"""`retrofit`: a pretrained model gets depth attention in place of its residual sum, and starts as it was."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from attention_residuals.errors import InputError
from attention_residuals.retrofit.declarations import Layout, find_layouts
from attention_residuals.retrofit.measurement import (
    Measured,
    default_sample,
    evaluating,
    gradient_difference,
    measure,
    output_difference,
)
from attention_residuals.retrofit.observation import Observer, require_scale_free
from attention_residuals.retrofit.refusals import require_convertible, require_unhooked
from attention_residuals.retrofit.report import Report, report_stack, submodule_names
from attention_residuals.retrofit.settings import NAME, Settings, settle
from attention_residuals.retrofit.walks import DepthWalk
from attention_residuals.retrofit.wiring import places, wire
from attention_residuals.streams import AttnResStream, BlockSize, ReadScale
from attention_residuals.streams.checks import require_block


def retrofit(
    model: Any,
    block_size: BlockSize,
    *,
    scale: ReadScale = ReadScale.SUM,
    sample: Mapping[str, Any] | None = None,
    gradients: bool = True,
    tolerance: float | None = None,
) -> Report:
    """Convert a loaded model of `transformers` in place, and check on sample input that it is the same function.

    Every module that reads the residual stream gets a depth read of it instead (arXiv 2603.15031, Eq. 2-6), whose
    sources are the embedding and what the model's own branches write. Queries are zero, so with `ReadScale.SUM` each
    read is the sum that was there before. The model keeps its class, its forward, its caches, and its way to be saved;
    each stack of layers gets one submodule, `attention_residuals`, with the new parameters, in float32 at least.

    Args:
        model: a `PreTrainedModel` on one device; all stacks in it that are declared are converted.
        block_size: `Sublayers(1)` is Full; `Layers` counts those of the model, whatever a layer writes.
        scale: `ReadScale.MEAN` is the paper's form. It is close where every reader is a norm, to the size of its eps.
        sample: keyword arguments of the model's forward; None: random tokens, pixels or mel features.
        gradients: compare those of all trainable parameters too; takes memory for them twice.
        tolerance: largest difference of outputs allowed, relative to the largest; None: the root of the type's eps.

    Raises:
        InputError: a block size without a unit; a model that is not known, not additive somewhere, converted already,
            compiled, quantised, sharded or offloaded; or a larger difference. The model is as it was then.
    """
    require_block(block_size)
    if not isinstance(scale, ReadScale):
        raise InputError(f"scale is {scale!r}; choose ReadScale.SUM or ReadScale.MEAN")
    require_convertible(model)
    layouts = find_layouts(model)
    require_unhooked(layouts)
    size = sum(value.numel() for value in model.parameters())
    trainable = {name: value for name, value in model.named_parameters() if value.requires_grad and gradients}
    with evaluating(model):
        given = default_sample(model) if sample is None else sample
        with _explained(is_default=sample is None):
            plain, embeddings = _observe(model, layouts, given, trainable)
        settings = _settle(model, layouts, embeddings, block_size, scale)
        streams = [
            _place(stack.build(scale), embedding) for stack, embedding in zip(settings.stacks, embeddings, strict=True)
        ]
        handles = attach(layouts, streams)
        try:
            converted = measure(model, given, trainable)
            report = _report(settings, streams, size, plain, converted, tolerance)
        except BaseException:
            detach(layouts, handles)
            raise
    setattr(model.config, NAME, settings.to_entry())
    return report


def attach(layouts: Sequence[Layout], streams: Sequence[AttnResStream]) -> list[RemovableHandle]:
    """Put a stream into each stack, and have its reads replaced from here on."""
    handles = []
    for layout, stream in zip(layouts, streams, strict=True):
        layout.owner.add_module(NAME, stream)
        name = layout.name or type(layout.owner).__name__
        walk = DepthWalk(name, stream, layout.increments, layout.layers[0], places(layout))
        handles += wire(layout, walk)
    return handles


def detach(layouts: Sequence[Layout], handles: Sequence[RemovableHandle]) -> None:
    """Undo `attach`."""
    for handle in handles:
        handle.remove()
    for layout in layouts:
        delattr(layout.owner, NAME)


def _observe(
    model: nn.Module, layouts: Sequence[Layout], sample: Mapping[str, Any], trainable: Mapping[str, nn.Parameter]
) -> tuple[Measured, list[Tensor]]:
    """The plain model on the sample, and what enters each stack."""
    observers = [Observer(layout) for layout in layouts]
    handles = [handle for layout, watch in zip(layouts, observers, strict=True) for handle in wire(layout, watch)]
    try:
        plain = measure(model, sample, trainable)
    finally:
        for handle in handles:
            handle.remove()
    return plain, [observer.require_embedding() for observer in observers]


@contextmanager
def _explained(is_default: bool) -> Iterator[None]:
    try:
        yield
    except InputError:
        raise
    except (TypeError, ValueError, AttributeError, KeyError) as error:
        if not is_default:
            raise
        raise InputError(
            f"the model does not take random input ({error}); give sample= with what its forward takes"
        ) from error


def _settle(
    model: Any, layouts: Sequence[Layout], embeddings: Sequence[Tensor], block: BlockSize, scale: ReadScale
) -> Settings:
    stacks = []
    for layout, embedding in zip(layouts, embeddings, strict=True):
        stacks.append(settle(layout, block, embedding.shape[-1]))
        if scale is ReadScale.MEAN:
            require_scale_free(layout, embedding.shape[-1])
    return Settings(type(model).__name__, block, scale, tuple(stacks))


def _place(stream: AttnResStream, embedding: Tensor) -> AttnResStream:
    return stream.to(embedding.device, torch.promote_types(embedding.dtype, torch.float32))


def _report(
    settings: Settings,
    streams: Sequence[AttnResStream],
    parameters: int,
    plain: Measured,
    converted: Measured,
    tolerance: float | None,
) -> Report:
    allowed = torch.finfo(plain.output.dtype).eps ** 0.5 if tolerance is None else tolerance
    difference = output_difference(plain, converted)
    if not difference <= allowed:
        raise InputError(
            f"the converted model differs by {difference:.2g} of the largest output, and {allowed:.2g} is allowed; "
            + (
                "take scale=ReadScale.SUM, which is exact, or allow it with tolerance="
                if settings.scale is ReadScale.MEAN
                else "allow it with tolerance= if it comes from experts chosen by a margin below rounding"
            )
        )
    return Report(
        architecture=settings.architecture,
        stacks=tuple(map(report_stack, submodule_names(settings), streams)),
        parameters=parameters,
        output_difference=difference,
        gradient_difference=gradient_difference(plain, converted),
        tolerance=allowed,
    )
