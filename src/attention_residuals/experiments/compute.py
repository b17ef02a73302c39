"""Floating-point operations of training, by the formula that reports state. Knows no torch."""

from collections.abc import Mapping
from typing import Any

FORMULA = (
    "C counts the floating-point operations of the baseline's training: for each token three times (forward, and twice "
    "that backward) 2 operations for each weight of a matrix, the head included and the embedding not, and "
    "4 x heads x head width x (T + 1) / 2 a layer for attention scores and sums over a causal context of T tokens. "
    "Reads over the depth are not counted: every model of a size has the same C, as in the paper"
)


def training_operations(model: Mapping[str, Any], sequence_tokens: int, tokens: float = 1) -> float:
    """Operations to train on `tokens` tokens in sequences of `sequence_tokens`.

    Args:
        model: a `DecoderConfig` as a plain object: layers, width, heads, kv_heads, head_dim, mlp_width, vocab_size.
        sequence_tokens: T, which attention scores grow with.
        tokens: how many are trained on.
    """
    scores = 2 * model["heads"] * model["head_dim"] * (sequence_tokens + 1)
    return 3 * (2 * matrix_parameters(model) + model["layers"] * scores) * tokens


def matrix_parameters(model: Mapping[str, Any]) -> int:
    """Weights that multiply every token: the matrices of all sublayers, and the head."""
    attention = model["width"] * model["head_dim"] * (2 * model["heads"] + 2 * model["kv_heads"])
    mlp = 3 * model["width"] * model["mlp_width"]
    return model["layers"] * (attention + mlp) + model["width"] * model["vocab_size"]
