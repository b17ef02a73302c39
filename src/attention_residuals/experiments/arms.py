"""Short names for residual streams, for the command line: `standard`, `full`, `block6+sum`, and all rivals."""

import dataclasses
import re
from typing import Any

from attention_residuals.errors import InputError
from attention_residuals.streams import (
    MHC,
    Additive,
    AttnRes,
    DeepNorm,
    DeltaAttnRes,
    DenseFormer,
    DenseNet,
    Highway,
    HyperConnections,
    LayerScale,
    LowRankAttnRes,
    MHCLite,
    PostNorm,
    Query,
    ReadScale,
    Rescaled,
    Residual,
    ReZero,
    RmsBlockAttnRes,
    SiameseNorm,
    StaticDepth,
    Sublayers,
    Weighting,
)

DEFAULT_BLOCK_SUBLAYERS = 4

RIVALS: dict[str, Residual] = {
    "standard": Additive(),
    "rms-block": RmsBlockAttnRes(),
    "delta": DeltaAttnRes(),
    "lowrank": LowRankAttnRes(),
    "multihead": AttnRes(heads=8),
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

VARIANTS: dict[str, dict[str, Any]] = {
    "sum": {"scale": ReadScale.SUM},
    "sigmoid": {"weighting": Weighting.SIGMOID},
    "nonorm": {"key_norm": False},
    "dynamic": {"query": Query.PROJECTED},
    "static": {"query": Query.NONE},
}
"""What may be added to `full` or `blockN`, each with a `+`: fields of `AttnRes`."""

NUMBERED = {"window": "window_sublayers", "heads": "heads"}
"""The same for what is followed by a number, as in `window8`."""


def allowed() -> str:
    """The names there are, in words."""
    variants = ", ".join(f"+{name}" for name in (*VARIANTS, *(f"{name}N" for name in NUMBERED)))
    return f"full, block or blockN (N sublayers a block), with {variants} behind it; or {', '.join(RIVALS)}"


def residual_of(name: str) -> Residual:
    """The residual stream that a name stands for.

    Raises:
        InputError: a name that stands for none, or variants that contradict each other.
    """
    if name in RIVALS:
        return RIVALS[name]
    stem, *variants = name.split("+")
    match = re.fullmatch(r"full|block(\d*)", stem)
    if match is None:
        raise _no_model(name)
    block = 1 if stem == "full" else int(match[1] or DEFAULT_BLOCK_SUBLAYERS)
    changes: dict[str, Any] = {}
    for variant in variants:
        change = _change(variant)
        if not change or change.keys() & changes.keys():
            raise _no_model(name)
        changes |= change
    return dataclasses.replace(AttnRes(Sublayers(block)), **changes)


def _change(variant: str) -> dict[str, Any]:
    """The fields that a variant sets; none for a name that is no variant."""
    match = re.fullmatch(r"([a-z]+)(\d+)", variant)
    if match and match[1] in NUMBERED:
        return {NUMBERED[match[1]]: int(match[2])}
    return VARIANTS.get(variant, {})


def _no_model(name: str) -> InputError:
    return InputError(f"'{name}' is no model; choose {allowed()}")
