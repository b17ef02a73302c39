"""Every benchmark on its tiny shape, in this process; and the command around them."""

import importlib.util
import io
import json
from pathlib import Path

import pytest
import torch
from rich.console import Console

from attention_residuals import cli
from attention_residuals.bench.catalogue import BENCHMARKS, find_benchmark, make_request
from attention_residuals.bench.memory import bound_units, state_units
from attention_residuals.bench.report import print_half, write_results
from attention_residuals.bench.results import Half, Table
from attention_residuals.inference import Session

from .support import silent


def tables_of(name: str, *only: str) -> list[Table]:
    request = make_request(name, shapes=["tiny"], repeats=5, seconds=0.1, only=only)
    return find_benchmark(name).run(request, silent())


@pytest.mark.parametrize(
    ("name", "only"),
    [
        ("read", ("attn_res", "einsum", "fla-naive")),
        ("block", ()),
        ("full", ()),
        ("step", ()),
        ("decode", ()),
        ("prefill", ()),
        ("retrofit", ()),
    ],
)
def test_ours_is_right_and_timed(name: str, only: tuple[str, ...]) -> None:
    for table in tables_of(name, *only):
        for row in table.rows:
            if row["implementation"] == "fla-naive" and not importlib.util.find_spec("fla"):
                assert "pip install 'attention-residuals[bench]'" in str(row["status"]) and "seconds" not in row
            else:
                assert "right" in str(row["status"]) and row["seconds"] and row["peak_bytes"]


def test_depth_is_paired_with_the_standard_residual() -> None:
    (table,) = tables_of("depth")
    assert [row["model"] for row in table.rows] == ["standard", "block", "full"]
    assert all("right" in str(row["status"]) for row in table.rows)
    assert all("layer_seconds" in row for row in table.rows[1:])


def test_memory_is_counted_against_its_bounds() -> None:
    (table,) = tables_of("memory")
    assert len(table.rows) == 4
    for row in table.rows:
        assert isinstance(row["more_units"], float)
        # Reads keep less for their norms than the standard residual does, which makes up for some of their sources.
        assert row["recompute"] != "nothing" or 0 < row["more_units"] <= 8
    assert state_units("full", 12) == 25 and state_units("block", 12) == 9
    assert bound_units("block", 12, "nothing") == 48 and bound_units("block", 12, "every sublayer") == 2 * 9 + 2 * 3


def test_the_memory_of_a_prefill_is_counted_beside_its_sources() -> None:
    request = make_request("prefill-memory", shapes=["8192,64,2,2"])
    (table,) = find_benchmark("prefill-memory").run(request, silent())
    expected = {"standard": 1, "block": 3, "full": 5}
    for at_once, in_chunks in zip(table.rows[::2], table.rows[1::2], strict=True):
        assert at_once["model"] == in_chunks["model"] and at_once["sources"] == expected[str(at_once["model"])]
        whole, part = (float(row["beyond_bytes"] or 0) for row in (at_once, in_chunks))
        state = 4 * 8192 * 64 * expected[str(at_once["model"])]
        assert at_once["state_bytes"] == state and in_chunks["state_bytes"] == state / 8
        assert whole > state
        assert part < whole / 2


def test_a_session_that_is_wrong_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Session, "_mask", lambda *_: None)
    for row in tables_of("decode")[0].rows:
        assert "wrong: a logit is off" in str(row["status"]) and "seconds" not in row


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_compiled_rivals_are_right() -> None:
    for table in tables_of("read", "einsum-compiled", "unstacked-compiled"):
        assert all("right" in str(row["status"]) for row in table.rows)


@pytest.mark.slow
def test_the_command_writes_what_it_prints(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    arguments = ["--shape", "tiny", "--repeats", "5", "--only", "attn_res", "--allocator", "shipped", "--threads", "1"]
    assert cli.main(["bench", "read", *arguments, "--out", str(out)]) == 0
    printed = capfd.readouterr().out
    assert "x floor" in printed and str(out) in printed
    written = json.loads((out / "results.json").read_text())
    (half,) = written["halves"]
    assert half["allocator"] == "shipped" and half["machine"]["threads"] == 1
    assert [table["rows"][0]["implementation"] for table in half["tables"]] == ["attn_res", "attn_res"]
    assert half["tables"][0]["facts"]["floor_units_forward"] == 4


def test_results_name_no_machine_and_no_folder(tmp_path: Path) -> None:
    request = make_request("memory", shapes=["tiny"])
    half = Half("shipped", {"processor": "a processor", "threads": 2}, tables_of("memory"))
    write_results(request, [half], tmp_path)
    console = Console(file=io.StringIO())
    print_half(half, console)
    text = (tmp_path / "results.md").read_text() + (tmp_path / "results.json").read_text()
    assert str(Path.cwd()) not in text and str(Path.home()) + "/" not in text
    assert "| block | 2 | nothing |" in text and "processor a processor, threads 2." in text


def test_figures_are_drawn_from_rows(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from attention_residuals.bench.figures import FIGURES, draw

    for name in FIGURES:
        (path,) = draw(name, [Half("shipped", {}, tables_of(name))], tmp_path)
        assert path.stat().st_size > 1000
    assert draw("read", [], tmp_path) == []


def test_the_list_names_every_benchmark(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "--list"]) == 0
    listed = capsys.readouterr().out
    assert all(benchmark.summary in listed for benchmark in BENCHMARKS.values())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name a benchmark; there are read, block"),
        (["reed"], "'reed' is no benchmark; did you mean read?"),
        (["read", "--shape", "8,4096"], "shape 8,4096 has 2 numbers; read takes SOURCES,TOKENS,WIDTH"),
        (["read", "--shape", "a,b,c"], "'a,b,c' is no shape"),
        (["block", "--shape", "8,1,64,64"], "READS in shape 8,1,64,64 is 1; it must be at least 2"),
        (["read", "--only", "liger"], "read has no 'liger'; it has attn_res"),
        (["step", "--dtype", "bfloat16"], "step runs in float32 alone"),
        (["read", "--threads", "0"], "threads is 0"),
        (["read", "--repeats", "0"], "repeats is 0"),
        (["read", "--seconds", "-1"], "seconds is -1.0"),
    ],
)
def test_wrong_input_is_one_sentence(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["bench", *arguments, "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_folder_that_exists_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "read", "--out", str(tmp_path)]) == 2
    assert f"{tmp_path} exists" in capsys.readouterr().err


def test_low_precision_is_held_to_its_own_tolerance() -> None:
    request = make_request("read", shapes=["tiny"], dtype="bfloat16", repeats=5, seconds=0.1, only=["attn_res"])
    assert request.torch_dtype is torch.bfloat16
    for table in find_benchmark("read").run(request, silent()):
        assert "right" in str(table.rows[0]["status"])
