"""The operation count against torch's own, and by hand."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from attention_residuals import Decoder, DecoderConfig
from attention_residuals.configs import to_plain
from attention_residuals.experiments.compute import matrix_parameters, training_operations
from attention_residuals.models import Experts, Gated, GroupedQuery, HybridConfig, KimiDelta


@pytest.mark.parametrize("layers", [1, 6])
def test_matrices_are_counted_as_torch_counts_them(layers: int) -> None:
    config = DecoderConfig.from_depth(layers)
    with torch.device("meta"):
        model, batch = Decoder(config), torch.zeros(1, 8, dtype=torch.long)
    counter = FlopCounterMode(display=False)
    with counter:
        model(batch)
    counts = counter.get_flop_counts()["Global"]
    products = sum(count for name, count in counts.items() if str(name) in ("aten.mm", "aten.addmm"))
    assert products == 2 * matrix_parameters(to_plain(config)) * 8


def test_a_token_costs_three_forwards_with_its_causal_context() -> None:
    model = {"layers": 2, "width": 4, "heads": 2, "kv_heads": 1, "head_dim": 2, "mlp_width": 8, "vocab_size": 10}
    weights = 2 * (4 * 4 + 4 * 2 + 4 * 2 + 4 * 4 + 3 * 4 * 8) + 4 * 10
    context, features = (3 + 1) / 2, 2 * 2  # of all heads
    scores = 2 * (2 + 2) * context * features  # in two layers: products with keys, and sums of values
    assert matrix_parameters(model) == weights
    assert training_operations(model, 3, 5) == pytest.approx(5 * 3 * (2 * weights + scores))


def test_of_experts_those_at_work_are_counted_as_torch_counts_them() -> None:
    mixers = (GroupedQuery(4, 2, 4), GroupedQuery(2, 1, 4))
    config = HybridConfig(32, 12, mixers, (Gated(20), Experts(hidden=8, experts=6, top_k=2, shared=1)))
    model, batch = Decoder(config), torch.arange(8).unsqueeze(0)
    counter = FlopCounterMode(display=False)
    with counter, torch.no_grad():
        model(batch)
    counts = counter.get_flop_counts()["Global"]
    products = sum(count for name, count in counts.items() if str(name) in ("aten.mm", "aten.addmm"))
    assert products == 2 * matrix_parameters(to_plain(config)) * 8


def test_a_hybrid_of_equal_layers_costs_what_the_decoder_does() -> None:
    decoder = DecoderConfig.from_depth(3)
    mixer = GroupedQuery(decoder.heads, decoder.kv_heads, decoder.head_dim)
    hybrid = HybridConfig(decoder.vocab_size, decoder.width, (mixer,) * 3, (Gated(decoder.mlp_width),) * 3)
    assert training_operations(to_plain(hybrid), 16, 100) == training_operations(to_plain(decoder), 16, 100)


def test_what_is_not_counted_is_not_guessed() -> None:
    with pytest.raises(AssertionError, match="no count of the operations of KimiDelta"):
        matrix_parameters(to_plain(HybridConfig(32, 8, (KimiDelta(1, 8),), (Gated(8),))))
