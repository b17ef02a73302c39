"""When training must stop: what is no longer a finite number, and where it began."""

from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attention_residuals.models import Decoder


def first_bad_tensor(model: Decoder, parts: Sequence[Int[Tensor, "sequences time"]]) -> str:
    """Name of the first tensor that is not finite: among the weights, then along a forward, then among gradients.

    `parts`: the batch in the parts it was computed in. Call it under the autocast of the step.
    """
    for name, tensor in _in_order(model, parts):
        if not tensor.isfinite().all():
            return name
    return "no single tensor (a sum of finite numbers overflowed)"


def _in_order(
    model: Decoder, parts: Sequence[Int[Tensor, "sequences time"]]
) -> Iterator[tuple[str, Float[Tensor, "..."]]]:
    yield from model.named_parameters()
    for part in parts:
        yield from _along_the_forward(model, part)
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            yield f"the gradient of {name}", parameter.grad


def _along_the_forward(
    model: Decoder, batch: Int[Tensor, "sequences time"]
) -> Iterator[tuple[str, Float[Tensor, "..."]]]:
    with torch.no_grad():
        state = model.stream.start(model.embedding(batch[:, :-1]))
        for i in range(model.config.sublayers):
            read = model.stream.read(state, i)
            yield f"the input of sublayer {i}", read
            output = model.sublayers[str(i)](read)
            yield f"the output of sublayer {i}", output
            state = model.stream.write(state, i, output)
        yield "the logits", model.logits(model.stream.finish(state))
