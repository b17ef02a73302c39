"""Masking against a forward pass written out by hand, in which a masked source never entered the softmax."""

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from attention_residuals import Additive, AttnRes, Decoder, ReadScale, Sublayers
from attention_residuals.experiments.analyses.masking import mask_sources
from attention_residuals.streams import AttnResStream
from tests.experiments.analyses.support import LAYERS, NormedStream, decoder, windows

Masked = Callable[[int, int], bool]
"""Whether a source (by number) is masked in a read."""


def depth_attention_loss(model: Decoder, batch: Tensor, masked: Masked) -> float:
    """The loss of a decoder on Attention Residuals, every read a softmax over the sources that are not masked."""
    stream, x = model.stream, model.embedding(batch[:, :-1])
    assert isinstance(stream, AttnResStream)
    cut, sources = stream.reads.partition, [x]

    def mixture(read: int, key: str) -> Tensor:
        kept = [n for n in range(len(sources)) if len(sources) == 1 or not masked(read, n)]
        values = torch.stack([sources[n] for n in kept])
        if key not in stream.queries:
            return values.mean(0) * (len(sources) if stream.reads.scale is ReadScale.SUM else 1)
        keys = F.rms_norm(values, (values.shape[-1],), stream.key_norms[key], stream.reads.key_eps)
        weights = (keys @ stream.queries[key]).softmax(0)
        return (weights.unsqueeze(-1) * values).sum(0) * stream.gain(len(sources))

    for i in range(2 * LAYERS):
        h = F.rms_norm(mixture(i, str(i)), (x.shape[-1],), stream.pre_norms[str(i)], stream.shape.norm_eps)
        output = model.sublayers[str(i)](h)
        if cut.opens_block(i):
            sources.append(output)
        else:
            sources[-1] = sources[-1] + output
    last = 2 * LAYERS
    if stream.reads.output_read:
        head = mixture(last, "output")
    else:
        head = torch.stack([source for n, source in enumerate(sources) if not masked(last, n)]).sum(0)
    return F.cross_entropy(model.logits(head).flatten(0, 1), batch[:, 1:].flatten()).item()


@pytest.mark.parametrize(
    "residual",
    [
        AttnRes(),
        AttnRes(Sublayers(4)),
        AttnRes(Sublayers(2), two_phase=False, scale=ReadScale.SUM),
        AttnRes(output_read=False),
    ],
    ids=repr,
)
@torch.no_grad()
def test_depth_attention_as_written_out(residual: AttnRes) -> None:
    model, batch = decoder(residual), windows()
    found = mask_sources(model, batch)
    assert found is not None and found["own_sources"]
    base = depth_attention_loss(model, batch, lambda read, source: False)
    assert found["loss"] == pytest.approx(base, abs=1e-12)
    sources = [len(row) for row in found["effects"]]
    assert sources == [1, *(1 + math.ceil(i / residual.block.in_sublayers(2 * LAYERS)) for i in range(1, 7))]
    for read, effects in enumerate(found["effects"]):
        for source, effect in enumerate(effects):
            if sources[read] == 1:
                assert effect is None
                continue
            loss = depth_attention_loss(model, batch, lambda r, s, mine=(read, source): (r, s) == mine)
            assert effect == pytest.approx(loss - base, abs=1e-10)
    for source, effect in enumerate(found["everywhere"]):
        loss = depth_attention_loss(model, batch, lambda r, s, mine=source: s == mine)
        assert effect == pytest.approx(loss - base, abs=1e-10)
    assert max(abs(effect) for row in found["effects"][1:] for effect in row) > 1e-3, "queries that look somewhere"


def additive_loss(model: Decoder, batch: Tensor, masked: Masked) -> float:
    """The loss of a decoder on the standard residual, every read the sum of what is not masked."""
    outputs = [model.embedding(batch[:, :-1])]
    for i in range(2 * LAYERS):
        h = torch.stack([output for n, output in enumerate(outputs) if not masked(i, n)]).sum(0)
        weight = model.stream.pre_norms[str(i)]
        outputs.append(model.sublayers[str(i)](F.rms_norm(h, weight.shape, weight, 1e-6)))
    head = torch.stack([output for n, output in enumerate(outputs) if not masked(2 * LAYERS, n)]).sum(0)
    return F.cross_entropy(model.logits(head).flatten(0, 1), batch[:, 1:].flatten()).item()


@torch.no_grad()
def test_terms_of_a_sum_are_missing() -> None:
    model, batch = decoder(Additive()), windows()
    found = mask_sources(model, batch)
    assert found is not None and not found["own_sources"]
    base = additive_loss(model, batch, lambda read, source: False)
    for read, effects in enumerate(found["effects"]):
        assert len(effects) == read + 1
        for source, effect in enumerate(effects):
            if read > 0:
                loss = additive_loss(model, batch, lambda r, s, mine=(read, source): (r, s) == mine)
                assert effect == pytest.approx(loss - base, abs=1e-10)
    assert found["everywhere"][0] is None
    for source, effect in enumerate(found["everywhere"][1:], start=1):
        loss = additive_loss(model, batch, lambda r, s, mine=source: s == mine)
        assert effect == pytest.approx(loss - base, abs=1e-10)


def test_errors_are_those_of_the_mean_over_windows() -> None:
    found = mask_sources(decoder(AttnRes()), windows(1))
    assert found is not None and found["errors"][1] == [None, None]
    many = mask_sources(decoder(AttnRes()), windows(4))
    assert many is not None and all(error > 0 for error in many["errors"][1])


@pytest.mark.parametrize("claims", [False, True])
def test_what_is_no_weighted_sum_is_not_masked(claims: bool) -> None:
    model = decoder(Additive())
    stream = NormedStream(model.stream.shape).double()
    stream.claims = claims
    model.stream = stream
    assert mask_sources(model, windows()) is None
