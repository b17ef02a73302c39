"""Depth maps of models whose maps are known."""

import json

import pytest
import torch

from attention_residuals import Additive, AttnRes, Decoder, Residual, Sublayers
from attention_residuals.experiments.analyses import walks
from attention_residuals.experiments.analyses.depth import depth, mean_mixing, mean_reads
from attention_residuals.experiments.analyses.walks import walk
from attention_residuals.streams import AttnResStream
from attention_residuals.train import ByteTokenizer, TokenData, TrainConfig, Trained
from tests.experiments.analyses.support import LAYERS, NormedStream, decoder, windows

TEXT = bytes(n * n % 11 for n in range(700))
DATA = TokenData.from_bytes(TEXT, TEXT, 16)


def answer(model: Decoder) -> dict:
    return depth(Trained(TrainConfig(model.config, steps=1), model, ByteTokenizer(), 1), DATA)


def test_the_standard_residual() -> None:
    found = answer(decoder(Additive()))
    assert found["reads"] is None and found["block_sublayers"] is None
    assert found["mixing"] == torch.ones(7, 7).tril().tolist()
    assert found["sources"] == ["embedding", *(f"output {n}" for n in range(1, 7))]
    assert found["ranks"]["mean_matrix"] == [1] * 4 and found["ranks"]["token_most"] == [1] * 5
    assert found["ranks"]["largest_possible"] == 4
    assert json.loads(json.dumps(found)) == found


@pytest.mark.parametrize("residual", [AttnRes(), AttnRes(Sublayers(4))], ids=["full", "block"])
def test_depth_attention(residual: Residual) -> None:
    model = decoder(residual)
    found = answer(model)
    batch = DATA.validation_windows(10**6)
    stream = model.stream
    assert isinstance(stream, AttnResStream)
    with torch.no_grad():
        states = walk(model, batch[:, :-1]).states
        weights = [stream.weights(state, i).flatten(1) for i, state in enumerate(states)]
    for row, tokens in zip(found["reads"]["weights"], weights, strict=True):
        assert row == pytest.approx(tokens.mean(1).tolist())
        assert sum(row) == pytest.approx(1)
    entropy = -(weights[2] * weights[2].log()).sum(0).mean().item()
    assert found["reads"]["entropy_shares"][2] == pytest.approx(entropy / torch.tensor(len(weights[2])).log().item())
    assert found["reads"]["entropy_shares"][0] == 1.0
    assert len(found["masking"]["everywhere"]) == len(found["sources"]) == len(found["reads"]["weights"][-1])
    assert found["ranks"]["token_most"][-1] <= found["ranks"]["largest_possible"]
    if found["block_sublayers"] == 1:
        assert found["mixing"][2 * LAYERS] == pytest.approx(found["reads"]["weights"][-1])
    else:
        embedding, first, last = found["reads"]["weights"][-1]
        assert found["mixing"][2 * LAYERS] == pytest.approx([embedding, *[first] * 4, *[last] * 2])


def test_means_do_not_depend_on_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = decoder(AttnRes(Sublayers(4))), windows(5)
    reads, mixing = mean_reads(model, batch), mean_mixing(model, batch)
    monkeypatch.setattr(walks, "CHUNK_TOKENS", 14)
    again, matrix = mean_reads(model, batch), mean_mixing(model, batch)
    assert reads is not None and again is not None and mixing is not None and matrix is not None
    for one, other in zip(again["weights"], reads["weights"], strict=True):
        assert one == pytest.approx(other, rel=1e-12)
    assert again["entropy_shares"] == pytest.approx(reads["entropy_shares"], rel=1e-12)
    assert torch.allclose(matrix, mixing, rtol=1e-12)


def test_a_stream_without_a_matrix_says_so() -> None:
    model = decoder(Additive())
    model.stream = NormedStream(model.stream.shape).double()
    found = answer(model)
    assert found["mixing"] is None and found["ranks"] is None and found["masking"] is None and found["reads"] is None
