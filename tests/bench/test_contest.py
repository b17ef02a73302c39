"""No times for what is wrong, absent or fails."""

import torch
from torch import Tensor

from attention_residuals.bench.contest import Contest, Entry
from attention_residuals.bench.problems import (
    EPS,
    Computation,
    Problem,
    differentiate,
    expected_results,
    judge,
)
from attention_residuals.bench.reads import read_problem
from attention_residuals.bench.results import Value
from attention_residuals.bench.rivals import einsum_listing, unstacked
from attention_residuals.bench.timing import LEAST_ROUNDS, Budget, Quartiles, median_interval, time_in_turns
from attention_residuals.ops import attn_res

from .support import silent


def problem() -> Problem:
    return read_problem(3, 8, 16, torch.float32)


def ours(leaves: list[Tensor], vectors: list[Tensor]) -> list[Tensor]:
    return [attn_res(leaves, *vectors, eps=EPS)]


def without_norm(leaves: list[Tensor], vectors: list[Tensor]) -> list[Tensor]:
    """Keys that were not normalised."""
    values = torch.stack(leaves)
    weights = (values @ (vectors[0] * vectors[1])).softmax(0)
    return [(weights.unsqueeze(-1) * values).sum(0)]


def without_gradient(leaves: list[Tensor], vectors: list[Tensor]) -> list[Tensor]:
    """The right output, but the query is a constant to it."""
    return ours(leaves, [vectors[0].detach(), vectors[1]])


def slightly_wrong_gradient(leaves: list[Tensor], vectors: list[Tensor]) -> list[Tensor]:
    (mixture,) = ours(leaves, vectors)
    return [mixture + 1e-3 * (leaves[1] - leaves[1].detach())]


def failing(leaves: list[Tensor], vectors: list[Tensor]) -> list[Tensor]:
    raise RuntimeError("no such device\nand more")


def entry(name: str, computation: Computation, given: Problem) -> Entry:
    expected = expected_results(given)
    return Entry(name, {"both": lambda: differentiate(computation, given)}, lambda: judge(computation, given, expected))


def rows_of(*entries: Entry) -> dict[Value, dict[str, Value]]:
    contest = Contest("read", entries, "ours", floor_bytes={"both": 1000})
    (table,) = contest.run(Budget(2, 0.1), silent())
    return {row["implementation"]: row for row in table.rows}


def test_only_what_is_right_has_times() -> None:
    given = problem()
    rivals = {"wrong": without_norm, "constant": without_gradient, "off": slightly_wrong_gradient, "failing": failing}
    rows = rows_of(
        entry("ours", ours, given),
        *(entry(name, rival, given) for name, rival in rivals.items()),
        Entry("absent", absent="not installed"),
    )
    assert "right" in str(rows["ours"]["status"]) and rows["ours"]["seconds"]
    assert "wrong: output 0 is off by" in str(rows["wrong"]["status"])
    assert rows["constant"]["status"] == "wrong: the gradient of vector 0 is missing"
    assert "wrong: the gradient of input 1 is off by" in str(rows["off"]["status"])
    assert rows["failing"]["status"] == "failed: RuntimeError: no such device and more"
    assert rows["absent"]["status"] == "not installed"
    for name in (*rivals, "absent"):
        assert not {"seconds", "ratio", "to_floor", "peak_bytes"} & rows[name].keys()


def test_the_rivals_are_right() -> None:
    given = problem()
    rows = rows_of(
        entry("ours", ours, given), entry("einsum", einsum_listing, given), entry("unstacked", unstacked, given)
    )
    assert all("right" in str(row["status"]) for row in rows.values())
    assert rows["ours"]["ratio"] == 1.0


def test_the_oracle_in_pieces_is_the_oracle(monkeypatch) -> None:
    given = problem()
    whole = expected_results(given)
    monkeypatch.setattr("attention_residuals.bench.problems.ORACLE_BYTES", 8 * 16 * 8 * 3 * 3)  # three tokens at once
    for piecewise, one in zip(expected_results(given), whole, strict=True):
        torch.testing.assert_close(piecewise, one, rtol=1e-12, atol=1e-12)


def test_tasks_take_turns_and_a_budget_ends_them() -> None:
    calls: list[str] = []
    tasks = {name: lambda name=name: calls.append(name) for name in "ab"}
    seconds = time_in_turns(tasks, Budget(repeats=1000, seconds=1e-9), silent())
    assert len(seconds["a"]) == len(seconds["b"]) == LEAST_ROUNDS
    rounds = calls[-2 * LEAST_ROUNDS :]
    assert all({*rounds[n : n + 2]} == {"a", "b"} for n in range(0, len(rounds), 2))


def test_quartiles() -> None:
    assert Quartiles.of([5.0]) == Quartiles(5.0, 5.0, 5.0)
    assert Quartiles.of([4.0, 1.0, 3.0, 2.0, 5.0]) == Quartiles(2.0, 3.0, 4.0)


def test_the_interval_of_a_median_is_that_of_the_sign_test() -> None:
    assert median_interval([1.0] * 5) is None  # five values say nothing at 95 %
    # Ranks from tables of the binomial distribution.
    for count, ranks in ((6, (1, 6)), (10, (2, 9)), (20, (6, 15)), (30, (10, 21)), (40, (14, 27))):
        assert median_interval([float(n) for n in range(count, 0, -1)]) == ranks
    generator = torch.Generator().manual_seed(0)
    draws = torch.randn(2000, 25, generator=generator).exp().tolist()
    held = sum(low <= 1 <= high for low, high in filter(None, map(median_interval, draws)))
    assert 0.94 <= held / len(draws) <= 0.97
