"""Models that cannot be converted as they are, told by what they are made of, before anything runs."""

from collections.abc import Sequence
from typing import Any

from torch import nn
from torch.distributed.tensor import DTensor

from attention_residuals.errors import InputError
from attention_residuals.retrofit.declarations import Layout
from attention_residuals.retrofit.settings import NAME

THEIRS = "transformers."
"""Hooks of `transformers` itself collect outputs and change nothing."""


def require_convertible(model: Any) -> None:
    """Refuse what would not be exact, or could not be checked.

    Raises:
        InputError: no model of `transformers`; one that was converted; compiled, quantised, offloaded or sharded
            weights.
    """
    from transformers import PreTrainedModel

    if not isinstance(model, PreTrainedModel):
        raise InputError(f"{type(model).__name__} is no model of transformers; give the PreTrainedModel inside it")
    _require_new(model)
    if getattr(model, "_compiled_call_impl", None) is not None:
        raise InputError(f"{type(model).__name__} is compiled; convert it first, and compile it afterwards")
    require_plain_weights(model)


def require_plain_weights(model: Any) -> None:
    """Refuse weights that are not all here, as they are.

    Raises:
        InputError: quantised, offloaded or sharded weights; it names the first module or parameter.
    """
    if getattr(model, "hf_quantizer", None) is not None or getattr(model.config, "quantization_config", None):
        raise InputError(
            f"{type(model).__name__} has quantised weights, with which no start was checked; convert the model in its "
            "own type"
        )
    for name, module in model.named_modules():
        if hasattr(module, "_hf_hook"):
            raise InputError(
                f"{name or type(module).__name__} is dispatched or offloaded by accelerate; load the model on one "
                "device, without device_map"
            )
    for name, parameter in model.named_parameters():
        if isinstance(parameter, DTensor):
            raise InputError(f"{name} is sharded (DTensor); convert the model before it is distributed")
        if parameter.device.type == "meta":
            raise InputError(f"{name} has no values (meta device); load the weights first")


def _require_new(model: Any) -> None:
    converted = [name for name, _ in model.named_modules() if name.split(".")[-1] == NAME]
    if converted:
        raise InputError(
            f"{type(model).__name__} was converted already ({converted[0]}); load the original to convert anew"
        )
    if getattr(model.config, NAME, None) is not None:
        raise InputError(
            f"{type(model).__name__} comes from a converted folder and lacks its depth attention; load it with "
            f"load_retrofitted, or delete config.{NAME} if the original is meant"
        )


def require_unhooked(layouts: Sequence[Layout]) -> None:
    """Refuse foreign hooks where ours will be: one could change what a reader sees, or what is recorded.

    Raises:
        InputError: it names the module.
    """
    for layout in layouts:
        modules = [module for increment in layout.increments for module in (*increment.readers, *increment.writers)]
        for module in [*layout.layers, *modules, layout.norm]:
            _require_unhooked(layout, module)


def _require_unhooked(layout: Layout, module: nn.Module) -> None:
    for hook in (*module._forward_pre_hooks.values(), *module._forward_hooks.values()):
        if not (getattr(hook, "__module__", None) or "").startswith(THEIRS):
            name = next(name for name, other in layout.owner.named_modules() if other is module)
            raise InputError(
                f"{name} has a hook ({getattr(hook, '__qualname__', type(hook).__name__)}); remove it, convert, and "
                "add it again"
            )
