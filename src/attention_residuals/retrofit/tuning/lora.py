"""Low-rank matrices beside the linear layers of a converted model's branches, by `peft`."""

import importlib.util
import warnings
from collections.abc import Sequence
from typing import Any

from torch import nn

from attention_residuals.errors import InputError
from attention_residuals.retrofit.declarations import find_layouts
from attention_residuals.retrofit.fingerprints import is_low_rank, unwrapped

CONV1D = "Conv1D"
"""GPT-2's linear layer, whose weight lies the other way round."""


def is_linear(module: nn.Module) -> bool:
    """Whether `peft` puts low-rank matrices beside a layer."""
    return isinstance(module, nn.Linear) or type(module).__name__ == CONV1D


def has_lora(model: nn.Module) -> bool:
    """Whether a model has low-rank matrices already."""
    return any(is_low_rank(name) for name, _ in model.named_parameters())


def add_lora(model: Any, rank: int, *, targets: Sequence[str] = (), alpha: float | None = None) -> Any:
    """A `PeftModel` around a model, which starts as the same function (Hu et al., arXiv 2106.09685).

    Args:
        model: one of `transformers` with declared stacks, converted or not. It is changed in place.
        rank: of the matrices.
        targets: last parts of the names of layers; empty: all linear layers inside sublayers. A layer that is a reader
            or a writer itself is none of these: `peft` would stand between it and the stream.
        alpha: the product of the matrices counts alpha / rank; None: twice the rank.

    Raises:
        InputError: peft is not installed, or no layer of the stacks has such a name.
    """
    if importlib.util.find_spec("peft") is None:
        raise InputError("low-rank matrices need peft: pip install peft")
    from peft import LoraConfig, get_peft_model

    names = target_layers(model, targets)
    modules = dict(unwrapped(model).named_modules())
    config = LoraConfig(
        r=rank,
        lora_alpha=2 * rank if alpha is None else alpha,  # pyright: ignore[reportArgumentType]
        target_modules=names,
        fan_in_fan_out=type(modules[names[0]]).__name__ == CONV1D,
        task_type=_task(model),  # pyright: ignore[reportArgumentType]
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # peft asks transformers by a name that it is to lose
        return get_peft_model(model, config)


def _task(model: Any) -> str | None:
    if getattr(model.config, "is_encoder_decoder", False):
        return "SEQ_2_SEQ_LM"
    return None if model.get_output_embeddings() is None else "CAUSAL_LM"


def target_layers(model: nn.Module, targets: Sequence[str] = ()) -> list[str]:
    """Full names of the linear layers inside the sublayers of a model; with `targets` those that end so.

    Raises:
        InputError: there are none.
    """
    names = {id(module): name for name, module in unwrapped(model).named_modules()}
    found: list[str] = []
    for layout in find_layouts(unwrapped(model)):
        increments = layout.increments
        apart = {module for each in increments for module in (*each.readers, *each.writers)}
        for layer in layout.layers:
            linear = [module for module in layer.modules() if is_linear(module) and module not in apart]
            found += [names[id(module)] for module in linear]
    kept = [name for name in found if not targets or name.split(".")[-1] in targets]
    if not kept:
        there = sorted({name.split(".")[-1] for name in found})
        raise InputError(
            f"no linear layer is named {' or '.join(targets) or 'anything'}; there are {', '.join(there) or 'none'}"
        )
    return kept


def lora_parameters(model: nn.Module, rank: int, targets: Sequence[str] = ()) -> int:
    """How many parameters `add_lora` would add."""
    modules = dict(unwrapped(model).named_modules())
    return sum(rank * sum(modules[name].weight.shape) for name in target_layers(model, targets))  # pyright: ignore[reportArgumentType, reportCallIssue]
