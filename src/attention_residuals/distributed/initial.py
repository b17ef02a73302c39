"""Initial weights of a model whose parameters are spread over processes: those of the whole model, share by share."""

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate

from attention_residuals.models import Decoder, init_decoder
from attention_residuals.models.meta import without_values


def fill_shares(model: Decoder, *, seed: int) -> None:
    """Fill the parameters of a decoder in place, DTensors among them, with the values they have on one process.

    Each is drawn whole and by itself, so no process holds more than its shares and one whole parameter.
    """
    with without_values():
        whole = Decoder(model.config)
    for name, parameter in model.named_parameters():
        _put(parameter, _drawn(whole, name, parameter, seed))


def _drawn(whole: Decoder, name: str, like: Tensor, seed: int) -> Tensor:
    """The initial value of one parameter; `whole` lends its place, and is left on the meta device."""
    prefix, _, key = name.rpartition(".")
    places = whole.get_submodule(prefix)._parameters
    before, places[key] = places[key], nn.Parameter(torch.empty(like.shape, dtype=like.dtype, device="cpu"))
    init_decoder(whole, seed=seed, only={name})
    value, places[key] = places[key], before
    assert value is not None
    return value.detach()


def _put(parameter: Tensor, value: Tensor) -> None:
    with torch.no_grad():
        if not isinstance(parameter, DTensor):
            parameter.copy_(value)
            return
        mesh = parameter.device_mesh
        same = DTensor.from_local(value.to(parameter.device), mesh, [Replicate()] * mesh.ndim, run_check=False)
        parameter.to_local().copy_(same.redistribute(placements=parameter.placements).to_local())
