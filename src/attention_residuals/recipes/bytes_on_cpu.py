"""Small models that read bytes; the text is Python's own library unless told otherwise. Minutes on two cores."""

import dataclasses

from attention_residuals.models import DecoderConfig
from attention_residuals.streams import Additive, AttnRes, Residual, Sublayers
from attention_residuals.train import Muon, TrainConfig


def _twelve_layers(name: str, residual: Residual) -> TrainConfig:
    """The models of `attnres compare`, with checkpoints."""
    return TrainConfig(
        name=name,
        model=DecoderConfig.from_depth(12, residual=residual),
        steps=878,
        checkpoint_every_steps=200,
        probe_every_steps=100,
    )


def standard() -> TrainConfig:
    """12 layers, 0.6 M parameters, the standard residual."""
    return _twelve_layers("standard", Additive())


def block() -> TrainConfig:
    """12 layers, 0.6 M parameters, Block Attention Residuals in 6 blocks of 4 sublayers."""
    return _twelve_layers("block", AttnRes(Sublayers(4)))


def full() -> TrainConfig:
    """12 layers, 0.6 M parameters, Full Attention Residuals."""
    return _twelve_layers("full", AttnRes())


def block_muon() -> TrainConfig:
    """As `block`, matrices under Muon."""
    return dataclasses.replace(block(), name="block-muon", optimizer=Muon())


def tiny() -> TrainConfig:
    """4 layers, 22 k parameters: seconds, to see that everything works."""
    model = DecoderConfig.from_depth(4, residual=AttnRes(Sublayers(2)))
    return TrainConfig(name="tiny", model=model, steps=100, checkpoint_every_steps=50)
