"""Model and optimisers as named tensors, and back: nothing is changed before everything is known to fit."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from attention_residuals.errors import InputError

SHOWN = 3
"""Names a message lists before it counts the rest."""


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and persistent buffers by name, copied to the CPU."""
    return {name: _copied(tensor) for name, tensor in model.state_dict().items()}


def optimizer_tensors(model: nn.Module, optimizers: Mapping[str, Optimizer]) -> dict[str, Tensor]:
    """State of every parameter as `optimiser/parameter/key`, copied to the CPU; step counts are 0-d tensors.

    Raises:
        TypeError: an optimiser that keeps other things than tensors, which could not come back to the last bit.
    """
    tensors: dict[str, Tensor] = {}
    for name, optimizer in optimizers.items():
        assert "/" not in name, "a slash ends the optimiser's name in the file"
        for parameter_name, (parameter, _) in _named_parameters(model, name, optimizer).items():
            for key, value in optimizer.state.get(parameter, {}).items():
                if not isinstance(value, Tensor):
                    raise TypeError(
                        f"optimiser '{name}' keeps '{key}' as {type(value).__name__}; only tensors are saved"
                    )
                tensors[f"{name}/{parameter_name}/{key}"] = _copied(value)
    return tensors


def describe_optimizers(model: nn.Module, optimizers: Mapping[str, Optimizer]) -> dict[str, Any]:
    """Kind and parameter names of every optimiser, to be known again at loading."""
    return {
        name: {"kind": type(optimizer).__name__, "parameters": list(_named_parameters(model, name, optimizer))}
        for name, optimizer in optimizers.items()
    }


def require_model_fits(path: Path, saved: Mapping[str, Tensor], model: nn.Module) -> None:
    """Refuse the weights of another model.

    Raises:
        InputError: it names the first tensors that are missing, unexpected, or of another shape or type.
    """
    current = model.state_dict()
    parts = [
        listed("lacks", [name for name in current if name not in saved]),
        listed("has unexpected", [name for name in saved if name not in current]),
        listed(
            "differs in",
            [
                f"{name} ({_form(saved[name])}, in the model {_form(tensor)})"
                for name, tensor in current.items()
                if name in saved and _form(saved[name]) != _form(tensor)
            ],
        ),
    ]
    if any(parts):
        found = ", ".join(part for part in parts if part)
        raise InputError(f"{path} is of another model: it {found}; build the model as it was when this was saved")


def require_finite(path: Path | str, saved: Mapping[str, Tensor]) -> None:
    """Refuse weights that are not numbers: every output would be as bad, and nothing would say why.

    Raises:
        InputError: it names the first tensors with NaN or infinite values.
    """
    bad = [name for name, tensor in saved.items() if tensor.is_floating_point() and not tensor.isfinite().all()]
    if bad:
        raise InputError(f"{path} {listed('has NaN or infinite values in', bad)}; use weights from before they broke")


def require_optimizers_fit(
    path: Path, saved: Mapping[str, Any], model: nn.Module, optimizers: Mapping[str, Optimizer]
) -> None:
    """Refuse the state of other optimisers; `saved` is what `describe_optimizers` gave at saving.

    Raises:
        InputError: other optimisers, one of another kind, or one for other parameters.
    """
    current = describe_optimizers(model, optimizers)
    if saved.keys() != current.keys():
        raise InputError(
            f"{path} has the optimisers {_quoted(saved)} and this run has {_quoted(current)}; "
            "build those that it was saved with"
        )
    for name, mine in current.items():
        theirs = saved[name]
        if theirs["kind"] != mine["kind"]:
            raise InputError(
                f"optimiser '{name}' is {theirs['kind']} in {path} and {mine['kind']} in this run; "
                "build the kind that it was saved with"
            )
        parts = [
            listed("only there", [key for key in theirs["parameters"] if key not in mine["parameters"]]),
            listed("only here", [key for key in mine["parameters"] if key not in theirs["parameters"]]),
        ]
        if any(parts):
            found = ", ".join(part for part in parts if part)
            raise InputError(
                f"optimiser '{name}' has other parameters in {path} than in this run: {found}; "
                "give it those that it was saved with"
            )


def restore_model(saved: Mapping[str, Tensor], model: nn.Module) -> None:
    """Copy weights that fit into the model."""
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            tensor.copy_(saved[name])


def restore_optimizers(saved: Mapping[str, Tensor], model: nn.Module, optimizers: Mapping[str, Optimizer]) -> None:
    """Replace the state of optimisers that fit.

    Done here rather than by `load_state_dict`, which goes by position and casts state to the parameter's type.
    """
    parameters = {name: _named_parameters(model, name, optimizer) for name, optimizer in optimizers.items()}
    for optimizer in optimizers.values():
        optimizer.state.clear()
    for place, tensor in saved.items():
        name, rest = place.split("/", 1)
        parameter_name, key = rest.rsplit("/", 1)
        parameter, group = parameters[name][parameter_name]
        optimizers[name].state[parameter][key] = _state_tensor(key, tensor, parameter, group)


def _state_tensor(key: str, saved: Tensor, parameter: Tensor, group: Mapping[str, Any]) -> Tensor:
    """Where and as torch would have made it: the step count stays on the CPU unless a kernel reads it there."""
    if key == "step" and not (group.get("fused") or group.get("capturable")):
        return saved.clone()
    if saved.shape == parameter.shape:
        return torch.empty_like(parameter, dtype=saved.dtype, requires_grad=False).copy_(saved)
    return saved.to(parameter.device, copy=True)


def _named_parameters(
    model: nn.Module, optimizer_name: str, optimizer: Optimizer
) -> dict[str, tuple[nn.Parameter, dict[str, Any]]]:
    """Parameters of an optimiser and their groups by the model's own names.

    Raises:
        InputError: a parameter that is not the model's.
    """
    # By memory and not by identity: an optimiser may hold a vector as a matrix of one row.
    names = {parameter.data_ptr(): name for name, parameter in model.named_parameters()}
    found: dict[str, tuple[nn.Parameter, dict[str, Any]]] = {}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.data_ptr() not in names:
                raise InputError(
                    f"optimiser '{optimizer_name}' has a parameter of shape {list(parameter.shape)} that is not the "
                    "model's; build it from the parameters of this model"
                )
            found[names[parameter.data_ptr()]] = parameter, group
    return found


def _copied(tensor: Tensor) -> Tensor:
    """Memory of its own for each tensor, since the file format knows no tensors that share it."""
    return tensor.detach().to("cpu", copy=True).contiguous()


def _form(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def listed(what: str, names: Sequence[str]) -> str:
    """The first names after `what`, and how many more there are; empty if there are none."""
    rest = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"{what} {', '.join(names[:SHOWN])}{rest}" if names else ""


def _quoted(names: Mapping[str, Any]) -> str:
    return ", ".join(f"'{name}'" for name in names) or "none"
