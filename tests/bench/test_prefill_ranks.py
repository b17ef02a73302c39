"""What a rank holds in a prefill: counted on processes, and the paper's figures."""

import pytest
import torch

from attention_residuals.bench import prefill_ranks
from attention_residuals.bench.catalogue import find_benchmark, make_request
from attention_residuals.bench.prefill_ranks import held_bytes, paper_table
from attention_residuals.errors import InputError

from .support import silent


def test_the_papers_figures_follow_from_counted_tensors() -> None:
    rows = paper_table().rows
    assert [row["sources_bytes"] for row in rows] == [15_032_385_536, 1_879_048_192, 234_881_024]
    assert [row["closed_bytes"] for row in rows] == [9 * 2 * 7168 * 2**power for power in (17, 14, 11)]


def test_a_view_counts_as_what_it_keeps_alive() -> None:
    whole, other = torch.zeros(4, 8), torch.zeros(2, 8)
    assert held_bytes((whole[:1], whole[2:], other)) == 4 * 8 * 4 + 2 * 8 * 4


@pytest.mark.dist
def test_ranks_hold_what_the_closed_form_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefill_ranks, "RANKS", (2,))
    request = make_request("prefill-ranks", shapes=["37,256,2,2"])
    _, table = find_benchmark("prefill-ranks").run(request, silent())
    sources = {"standard": 0, "block": 2, "full": 4}
    shares = (19, 3)  # of 37 tokens at once, and of 5 of them, by two ranks
    assert [(row["model"], row["chunk_tokens"]) for row in table.rows] == [(n, t) for n in sources for t in (37, 5)]
    for n, row in enumerate(table.rows):
        assert "right" in str(row["status"])
        bytes_a_tensor = shares[n % 2] * 256 * 4
        state = (sources[str(row["model"])] + 1) * bytes_a_tensor
        assert row["sources_bytes"] == state - bytes_a_tensor
        assert row["state_bytes"] == row["closed_bytes"] == state
        assert isinstance(row["beyond_bytes"], int) and row["beyond_bytes"] > state


def test_heads_that_four_ranks_cannot_share_are_refused_before_any_starts() -> None:
    request = make_request("prefill-ranks", shapes=["32,320,2,2"])
    with pytest.raises(InputError, match=r"heads is 10, which 4 .tensor. does not divide"):
        find_benchmark("prefill-ranks").run(request, silent())
