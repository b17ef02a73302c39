"""A small decoder, its optimisers and a few steps of training, for the tests of checkpoints."""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch.optim import Optimizer

from attention_residuals import AttnRes, Decoder, DecoderConfig, Sublayers, build_decoder
from attention_residuals.models import Role, parameter_roles
from attention_residuals.train import AdamW, TokenData, build_optimizers, token_losses
from attention_residuals.train.checkpoints import save_checkpoint

TEXT = b"the quick brown fox jumps over the lazy dog, and the dog does not mind at all. " * 40
DATA = TokenData.from_bytes(TEXT, TEXT[:1000], 16)


def small_model(layers: int = 2, dtype: torch.dtype = torch.float32, device: str = "cpu") -> Decoder:
    config = DecoderConfig.from_depth(layers, residual=AttnRes(Sublayers(2)))
    return build_decoder(config, seed=0, device=device, dtype=dtype)


def adamw(model: Decoder) -> dict[str, Optimizer]:
    return build_optimizers(model, AdamW()).by_name


def muon(model: Decoder) -> dict[str, Optimizer]:
    """Muon for the matrices, AdamW for the rest, as such models are trained."""
    roles = parameter_roles(model)
    matrices = [value for name, value in model.named_parameters() if roles[name] in (Role.MATRIX, Role.OUTPUT)]
    rest = [value for name, value in model.named_parameters() if roles[name] not in (Role.MATRIX, Role.OUTPUT)]
    return {"muon": torch.optim.Muon(matrices), "adamw": torch.optim.AdamW(rest, fused=True)}


def train(model: Decoder, optimizers: Mapping[str, Optimizer], steps: range) -> list[float]:
    """The loss of each step."""
    losses = []
    for step in steps:
        batch = DATA.batch(0, step, 2).to(next(model.parameters()).device)
        loss = token_losses(model, batch).mean()
        model.zero_grad(set_to_none=True)
        loss.backward()
        for optimizer in optimizers.values():
            optimizer.step()
        losses.append(loss.item())
    return losses


def everything(model: Decoder, optimizers: Mapping[str, Optimizer]) -> list[torch.Tensor]:
    """Copies of the weights and of all state of the optimisers."""
    found = list(model.state_dict().values())
    for optimizer in optimizers.values():
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                found += [value for _, value in sorted(optimizer.state.get(parameter, {}).items())]
    return [tensor.detach().clone() for tensor in found]


def saved(folder: Path, step: int) -> Path:
    """A checkpoint of a small model after one step of training, under the name of `step`."""
    model = small_model()
    optimizers = adamw(model)
    train(model, optimizers, range(step, step + 1))
    return save_checkpoint(folder, step=step, model=model, optimizers=optimizers, facts={})
