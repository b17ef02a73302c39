"""Kimi Linear, small and whole: Kimi Delta Attention, latent attention, mixtures of experts."""

from attention_residuals.models import kimi_linear, kimi_linear_48b
from attention_residuals.streams import Additive, AttnRes, Residual, Sublayers
from attention_residuals.train import WSD, AdamW, Muon, Precision, Recompute, TextConfig, TrainConfig


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


def whole() -> TrainConfig:
    """Kimi Linear 48B-A3B: 27 layers, 49.1 B parameters, Block of 6 sublayers, 1T tokens with Muon and WSD.

    4,096 tokens a sequence, 8M a step and 119,209 steps are the paper's (arXiv 2603.15031, section 5). Rates, warm-up,
    decay and balancing are not given there: those here are ours, and were tried at no such size. Text and tokenizer are
    for the user to name.
    """
    return TrainConfig(
        name="kimi-linear-48b-a3b",
        model=kimi_linear_48b(),
        text=TextConfig(sequence_tokens=4096),
        steps=119_209,
        batch_sequences=2048,
        optimizer=Muon(learning_rate=4e-4, adamw=AdamW(learning_rate=4e-4, depth_learning_rate=1.2e-4)),
        schedule=WSD(warmup_share=0.02),
        precision=Precision.BFLOAT16,
        recompute=Recompute.FULL,
        evaluate_every_steps=1000,
        checkpoint_every_steps=1000,
    )
