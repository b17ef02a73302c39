"""Reports on disk: what stands in the page and in the text, and the findings that other pages repeat."""

import json
from pathlib import Path

from attention_residuals.experiments.arm_runs import estimate
from attention_residuals.experiments.document import (
    Heading,
    Paragraph,
    Points,
    Table,
    read_findings,
    write_document,
)


def test_findings_are_the_strong_sentences_over_the_first_heading(tmp_path: Path) -> None:
    opening = [Paragraph("a is < b", strong=True), Paragraph("setting"), Paragraph("c ± d", strong=True)]
    write_document(tmp_path, "A title", [*opening, Heading("Numbers"), Paragraph("a detail", strong=True)])
    assert read_findings(tmp_path) == ["a is < b", "c ± d"]
    assert json.loads((tmp_path / "findings.json").read_text(encoding="utf-8"))["title"] == "A title"


def test_a_folder_without_a_report_has_found_nothing(tmp_path: Path) -> None:
    assert read_findings(tmp_path) == []


def test_points_are_a_list_in_both(tmp_path: Path) -> None:
    page = write_document(tmp_path, "A title", [Points(["a < b", "c"]), Table(("x", "y"), [("1", "2|3")])])
    assert "<ul><li>a &lt; b</li><li>c</li></ul>" in page.read_text()
    text = (tmp_path / "report.md").read_text()
    assert "\n* a < b\n* c\n" in text and "| 1 | 2\\|3 |" in text


def test_large_estimates_are_told_by_their_power_of_ten() -> None:
    assert estimate([4e8, 5e8]).text(1) == "4.5e+08 ± 6.4e+08"
    assert estimate([1.0, 3.0]).text() == "2.00 ± 12.71"
