"""Ratios along the depth against outputs collected by hand."""

import json

import pytest
import torch
from torch import Tensor

from attention_residuals import Additive, AttnRes, Sublayers, build_decoder
from attention_residuals.experiments.analyses import walks
from attention_residuals.experiments.analyses.dynamics import dilutions, dynamics
from attention_residuals.train import ByteTokenizer, TokenData, TrainConfig, Trained, probe
from tests.experiments.analyses.support import NormedStream, decoder, windows


@torch.no_grad()
def test_ratios_of_the_standard_residual() -> None:
    model, batch = decoder(Additive()), windows()
    outputs: list[Tensor] = []
    for sublayer in model.sublayers.values():
        sublayer.register_forward_hook(lambda module, inputs, output: outputs.append(output.detach()))
    model(batch[:, :-1])
    ours = list(outputs)
    found = dilutions(model, batch)
    stream = [model.embedding(batch[:, :-1])]
    for output in ours:
        stream.append(stream[-1] + output)

    def ratio(one: Tensor, other: Tensor) -> float:
        return (one.norm(dim=-1) / other.norm(dim=-1)).mean().item()

    assert found["dilution"] == pytest.approx([ratio(f, h) for f, h in zip(ours, stream, strict=False)])
    assert found["next_share"] == pytest.approx([ratio(f, h) for f, h in zip(ours, stream[1:], strict=True)])
    assert found["head_share"] == pytest.approx([ratio(f, stream[-1]) for f in ours])


@torch.no_grad()
def test_shares_have_the_weights_of_the_reads() -> None:
    """At zero queries Full has the mean of its sources: the same shares as their sum."""
    model, standard = decoder(AttnRes()), decoder(Additive())
    for name, parameter in model.named_parameters():
        if "queries." in name:
            parameter.zero_()
    found, expected = dilutions(model, windows()), dilutions(standard, windows())
    assert found["next_share"] == pytest.approx(expected["next_share"], rel=1e-3)
    assert found["head_share"] == pytest.approx(expected["head_share"], rel=1e-3)
    mine, theirs = found["dilution"], expected["dilution"]
    assert mine is not None and theirs is not None
    assert mine == pytest.approx([ratio * (i + 1) for i, ratio in enumerate(theirs)], rel=1e-3)


def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model = decoder(AttnRes(Sublayers(4)))
    whole = dilutions(model, windows(5))
    monkeypatch.setattr(walks, "CHUNK_TOKENS", 14)
    for key, values in dilutions(model, windows(5)).items():
        assert values == pytest.approx(whole[key], rel=1e-12)


def test_a_stream_without_weights_has_no_shares() -> None:
    model = decoder(Additive())
    model.stream = NormedStream(model.stream.shape).double()
    found = dilutions(model, windows())
    assert found["next_share"] is None and found["head_share"] is None
    assert found["dilution"] is not None and len(found["dilution"]) == 6


def test_the_answer_has_what_the_probe_has() -> None:
    config = TrainConfig(decoder(AttnRes(Sublayers(4))).config, steps=1)
    model = build_decoder(config.model, seed=0)
    text = bytes(n % 11 for n in range(400))
    data = TokenData.from_bytes(text, text, 16)
    found = dynamics(Trained(config, model, ByteTokenizer(), 1), data)
    expected = vars(probe(model, data.validation_windows(4096)))
    assert {key: found[key] for key in expected} == expected
    assert found["block_sublayers"] == 4 and found["tokens"] == 400
    assert json.loads(json.dumps(found)) == found
