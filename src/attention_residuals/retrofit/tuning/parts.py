"""What of a model is trained: parts named by people, parameters told by their role, never by their shape."""

from collections.abc import Mapping
from enum import Enum
from typing import Any, TypeAlias

from torch import nn

from attention_residuals.errors import InputError
from attention_residuals.models import Role
from attention_residuals.retrofit.fingerprints import is_low_rank
from attention_residuals.streams import KeyNorms, Queries

Groups: TypeAlias = dict[Role, dict[str, nn.Parameter]]
"""Parameters by role and name."""


class Part(Enum):
    """What can be trained; several are joined by a plus, as in `queries+norms`."""

    QUERIES = "queries"
    """Depth queries."""

    KEYS = "keys"
    """Weights of the norms on depth keys. A read depends on their product with its query alone."""

    NORMS = "norms"
    """Gains of the norms that the model had."""

    LORA = "lora"
    """Low-rank matrices beside the linear layers of the branches (`peft`)."""

    ALL = "all"
    """Every parameter."""


def read_parts(what: str) -> frozenset[Part]:
    """Parts from their names.

    Raises:
        InputError: a name that is none of them.
    """
    known = {part.value: part for part in Part}
    names = str(what).split("+")
    wrong = [name for name in names if name not in known]
    if wrong:
        raise InputError(f"'{wrong[0]}' is nothing to train; choose of {', '.join(known)}, several as in queries+norms")
    return frozenset(known[name] for name in names)


def trainable(model: Any, what: str) -> Groups:
    """Let the parameters of some parts have gradients, and no others.

    Args:
        model: a model of `transformers`, converted or not, or a `PeftModel` around one.
        what: see `Part`.

    Returns:
        Those that have gradients now, by role and name. Depth queries and key norms (`Role.DEPTH_QUERY`,
        `Role.DEPTH_NORM`) are never to be decayed, nor given to Muon, and have a rate of their own; of the others
        `Role.MATRIX` alone is decayed.

    Raises:
        InputError: a part that the model does not have. No parameter was touched then.
    """
    parts = read_parts(what)
    roles = parameter_roles(model)
    chosen = {name for name, role in roles.items() if any(_belongs(part, name, role) for part in parts)}
    for part in sorted(parts, key=lambda part: part.value):
        if not any(_belongs(part, name, role) for name, role in roles.items()):
            raise InputError(f"{type(model).__name__} has no {part.value} to train; {_ADVICE[part]}")
    groups: Groups = {}
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in chosen)
        if name in chosen:
            groups.setdefault(roles[name], {})[name] = parameter
    return groups


_CONVERT = "convert it with retrofit first"
_ADVICE: Mapping[Part, str] = {
    Part.QUERIES: _CONVERT,
    Part.KEYS: _CONVERT,
    Part.NORMS: "choose another part",
    Part.LORA: "call add_lora first",
    Part.ALL: "give a model with weights",
}


def parameter_roles(model: nn.Module) -> dict[str, Role]:
    """Role of every parameter of a foreign model by name.

    Of what is not known here, biases, gates and the like, the role is `Role.BIAS`, which is not decayed.
    """
    return {
        f"{prefix}.{name}" if prefix else name: _role(module, name)
        for prefix, module in model.named_modules()
        for name, _ in module.named_parameters(recurse=False)
    }


def _role(module: nn.Module, name: str) -> Role:
    kind = type(module).__name__
    if isinstance(module, Queries):
        return Role.DEPTH_QUERY
    if isinstance(module, KeyNorms):
        return Role.DEPTH_NORM
    if name == "bias":
        return Role.BIAS
    if "Norm" in kind:
        return Role.NORM
    if isinstance(module, nn.Embedding):
        return Role.EMBEDDING
    if isinstance(module, nn.Linear) or kind == "Conv1D" or "Experts" in kind:
        return Role.MATRIX
    return Role.BIAS


def _belongs(part: Part, name: str, role: Role) -> bool:
    if part is Part.ALL:
        return True
    if part is Part.LORA:
        return is_low_rank(name)
    wanted = {Part.QUERIES: Role.DEPTH_QUERY, Part.KEYS: Role.DEPTH_NORM, Part.NORMS: Role.NORM}
    return role is wanted[part] and not is_low_rank(name)
