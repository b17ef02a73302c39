"""Model and optimisers as named tensors, and back: nothing is changed before everything is known to fit.

A model is given as its parts, the one whole or those that this process has; names are those of the whole model.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from attention_residuals.errors import InputError
from attention_residuals.train.row_muon import RowMuon

SHOWN = 3
"""Names a message lists before it counts the rest."""


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and persistent buffers by name, copied to the CPU."""
    return {name: _copied(tensor) for name, tensor in weights_of([model]).items()}


def optimizer_tensors(model: nn.Module, optimizers: Mapping[str, Optimizer]) -> dict[str, Tensor]:
    """State of every parameter as `optimiser/parameter/key`, copied to the CPU; step counts are 0-d tensors.

    Raises:
        TypeError: an optimiser that keeps other things than tensors, which could not come back to the last bit.
    """
    return {name: _copied(tensor) for name, tensor in moments_of([model], optimizers).items()}


def weights_of(parts: Sequence[nn.Module]) -> dict[str, Tensor]:
    """Parameters and persistent buffers by name, as they are: to write into them is to change the model."""
    found: dict[str, Tensor] = {}
    for part in parts:
        tensors = part.state_dict()
        assert not found.keys() & tensors.keys(), "parts of one model have names of their own"
        found |= tensors
    return found


def moments_of(parts: Sequence[nn.Module], optimizers: Mapping[str, Optimizer]) -> dict[str, Tensor]:
    """State of every parameter as `optimiser/parameter/key`, as it is.

    Raises:
        TypeError: an optimiser that keeps other things than tensors.
    """
    tensors: dict[str, Tensor] = {}
    for name, optimizer in optimizers.items():
        assert "/" not in name, "a slash ends the optimiser's name in the file"
        for parameter_name, (parameter, _) in _named_parameters(parts, name, optimizer).items():
            for key, value in optimizer.state.get(parameter, {}).items():
                if not isinstance(value, Tensor):
                    raise TypeError(
                        f"optimiser '{name}' keeps '{key}' as {type(value).__name__}; only tensors are saved"
                    )
                tensors[f"{name}/{parameter_name}/{key}"] = value
    return tensors


def is_moment(name: str) -> bool:
    """Whether a tensor is an optimiser's and not the model's."""
    return "/" in name


def describe_optimizers(parts: Sequence[nn.Module], optimizers: Mapping[str, Optimizer]) -> dict[str, Any]:
    """Kind and parameter names of every optimiser, to be known again at loading."""
    return {
        name: {"kind": type(optimizer).__name__, "parameters": list(_named_parameters(parts, name, optimizer))}
        for name, optimizer in optimizers.items()
    }


def merge_descriptions(descriptions: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """What `describe_optimizers` would give for the whole model, from what it gave for the parts of each process."""
    merged: dict[str, Any] = {}
    for description in descriptions:
        for name, mine in description.items():
            whole = merged.setdefault(name, {"kind": mine["kind"], "parameters": []})
            assert whole["kind"] == mine["kind"], f"optimiser '{name}' is of one kind on all processes"
            whole["parameters"] = list(dict.fromkeys([*whole["parameters"], *mine["parameters"]]))
    return merged


def forms(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Type and shape of tensors, in words; of a DTensor those of the whole."""
    return {
        name: f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}" for name, tensor in tensors.items()
    }


def require_model_fits(path: Path, saved: Mapping[str, str], current: Mapping[str, str]) -> None:
    """Refuse the weights of another model; `saved` and `current` are the `forms` of both.

    Raises:
        InputError: it names the first tensors that are missing, unexpected, or of another shape or type.
    """
    parts = [
        listed("lacks", [name for name in current if name not in saved]),
        listed("has unexpected", [name for name in saved if name not in current]),
        listed(
            "differs in",
            [
                f"{name} ({saved[name]}, in the model {form})"
                for name, form in current.items()
                if name in saved and saved[name] != form
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


def require_optimizers_fit(path: Path, saved: Mapping[str, Any], current: Mapping[str, Any]) -> None:
    """Refuse the state of other optimisers; both are what `describe_optimizers` gives for the whole model.

    Raises:
        InputError: other optimisers, one of another kind, or one for other parameters.
    """
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


def fresh_moments(
    saved: Mapping[str, Tensor], parts: Sequence[nn.Module], optimizers: Mapping[str, Optimizer]
) -> dict[str, Tensor]:
    """Give optimisers that fit an empty state, and return its tensors by name, to be filled.

    Done here rather than by `load_state_dict`, which goes by position and casts state to the parameter's type.

    Args:
        saved: tensors of the saved forms, by `optimiser/parameter/key`, of the whole model.
    """
    parameters = {name: _named_parameters(parts, name, optimizer) for name, optimizer in optimizers.items()}
    for optimizer in optimizers.values():
        optimizer.state.clear()
    moments: dict[str, Tensor] = {}
    for place, form in saved.items():
        name, rest = place.split("/", 1)
        parameter_name, key = rest.rsplit("/", 1)
        if parameter_name in parameters.get(name, {}):
            parameter, group = parameters[name][parameter_name]
            moments[place] = optimizers[name].state[parameter][key] = _empty_moment(key, form, parameter, group)
    return moments


def _empty_moment(key: str, form: Tensor, parameter: Tensor, group: Mapping[str, Any]) -> Tensor:
    """Where and as torch would have made it: the step count stays on the CPU unless a kernel reads it there."""
    if key == "step" and not (group.get("fused") or group.get("capturable")):
        return torch.empty_like(form, device="cpu")
    if form.shape == parameter.shape:
        return torch.empty_like(parameter, dtype=form.dtype, requires_grad=False)
    return torch.empty_like(form, device=parameter.device)


def _named_parameters(
    parts: Sequence[nn.Module], optimizer_name: str, optimizer: Optimizer
) -> dict[str, tuple[nn.Parameter, dict[str, Any]]]:
    """Parameters of an optimiser and their groups by the model's own names.

    Raises:
        InputError: a parameter that is not the model's.
    """
    # FSDP2 may have whole parameters in the place of its own ones since a forward pass; `state_dict` puts these back.
    names = {id(tensor): name for part in parts for name, tensor in part.state_dict(keep_vars=True).items()}
    held = [(parameter, group) for group in optimizer.param_groups for parameter in group["params"]]
    owners = optimizer.vectors if isinstance(optimizer, RowMuon) else [parameter for parameter, _ in held]
    found: dict[str, tuple[nn.Parameter, dict[str, Any]]] = {}
    for (parameter, group), owner in zip(held, owners, strict=True):
        if id(owner) not in names:
            raise InputError(
                f"optimiser '{optimizer_name}' has a parameter of shape {list(parameter.shape)} that is not the "
                "model's; build it from the parameters of this model"
            )
        found[names[id(owner)]] = parameter, group
    return found


def _copied(tensor: Tensor) -> Tensor:
    """Memory of its own for each tensor, since the file format knows no tensors that share it."""
    return tensor.detach().to("cpu", copy=True).contiguous()


def listed(what: str, names: Sequence[str]) -> str:
    """The first names after `what`, and how many more there are; empty if there are none."""
    rest = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"{what} {', '.join(names[:SHOWN])}{rest}" if names else ""


def _quoted(names: Mapping[str, Any]) -> str:
    return ", ".join(f"'{name}'" for name in names) or "none"
