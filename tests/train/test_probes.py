"""The probe against the model's own forward and backward."""

import pytest
import torch

from attention_residuals import Additive, AttnRes, DecoderConfig, Residual, Sublayers, build_decoder
from attention_residuals.train import probe, token_losses

BATCH = torch.arange(1, 67).view(2, 33)
STREAMS = [Additive(), AttnRes(), AttnRes(Sublayers(3)), AttnRes(Sublayers(3), two_phase=True)]


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
