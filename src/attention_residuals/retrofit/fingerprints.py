"""Which weights an adapter belongs to, as one hash that is cheap to make."""

import hashlib

import torch
from jaxtyping import Shaped
from torch import Tensor, nn

from attention_residuals.retrofit.settings import NAME

SAMPLED = 4096
"""Values taken of each tensor, evenly over it."""

LOW_RANK = "lora_"
"""How names of low-rank matrices begin; `peft` keeps the original behind `BASE`."""

BASE = "base_layer"


def unwrapped(model: nn.Module) -> nn.Module:
    """The model of `transformers` inside a model of `peft`; any other model as it is."""
    inner = getattr(model, "get_base_model", None)
    return model if inner is None else inner()


def fingerprint(model: nn.Module) -> str:
    """SHA-256 over names, shapes and sampled values of all parameters but those of the depth and of low-rank adapters.

    Of each tensor `SAMPLED` values count, spread evenly, rounded to bfloat16. So a model has the same fingerprint in
    float32 and in bfloat16, before and after its conversion and below a low-rank adapter, until that is merged. Other
    training changes it. It takes hundredths of a second, by the number of tensors and not by their size, and is no
    defence against forgery.
    """
    found = hashlib.sha256()
    for name, parameter in sorted(base_parameters(model).items()):
        found.update(f"{name} {list(parameter.shape)}\n".encode())
        found.update(_sample(parameter).numpy().tobytes())
    return found.hexdigest()


def base_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """What a model had before its conversion, by the names that it had then; of shared parameters the first name."""
    return {
        name.replace(f".{BASE}.", "."): parameter
        for name, parameter in unwrapped(model).named_parameters()
        if NAME not in name.split(".") and not is_low_rank(name)
    }


def is_low_rank(name: str) -> bool:
    """Whether a parameter is one of a low-rank adapter."""
    return any(part.startswith(LOW_RANK) for part in name.split("."))


def _sample(parameter: Tensor) -> Shaped[Tensor, "values"]:
    flat = parameter.detach().flatten()
    places = torch.arange(min(SAMPLED, len(flat)), device=flat.device) * len(flat) // max(1, min(SAMPLED, len(flat)))
    return flat[places].to(torch.bfloat16).cpu().view(torch.int16)
