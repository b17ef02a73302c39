"""The probe against the model's own forward and backward."""

import math

import pytest
import torch

from attention_residuals import Additive, AttnRes, DecoderConfig, Residual, Sublayers, Weighting, build_decoder
from attention_residuals.streams import AttnResStream, DeltaAttnRes
from attention_residuals.train import probe, token_losses

BATCH = torch.arange(1, 67).view(2, 33)
STREAMS = [Additive(), AttnRes(), AttnRes(Sublayers(3)), AttnRes(Sublayers(3), two_phase=False)]


@pytest.mark.parametrize("residual", STREAMS)
def test_parameter_gradients_are_those_of_training(residual: Residual) -> None:
    model = build_decoder(DecoderConfig.from_depth(2, residual=residual), seed=0)
    found = probe(model, BATCH)
    assert all(parameter.grad is None for parameter in model.parameters()), "the model is left as it was"
    token_losses(model, BATCH).mean().backward()
    for i, sublayer in enumerate(model.sublayers.values()):
        gradients = [parameter.grad.flatten() for parameter in sublayer.parameters() if parameter.grad is not None]
        assert found.parameter_gradient_norm[i] == pytest.approx(torch.cat(gradients).norm().item(), rel=1e-5)


def test_sizes_are_those_of_the_outputs() -> None:
    model = build_decoder(DecoderConfig.from_depth(2), seed=0)
    outputs: list[torch.Tensor] = []
    for sublayer in model.sublayers.values():
        sublayer.register_forward_hook(lambda module, inputs, output: outputs.append(output.detach()))
    found = probe(model, BATCH)
    stream = model.embedding(BATCH[:, :-1]).detach()
    for i, output in enumerate(outputs):
        stream = stream + output
        assert found.output_rms[i] == pytest.approx(output.square().mean().sqrt().item())
        assert found.carried_rms[i] == pytest.approx(stream.square().mean().sqrt().item())


def test_depth_weights_are_uniform_at_the_start_and_fit_the_schedule() -> None:
    model = build_decoder(DecoderConfig.from_depth(2, residual=AttnRes(Sublayers(3))), seed=0)
    weights = probe(model, BATCH).depth_weights
    assert [len(row) for row in weights] == [1, 2, 2, 2, 3]
    assert all(weight == pytest.approx(1 / len(row)) for row in weights for weight in row)


def test_a_stream_without_depth_weights_has_none() -> None:
    assert probe(build_decoder(DecoderConfig.from_depth(1), seed=0), BATCH).depth_weights == []


def test_entropies_at_the_start_are_those_of_equal_weights() -> None:
    found = probe(build_decoder(DecoderConfig.from_depth(2, residual=AttnRes(Sublayers(3))), seed=0), BATCH)
    sources = [1, 2, 2, 2, 3]
    assert found.depth_entropy == pytest.approx([math.log(count) for count in sources])
    assert found.depth_entropy_share == pytest.approx([1.0] * 5)
    assert found.depth_top_weight == pytest.approx([1 / count for count in sources])


def test_entropies_are_taken_token_by_token() -> None:
    model = build_decoder(DecoderConfig.from_depth(2, residual=AttnRes()), seed=0)
    with torch.no_grad():
        model.get_parameter("stream.queries.2").normal_(generator=torch.Generator().manual_seed(0)).mul_(3)
    found = probe(model, BATCH)
    state = model.stream.start(model.embedding(BATCH[:, :-1]))
    for i in range(2):
        state = model.step(state, i)
    assert isinstance(model.stream, AttnResStream)
    weights = model.stream.weights(state, 2).double().detach().flatten(1)
    entropies = -(weights * weights.log()).sum(0)
    assert found.depth_entropy[2] == pytest.approx(entropies.mean().item(), rel=1e-5)
    assert found.depth_entropy_share[2] == pytest.approx(entropies.mean().item() / math.log(3), rel=1e-5)
    assert found.depth_top_weight[2] == pytest.approx(weights.max(0).values.mean().item(), rel=1e-5)
    of_the_mean = -sum(weight * math.log(weight) for weight in found.depth_weights[2])
    assert found.depth_entropy[2] < 0.9 * of_the_mean, "the mean over tokens would hide how sharp a read is"


def test_a_weight_of_zero_has_an_entropy() -> None:
    model = build_decoder(DecoderConfig.from_depth(1, residual=AttnRes()), seed=0)
    with torch.no_grad():
        model.get_parameter("stream.queries.1").fill_(1e4)
    found = probe(model, BATCH)
    assert found.depth_entropy[1] == pytest.approx(0, abs=0.05) and found.depth_top_weight[1] > 0.9


@pytest.mark.parametrize("residual", [AttnRes(weighting=Weighting.SIGMOID), DeltaAttnRes(), AttnRes(heads=2)])
def test_weights_that_do_not_sum_to_one_have_entropies_of_their_shares(residual: Residual) -> None:
    model = build_decoder(DecoderConfig.from_depth(2, residual=residual), seed=0)
    found = probe(model, BATCH)
    assert found.depth_entropy_share == pytest.approx([1.0] * 5)
    assert found.depth_top_weight == pytest.approx([1, 1 / 2, 1 / 3, 1 / 4, 1 / 5])
    with torch.no_grad():
        model.get_parameter("stream.queries.3").normal_(generator=torch.Generator().manual_seed(0)).mul_(3)
    found, state = probe(model, BATCH), model.stream.start(model.embedding(BATCH[:, :-1]))
    for i in range(3):
        state = model.step(state, i)
    assert isinstance(model.stream, AttnResStream)
    weights = model.stream.weights(state, 3).double().detach().flatten(1)
    assert found.depth_weights[3] == pytest.approx(weights.mean(1).tolist(), rel=1e-5)
    shares = weights / weights.sum(0)
    assert found.depth_entropy[3] == pytest.approx(-(shares * shares.log()).sum(0).mean().item(), rel=1e-5)
    assert found.depth_top_weight[3] == pytest.approx(shares.max(0).values.mean().item(), rel=1e-5)
    assert len(found.source_names) == len(found.depth_weights[-1])
