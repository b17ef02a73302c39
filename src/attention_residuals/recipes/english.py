"""Models that read English (US presidential messages, the `english` extra) through a BPE trained on that text."""

import dataclasses

from attention_residuals.models import DecoderConfig
from attention_residuals.streams import Additive, AttnRes, Blocks, Residual
from attention_residuals.train import WSD, Precision, Recompute, TextConfig, TrainConfig

VOCABULARY = 4096


def _english(name: str, layers: int, residual: Residual, steps: int) -> TrainConfig:
    return TrainConfig(
        name=name,
        model=DecoderConfig.from_depth(layers, vocab_size=VOCABULARY, residual=residual),
        text=TextConfig(("english",), tokenizer=f"bpe:{VOCABULARY}"),
        schedule=WSD(),
        steps=steps,
        checkpoint_every_steps=250,
        probe_every_steps=250,
    )


def standard() -> TrainConfig:
    """12 layers, 1.1 M parameters, the standard residual."""
    return _english("english-standard", 12, Additive(), steps=2000)


def block() -> TrainConfig:
    """12 layers, 1.1 M parameters, 8 blocks."""
    return _english("english-block", 12, AttnRes(Blocks(8)), steps=2000)


def block_large() -> TrainConfig:
    """36 layers, 16.2 M parameters, 8 blocks of 9 sublayers: for a GPU, in bfloat16, half of it recomputed."""
    config = _english("english-block-large", 36, AttnRes(Blocks(8)), steps=5000)
    return dataclasses.replace(
        config, batch_sequences=32, precision=Precision.BFLOAT16, recompute=Recompute.ALTERNATE, compile_sublayers=True
    )
