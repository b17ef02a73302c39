"""Short names for residual streams, for the command line: `standard`, `full`, `block6`, `full+sum`, and all rivals."""

import dataclasses
import re
from typing import Any

from attention_residuals.errors import InputError
from attention_residuals.streams import (
    MHC,
    Additive,
    AttnRes,
    DeepNorm,
    DenseFormer,
    DenseNet,
    Highway,
    HyperConnections,
    LayerScale,
    MHCLite,
    PostNorm,
    ReadScale,
    Rescaled,
    Residual,
    ReZero,
    SiameseNorm,
    StaticDepth,
    Sublayers,
)

DEFAULT_BLOCK_SUBLAYERS = 4

RIVALS: dict[str, Residual] = {
    "standard": Additive(),
    "rescaled": Rescaled(),
    "rezero": ReZero(),
    "layerscale": LayerScale(),
    "highway": Highway(),
    "postnorm": PostNorm(),
    "deepnorm": DeepNorm(),
    "siamesenorm": SiameseNorm(),
    "static": StaticDepth(),
    "static-free": StaticDepth(softmax=False),
    "densenet": DenseNet(),
    "denseformer": DenseFormer(),
    "hc": HyperConnections(),
    "mhc": MHC(),
    "mhc-lite": MHCLite(),
}
"""Streams that have a name and nothing to add to it."""

VARIANTS: dict[str, dict[str, Any]] = {"sum": {"scale": ReadScale.SUM}}
"""What may be added to `full` or `blockN`, each with a `+`: fields of `AttnRes`."""


def allowed() -> str:
    """The names there are, in words."""
    return (
        f"full, block or blockN (N sublayers a block), with {', '.join(f'+{name}' for name in VARIANTS)} behind it; "
        f"or {', '.join(RIVALS)}"
    )


def residual_of(name: str) -> Residual:
    """The residual stream that a name stands for.

    Raises:
        InputError: a name that stands for none.
    """
    if name in RIVALS:
        return RIVALS[name]
    stem, *variants = name.split("+")
    match = re.fullmatch(r"full|block(\d*)", stem)
    if match is None or not set(variants) <= VARIANTS.keys() or len(set(variants)) < len(variants):
        raise InputError(f"'{name}' is no model; choose {allowed()}")
    block = 1 if stem == "full" else int(match[1] or DEFAULT_BLOCK_SUBLAYERS)
    changes: dict[str, Any] = {}
    for variant in variants:
        changes |= VARIANTS[variant]
    return dataclasses.replace(AttnRes(Sublayers(block)), **changes)
