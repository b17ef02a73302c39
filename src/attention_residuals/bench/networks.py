"""Decoders to measure, and what their loss and gradients have to be: float64, with reads by the paper's formula."""

import copy
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from attention_residuals.bench.problems import Verdict, draw_vectors
from attention_residuals.errors import InputError
from attention_residuals.models import BYTE_VOCABULARY, Decoder, DecoderConfig
from attention_residuals.ops import attn_res_reference
from attention_residuals.streams import Additive, AttnRes, AttnResStream, Residual, Sublayers
from attention_residuals.train import token_losses

MODELS = ("standard", "block", "full")

CHECKED_TOKENS = 24

ALLOWED_ERROR = 1e-3
"""The most a gradient in float32 may be off by, relative to its norm: roundings add up over dozens of sublayers."""


def residual_of(model: str, block: int) -> Residual:
    """The residual of one of `MODELS`, `block` being the sublayers of a block of Block."""
    choices: dict[str, Residual] = {"standard": Additive(), "block": AttnRes(Sublayers(block)), "full": AttnRes()}
    return choices[model]


def decoder_config(width: int, layers: int, residual: Residual) -> DecoderConfig:
    """A decoder that reads bytes, in the proportions of `DecoderConfig.from_depth` but for a width of its own."""
    head_dim = 64 if width >= 512 else 32 if width >= 128 else 16
    if width % head_dim:
        raise InputError(f"width {width} does not divide into heads of {head_dim}; take a multiple of {head_dim}")
    heads = width // head_dim
    return DecoderConfig(
        vocab_size=BYTE_VOCABULARY,
        layers=layers,
        width=width,
        heads=heads,
        kv_heads=heads // 2 if heads % 2 == 0 else heads,
        head_dim=head_dim,
        mlp_width=16 * -(-8 * width // (3 * 16)),
        residual=residual,
    )


def vary_depth_weights(model: Decoder) -> None:
    """Give queries and key norms values, so that reads do not weigh all sources alike, as they do at the start."""
    stream = model.stream
    if not isinstance(stream, AttnResStream):
        return
    queries, key_weights = draw_vectors(len(stream.queries), stream.shape.width, torch.float32)
    with torch.no_grad():
        for n, key in enumerate(stream.queries):
            stream.queries[key].copy_(queries[n])
            stream.key_norms[key].copy_(key_weights[n])


def judge_decoder(model: Decoder) -> Verdict:
    """Compare the loss and every gradient of a decoder, on a few tokens, with those of the formula in float64."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(model.config.vocab_size, (1, CHECKED_TOKENS + 1), generator=generator)
    exact = copy.deepcopy(model).double()
    expected = _gradients(exact, reference_loss(exact, tokens))
    found = _gradients(model, token_losses(model, tokens).mean())
    worst = 0.0
    for name, wanted in expected.items():
        if name not in found:
            return Verdict(False, None, f"wrong: the gradient of {name} is missing")
        error = ((found[name].double() - wanted).norm() / wanted.norm()).item()
        if not error <= ALLOWED_ERROR:
            words = f"wrong: the gradient of {name} is off by {error:.1e}, allowed are {ALLOWED_ERROR:.0e}"
            return Verdict(False, error, words)
        worst = max(worst, error)
    return Verdict(True, worst, f"right to {worst:.0e}")


def reference_loss(model: Decoder, tokens: Int[Tensor, "batch time"]) -> Float[Tensor, ""]:
    """Mean loss of a decoder whose depth is walked by the definition."""
    logits = reference_logits(model, tokens[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def reference_logits(model: Decoder, tokens: Int[Tensor, "batch time"]) -> Float[Tensor, "batch time vocab"]:
    """Logits of a decoder whose depth is walked here, read by read, by the definition."""
    stream, sources = model.stream, (model.embedding(tokens),)
    for i in range(model.config.sublayers):
        mixture = _read(model, sources, str(i))
        normed = F.rms_norm(mixture, (stream.shape.width,), stream.pre_norms[str(i)], stream.shape.norm_eps)
        output = model.sublayers[str(i)](normed)
        if isinstance(stream, AttnResStream) and stream.reads.partition.opens_block(i):
            sources = (*sources, output)
        else:
            sources = (*sources[:-1], sources[-1] + output)
    return model.logits(_read(model, sources, AttnResStream.OUTPUT))


def _read(model: Decoder, sources: tuple[Tensor, ...], key: str) -> Tensor:
    stream = model.stream
    if not isinstance(stream, AttnResStream) or len(sources) == 1:
        return sources[-1]
    query, key_weight = stream.queries[key], stream.key_norms[key]
    return attn_res_reference(sources, query, key_weight, eps=stream.reads.key_eps)[0]


def _gradients(model: Decoder, loss: Tensor) -> Mapping[str, Tensor]:
    model.zero_grad()
    loss.backward()
    found = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    model.zero_grad()
    return {"loss": loss.detach(), **found}
