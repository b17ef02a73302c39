"""A decoder in which recurrent sublayers stand where attention stood: roles and first values of their parameters."""

import torch

from attention_residuals import Additive, AttnRes, Decoder, DecoderConfig, Residual
from attention_residuals.models import Role, init_decoder, init_weights, parameter_roles
from attention_residuals.nn import KimiDeltaAttention

RECURRENT = ("0", "4")


def hybrid(residual: Residual) -> Decoder:
    """Layers 0 and 2 are recurrent, 1 is attention."""
    model = Decoder(DecoderConfig.from_depth(3, vocab_size=11, residual=residual))
    for i in RECURRENT:
        model.sublayers[i] = KimiDeltaAttention(model.config.width, 2, 12)
    init_decoder(model, seed=0)
    return model


def test_every_parameter_has_a_role_and_starts_by_its_name() -> None:
    model = hybrid(Additive())
    roles = {name[12:]: role for name, role in parameter_roles(model).items() if name.startswith("sublayers.0.")}
    matrices = {name for name, role in roles.items() if role is Role.MATRIX}
    projections = {"query", "key", "value", "beta", "gate_down", "gate_up", "decay.down", "decay.up"}
    assert matrices == {f"{name}.weight" for name in projections}
    assert {name: role for name, role in roles.items() if name not in matrices} == {
        **{f"{name}_convolution.weight": Role.CONVOLUTION for name in ("query", "key", "value")},
        "decay.A_log": Role.STATE_DECAY,
        "decay.dt_bias": Role.STATE_DECAY,
        "output_norm.weight": Role.NORM,
        "output.weight": Role.OUTPUT,
    }
    again = hybrid(AttnRes())
    for i in RECURRENT:
        for one, two in zip(model.sublayers[i].parameters(), again.sublayers[i].parameters(), strict=True):
            assert torch.equal(one, two)
    assert not torch.equal(
        model.get_parameter("sublayers.0.decay.A_log"), model.get_parameter("sublayers.4.decay.A_log")
    )


def test_decays_start_as_published() -> None:
    layer = KimiDeltaAttention(16, 200, 10)
    init_weights(layer, seed=0)
    rates, steps = layer.decay.A_log.exp(), torch.nn.functional.softplus(layer.decay.dt_bias)
    assert 1 <= rates.min() < 1.5 and 15.5 < rates.max() <= 16 and abs(rates.mean() - 8.5) < 1
    # Rounding of a bias near -7 is a share of 5e-7 of the step.
    assert 1e-3 * (1 - 1e-5) <= steps.min() < 1.1e-3 and 0.09 < steps.max() <= 0.1 * (1 + 1e-5)
    assert abs(steps.log().mean() - torch.tensor(1e-2).log()) < 0.1
    with torch.device("meta"):
        layer = KimiDeltaAttention(16, 2, 4)
    init_weights(layer.to_empty(device="cpu"), seed=0)
    assert all(parameter.isfinite().all() for parameter in layer.parameters())
