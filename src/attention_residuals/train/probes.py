"""What happens along the depth of a trained model, read off one training batch."""

import math
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from jaxtyping import Int
from torch import Tensor

from attention_residuals.models import Decoder
from attention_residuals.nn import load_peak, load_shares, loads_apart, take_router_loads
from attention_residuals.streams import AttnResStream, State


@dataclass
class Probe:
    """One number per sublayer, in order, and what every read does with its sources.

    `output_rms`: size of what the sublayer writes. `carried_rms`: size of the running tensor after it (the stream, or
    the partial sum of the open block). `output_gradient_norm`: norm of the loss gradient at what it writes.
    `parameter_gradient_norm`: norm of the loss gradient over its parameters.

    Reads are numbered by the sublayer that reads; the last one is the output read. All is a mean over tokens, and empty
    for a stream without depth weights. `depth_weights[i]`: weights of read `i` over its sources, as they are; those of
    some streams do not sum to 1, and what follows is of their shares of the sum. `depth_entropy[i]`: entropy in nats,
    taken token by token, so that weights which differ between tokens do not pass for flat ones.
    `depth_entropy_share[i]`: that as a share of ln(sources), the entropy of equal weights; 1 for a single source.
    `depth_top_weight[i]`: largest share of a token, whichever source has it.

    By the name of each router, of which many models have none: `expert_shares` of all choices, and `expert_peak`, the
    largest of them over their mean.
    """

    output_rms: list[float] = field(default_factory=list)
    carried_rms: list[float] = field(default_factory=list)
    output_gradient_norm: list[float] = field(default_factory=list)
    parameter_gradient_norm: list[float] = field(default_factory=list)
    depth_weights: list[list[float]] = field(default_factory=list)
    depth_entropy: list[float] = field(default_factory=list)
    depth_entropy_share: list[float] = field(default_factory=list)
    depth_top_weight: list[float] = field(default_factory=list)
    source_names: list[str] = field(default_factory=list)
    expert_shares: dict[str, list[float]] = field(default_factory=dict)
    expert_peak: dict[str, float] = field(default_factory=dict)


def probe(model: Decoder, batch: Int[Tensor, "sequences time"]) -> Probe:
    """Walk the model's own loop over `batch [B, T + 1]`, forward and backward; the model is left as it was."""
    found, outputs = Probe(), []
    state = model.stream.start(model.embedding(batch[:, :-1]))
    for i in range(model.config.sublayers):
        _note_weights(found, model, state, i)
        output = model.sublayers[str(i)](model.stream.read(state, i))
        output.retain_grad()
        outputs.append(output)
        state = model.stream.write(state, i, output)
        found.output_rms.append(_rms(output))
        found.carried_rms.append(_rms(model.stream.carried(state)))
    _note_weights(found, model, state, model.config.sublayers)
    logits = model.logits(model.stream.finish(state))
    with loads_apart(model):
        F.cross_entropy(logits.float().flatten(0, 1), batch[:, 1:].flatten()).backward()
        loads = take_router_loads(model)
    found.expert_shares = {name: load_shares(load).tolist() for name, load in loads.items()}
    found.expert_peak = {name: load_peak(load) for name, load in loads.items()}
    for output, sublayer in zip(outputs, model.sublayers.values(), strict=True):
        found.output_gradient_norm.append(output.grad.norm().item())
        gradients = [parameter.grad for parameter in sublayer.parameters() if parameter.grad is not None]
        found.parameter_gradient_norm.append(torch.nn.utils.get_total_norm(gradients).item())
    model.zero_grad(set_to_none=True)
    return found


def _note_weights(found: Probe, model: Decoder, state: State, i: int) -> None:
    if not isinstance(model.stream, AttnResStream):
        return
    with torch.no_grad():
        weights = model.stream.weights(state, i).flatten(1)
        shares = weights / weights.sum(0).clamp_min(torch.finfo(weights.dtype).tiny)
    entropy = torch.special.entr(shares).sum(0).mean().item()
    found.depth_weights.append(weights.mean(1).tolist())
    found.depth_entropy.append(entropy)
    found.depth_entropy_share.append(entropy / math.log(len(weights)) if len(weights) > 1 else 1.0)
    found.depth_top_weight.append(shares.amax(0).mean().item())
    found.source_names = model.stream.reads.partition.source_names()


def _rms(tensor: Tensor) -> float:
    return tensor.detach().float().square().mean().sqrt().item()
