"""A model on sample input: what it gives, its gradients, and how far two such results are apart."""

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attention_residuals.errors import InputError

SAMPLE_SEQUENCES, SAMPLE_TOKENS = 2, 16

GRADIENT_FLOOR = 1e-3
"""Gradients smaller than the largest one by this factor are compared with that; some are zero but for rounding."""


class Measured(NamedTuple):
    """Logits, or what a model gives in their place; gradients of its own parameters by name, if asked for."""

    output: Float[Tensor, "..."]
    gradients: dict[str, Tensor]


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode, without dropout; afterwards every module is in the mode it was in."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module in model.modules():
            module.training = modes.get(module, model.training)


def default_sample(model: Any) -> dict[str, Tensor]:
    """Random input by the kind of model: tokens, pixels or mel features.

    Raises:
        InputError: another kind.
    """
    name, config = model.main_input_name, model.config
    generator = torch.Generator().manual_seed(0)
    if name == "input_ids":
        sample = {name: _tokens(model, generator)}
    elif name == "pixel_values" and hasattr(config, "image_size"):
        size = config.image_size
        height, width = (size, size) if isinstance(size, int) else tuple(size)
        sample = {name: torch.randn(SAMPLE_SEQUENCES, config.num_channels, height, width, generator=generator)}
    elif name == "input_features" and hasattr(config, "num_mel_bins") and hasattr(config, "max_source_positions"):
        frames = 2 * config.max_source_positions
        sample = {name: torch.randn(1, config.num_mel_bins, frames, generator=generator)}
    else:
        raise InputError(
            f"no sample input is known for {type(model).__name__}; give sample= with what its forward takes"
        )
    if getattr(config, "is_encoder_decoder", False):
        sample["decoder_input_ids"] = _tokens(model, generator)[: len(sample[name])]
    return {key: value.to(model.device) for key, value in sample.items()}


def _tokens(model: Any, generator: torch.Generator) -> Tensor:
    vocabulary = model.config.get_text_config().vocab_size
    most = getattr(model.config, "max_position_embeddings", None) or SAMPLE_TOKENS
    return torch.randint(vocabulary, (SAMPLE_SEQUENCES, min(SAMPLE_TOKENS, most)), generator=generator)


def measure(model: Any, sample: Mapping[str, Any], parameters: Mapping[str, nn.Parameter]) -> Measured:
    """Run a model on a sample; the gradients are those of its output times fixed random signs.

    Args:
        parameters: those to have gradients of.

    Raises:
        InputError: the output is not finite.
    """
    options = {"use_cache": False} if "use_cache" in inspect.signature(model.forward).parameters else {}
    with torch.set_grad_enabled(bool(parameters)):
        output = _output(model(**sample, **options))
    if not bool(output.isfinite().all()):
        raise InputError("the model gives NaN or infinite values on the sample; give a sample= that it can take")
    if not parameters:
        return Measured(output, {})
    signs = torch.randint(2, output.shape, generator=torch.Generator().manual_seed(0)).mul_(2).sub_(1)
    found = torch.autograd.grad(output, list(parameters.values()), signs.to(output) / output.numel(), allow_unused=True)
    gradients = {name: value for name, value in zip(parameters, found, strict=True) if value is not None}
    return Measured(output.detach(), gradients)


def _output(result: Any) -> Tensor:
    for name in ("logits", "last_hidden_state", "logits_per_image"):
        value = getattr(result, name, None)
        if isinstance(value, Tensor):
            return value
    raise InputError(
        f"the model gives {type(result).__name__}, without logits or last_hidden_state to compare; convert the model "
        "inside it"
    )


def output_difference(plain: Measured, converted: Measured) -> float:
    """The largest difference of outputs, relative to the largest output."""
    largest = plain.output.abs().max()
    return float((plain.output - converted.output).abs().max() / largest) if largest > 0 else 0.0


def gradient_difference(plain: Measured, converted: Measured) -> float | None:
    """The largest difference of a parameter's gradient relative to it, both as norms; None without gradients.

    A gradient that is far smaller than that of other parameters is compared with these (`GRADIENT_FLOOR`).
    """
    if not plain.gradients:
        return None
    norms = {name: float(gradient.norm()) for name, gradient in plain.gradients.items()}
    floor = GRADIENT_FLOOR * max(norms.values())
    return max(
        float((gradient - converted.gradients[name]).norm()) / max(norms[name], floor, torch.finfo(torch.float32).tiny)
        for name, gradient in plain.gradients.items()
    )
