"""Small models in the manner of Kimi Linear: Kimi Delta Attention, latent attention, mixtures of experts."""

from attention_residuals.models import kimi_linear
from attention_residuals.streams import Additive, AttnRes, Residual, Sublayers
from attention_residuals.train import TrainConfig


def _eight_layers(name: str, residual: Residual) -> TrainConfig:
    return TrainConfig(
        name=name,
        model=kimi_linear(8, residual=residual),
        steps=800,
        checkpoint_every_steps=200,
        probe_every_steps=100,
    )


def standard() -> TrainConfig:
    """Kimi Linear in small: 8 layers, 0.5 M parameters of which 0.3 M work for a token, the standard residual."""
    return _eight_layers("kimi-standard", Additive())


def block() -> TrainConfig:
    """As `kimi-standard`, with Block Attention Residuals in 4 blocks of 4 sublayers."""
    return _eight_layers("kimi-block", AttnRes(Sublayers(4)))
