"""Floating-point operations of training, by the formula that reports state. Knows no torch."""

from collections.abc import Iterator, Mapping
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
        model: a `DecoderConfig`, or a `HybridConfig` of softmax attention, MLPs and experts, as a plain object.
        sequence_tokens: T, which attention scores grow with.
        tokens: how many are trained on.
    """
    scores = sum(2 * mixer["heads"] * mixer["head_dim"] * (sequence_tokens + 1) for mixer, _ in _layers(model))
    return 3 * (2 * matrix_parameters(model) + scores) * tokens


def matrix_parameters(model: Mapping[str, Any]) -> int:
    """Weights that multiply every token: the matrices of all sublayers, and the head.

    Of experts those that a token goes through, and the router.
    """
    layers = sum(_attention(model, mixer) + _channels(model, channels) for mixer, channels in _layers(model))
    return layers + model["width"] * model["vocab_size"]


def _layers(model: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Token mixer and channel mixer of each layer."""
    if "mixers" in model:
        return zip(model["mixers"], model["channels"], strict=True)
    return iter([(model, {"type": "Gated", "hidden": model["mlp_width"]})] * model["layers"])


def _attention(model: Mapping[str, Any], mixer: Mapping[str, Any]) -> int:
    assert "kv_heads" in mixer, f"no count of the operations of {mixer['type']}"
    return model["width"] * mixer["head_dim"] * (2 * mixer["heads"] + 2 * mixer["kv_heads"])


def _channels(model: Mapping[str, Any], channels: Mapping[str, Any]) -> int:
    if channels["type"] == "Gated":
        return 3 * model["width"] * channels["hidden"]
    at_work = channels["top_k"] + channels["shared"]
    return 3 * model["width"] * at_work * channels["hidden"] + model["width"] * channels["experts"]
