"""The operation count against torch's own, and by hand."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from attention_residuals import Decoder, DecoderConfig
from attention_residuals.configs import to_plain
from attention_residuals.experiments.compute import matrix_parameters, training_operations


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
