"""The order of the house: imports run one way, and some things stand nowhere."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import attention_residuals

PACKAGE = Path(attention_residuals.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))

# Each room and the rooms it may import from, besides itself.
ALLOWED = {
    "errors": set[str](),
    "allocator": set[str](),
    "configs": {"errors"},
    "ops": {"errors"},
    "streams": {"errors", "ops"},
    "nn": {"errors", "ops"},
    "models": {"errors", "ops", "streams", "nn"},
    "distributed": {"errors", "configs", "ops", "streams", "nn", "models"},
    "train": {"errors", "configs", "ops", "streams", "nn", "models", "distributed"},
    "inference": {"errors", "ops", "streams", "nn", "models"},
    "hf": {"errors", "configs", "ops", "streams", "nn", "models", "inference", "train"},
    "dialects": {"errors", "configs", "streams", "nn", "models"},
    "retrofit": {"errors", "configs", "streams", "models", "train", "hf"},
    "recipes": {"errors", "configs", "streams", "models", "train"},
    "experiments": {
        "errors",
        "allocator",
        "configs",
        "ops",
        "streams",
        "nn",
        "models",
        "train",
        "inference",
        "hf",
        "retrofit",
        "recipes",
    },
    "bench": {
        *("errors", "allocator", "configs", "ops", "streams", "nn", "models", "distributed", "train", "inference"),
        "retrofit",
    },
    "commands": {
        *("errors", "allocator", "configs", "streams", "models", "distributed", "train", "inference", "hf"),
        *("dialects", "retrofit", "recipes", "experiments", "bench"),
    },
    "cli": {"errors", "distributed", "commands"},
    "__init__": {"errors", "allocator", "ops", "streams", "models"},
}
HEAVY = {
    "matplotlib": "figures.py",
    "scipy": "figures.py",
    "transformers": "hf",
    "tokenizers": "hf",
    "lm_eval": "scorer.py",
}
"""Extras that are imported at the top of a file in one place alone: the name of a file or a room."""
WITHOUT_TORCH = (
    "experiments/ablation/figures.py",
    "experiments/ablation/paper.py",
    "experiments/ablation/report.py",
    "experiments/arm_runs.py",
    "experiments/compute.py",
    "experiments/document.py",
    "experiments/evaluation/scores.py",
    "experiments/evaluation/table.py",
    "experiments/figures.py",
    "experiments/ladder/analysis.py",
    "experiments/ladder/figures.py",
    "experiments/ladder/report.py",
    "experiments/report.py",
    *(f"experiments/moe/{name}.py" for name in ("analysis", "figures", "report")),
    "experiments/overview.py",
    "experiments/results.py",
    "experiments/statistics.py",
    "experiments/studies/contest.py",
    "experiments/studies/parts.py",
    "experiments/studies/reading.py",
    "experiments/studies/reports.py",
    "experiments/studies/state.py",
    "experiments/sweep/analysis.py",
    "experiments/sweep/figures.py",
    "experiments/sweep/paper.py",
    "experiments/sweep/report.py",
    *(f"experiments/dynamics/{name}.py" for name in ("paper", "shapes", "findings", "figures", "report")),
    *(f"experiments/depth/{name}.py" for name in ("paper", "findings", "figures", "report")),
    *(f"experiments/inspection/{name}.py" for name in ("figures", "report")),
    *(f"experiments/tuning/{name}.py" for name in ("findings", "figures", "report")),
)


def room(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: Path) -> Iterator[tuple[str, bool]]:
    """Every imported module of a file, and whether the import stands at the top level."""
    tree = ast.parse(path.read_text())
    top = set(tree.body)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node in top) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            yield node.module or "", node in top


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_run_one_way(path: Path) -> None:
    mine = room(path)
    for module, _ in imports(path):
        parts = module.split(".")
        if parts[0] == "attention_residuals" and len(parts) > 1:
            assert parts[1] == mine or parts[1] in ALLOWED[mine], f"{mine} must not import {module}"


def test_every_room_has_its_place() -> None:
    assert {room(path) for path in FILES} == set(ALLOWED)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_heavy_extras_are_imported_where_used(path: Path) -> None:
    for module, at_top in imports(path):
        place = HEAVY.get(module.split(".")[0])
        assert not at_top or place in (None, path.name, room(path)), f"{module} is imported at the top"
        # What imports transformers is as heavy as transformers itself.
        assert not (at_top and module.startswith("attention_residuals.hf")) or room(path) == "hf"


@pytest.mark.parametrize("name", WITHOUT_TORCH)
def test_what_reads_run_folders_knows_no_model(name: str) -> None:
    for module, _ in imports(PACKAGE / name):
        assert not module.startswith("torch")
        assert not re.match(r"attention_residuals\.(ops|streams|nn|models|train|inference|retrofit)", module)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_pickles_and_no_residual_branches(path: Path) -> None:
    text = path.read_text()
    assert not re.search(r"\bpickle\b|torch\.load\(|weights_only", text)
    assert not re.search(r"if .*(use_attn_?res|attnres_enabled)", text)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_files_and_functions_stay_small(path: Path) -> None:
    tree = ast.parse(path.read_text())
    assert len(path.read_text().splitlines()) <= 500
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            assert (node.end_lineno or 0) - node.lineno < 75, f"{node.name} is long"


def test_tests_mirror_the_source() -> None:
    tests = Path(__file__).parent
    for name in ALLOWED.keys() - {"errors", "allocator", "configs", "cli", "__init__"}:
        assert list((tests / name).glob("test_*.py")), f"no tests for {name}"
