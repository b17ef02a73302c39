"""What of a run on a GPU needs none: the schedule, what is written, rivals, bars, and the checks themselves."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from attention_residuals.bench.contest import Entry
from attention_residuals.bench.gpu import rivals
from attention_residuals.bench.gpu.bars import bar_table
from attention_residuals.bench.gpu.checks import OPERATOR_CHECKS, Gauge, Inputs
from attention_residuals.bench.gpu.command import main
from attention_residuals.bench.gpu.contests import GpuContest
from attention_residuals.bench.gpu.jobs import Found, Job, run_jobs
from attention_residuals.bench.gpu.parts import DTYPE, Verdicts
from attention_residuals.bench.gpu.schedule import Clock, Part, run_parts
from attention_residuals.bench.gpu.settings import TINY
from attention_residuals.bench.gpu.writing import Report
from attention_residuals.bench.problems import Verdict
from attention_residuals.bench.results import Column, Table

needs_no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")


class Hours:
    """A clock that moves when told."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def table(title: str, **row: float | str) -> Table:
    return Table(title, [Column("implementation", "implementation")], [dict(row)])


def test_parts_run_in_order_each_in_its_time(tmp_path: Path) -> None:
    hours, report, seen = Hours(), Report(tmp_path, {}), []

    def run(context: object, clock: Clock) -> None:
        seen.append(clock.left)
        hours.now += 6
        if len(seen) == 1:
            raise RuntimeError("a kernel\nthat fails")

    parts = {name: Part(8, run) for name in ("one", "two", "three")}
    run_parts(parts, None, Clock(10, hours), report)
    assert seen == [8, 4]
    written = json.loads((tmp_path / "results.json").read_text())
    assert written["parts"] == {
        "one": "failed: RuntimeError: a kernel that fails",
        "two": "done in 4 s",
        "three": "not begun: no time was left",
    }


def test_each_table_is_written_at_once_and_replaces_an_earlier_one(tmp_path: Path) -> None:
    report = Report(tmp_path, {"device": "one"})
    report.add(table("read", implementation="first"))
    report.add(table("block", implementation="other"))
    report.add(table("read", implementation="second"))
    written = json.loads((tmp_path / "results.json").read_text())
    assert [one["title"] for one in written["tables"]] == ["block", "read"]
    text = (tmp_path / "results.md").read_text()
    assert "| second |" in text and "first" not in text
    assert not list(tmp_path.glob("*.draft"))


def test_an_absent_rival_is_a_sentence() -> None:
    assert str(rivals.find("no_such_package", "anything")).startswith("not installed")
    assert rivals.flash_block(2, 7168) == "takes widths that are powers of two only"
    assert callable(rivals.single_rivals(64)["einsum"])


def test_a_rival_has_its_allowance() -> None:
    hours = Hours()
    allowances = rivals.Allowances(5, hours)
    for spent, words in ((3, None), (3, None), (0, "not measured: earlier shapes took 6 s to compile and tune")):
        with allowances.counted("rival") as refusal:
            assert refusal == words
            hours.now += spent


def test_a_contest_has_a_row_for_everybody() -> None:
    entries = [
        Entry("ours", {"forward": lambda: None}, lambda: Verdict(True, 0.0, "right")),
        Entry("wrong", {"forward": lambda: None}, lambda: Verdict(False, 1.0, "wrong")),
        Entry("absent", absent="not installed"),
    ]
    contest = GpuContest("read", entries, "ours", floor_bytes={"forward": 1000}, device="cpu", rounds=5)
    (found,) = contest.run_on_gpu(Clock(10), rivals.Allowances())
    rows = {row["implementation"]: row for row in found.rows}
    assert rows["ours"]["ratio"] == 1.0 and rows["ours"]["to_floor"]
    assert "seconds" not in rows["wrong"] and rows["absent"]["status"] == "not installed"
    (late,) = contest.run_on_gpu(Clock(0), rivals.Allowances())
    assert late.rows[0]["status"] == "not measured: no time was left"


def test_what_fails_its_checks_is_not_timed() -> None:
    name = str(DTYPE).removeprefix("torch.")
    verdicts = Verdicts([Found("mix", name, 64, False, ""), Found("variants", name, 128, False, "")])
    assert verdicts.failure(64) == "not timed: mix failed the checks"
    assert verdicts.failure(128) is None and not verdicts.all_right


def test_bars_take_the_worst() -> None:
    def read(ratio: float) -> Table:
        return table(f"read: {ratio}: forward", implementation="attn_res", to_floor=ratio)

    def block(name: str, ratio: float) -> Table:
        return table("block: forward + backward", implementation=name, ratio=ratio)

    rows = {str(row["bar"]): row for row in bar_table([read(1.1), read(1.2), block("flash-attn-res", 2.5)]).rows}
    assert rows["one read forward, times the floor"] | {"bar": ""} == {
        "bar": "", "limit": 1.15, "found": 1.2, "status": "not met",
    }  # fmt: skip
    assert rows["Block training, times as fast as flash-attn-res"]["status"] == "met"
    assert rows["decode, microseconds a read"]["status"] == "not measured"


@pytest.mark.parametrize("name", OPERATOR_CHECKS)
def test_the_checks_pass_what_is_right(name: str) -> None:
    for count in (1, 3):
        inputs = Inputs("cpu", torch.float32, count, 5, 24)
        OPERATOR_CHECKS[name](inputs)
        assert 0 < inputs.gauge.worst <= 1


def test_the_gauge_catches_what_is_wrong() -> None:
    right = torch.ones(4, dtype=torch.float64)
    for wrong in (right.float() + 1e-5, right.float() * float("nan")):
        gauge = Gauge("cpu")
        gauge.compare(wrong, right, 1.0)
        gauge.compare(right.float(), right, 1.0)
        assert not gauge.right


def test_a_check_that_breaks_and_one_out_of_time_are_findings() -> None:
    broken = Job("no such kind", torch.float32, 64, TINY)
    (found,) = next(run_jobs([broken], 0, Clock(100)))
    assert not found.right and "KeyError" in found.words
    (late,) = next(run_jobs([broken], 0, Clock(0)))
    assert late.words == "not checked: no time was left"


@needs_no_gpu
def test_without_a_gpu_it_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    for options, words in (
        ([], "torch finds no CUDA device here; run this on a machine with an NVIDIA GPU"),
        (["--tiny"], "torch finds no CUDA device here; --tiny can do without one under TRITON_INTERPRET=1"),
    ):
        assert main(["--out", str(tmp_path / "out"), *options]) == 2
        assert capsys.readouterr().err == f"attnres: {words}\n"
    assert not (tmp_path / "out").exists()


@needs_no_gpu
@pytest.mark.slow
def test_the_parts_that_time_run_without_a_gpu(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "attention_residuals.bench.gpu", "--tiny", "--out", str(tmp_path / "out")]
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run([*command, "--parts", "blocks", "bars"], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    written = json.loads((tmp_path / "out" / "results.json").read_text())
    assert "block" in written["tables"][0]["title"]
    assert any("right" in row["status"] for row in written["tables"][0]["rows"] if row["implementation"] == "two-phase")
