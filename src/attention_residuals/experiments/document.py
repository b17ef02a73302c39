"""A report as a list of parts, written as one self-contained HTML page and as Markdown beside its figures.

Knows no torch. A figure is a PNG file in the report's folder; its numbers belong in a table under it.
"""

import base64
import html
import itertools
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

CSS_PIXELS_PER_INCH = 96
DOTS_PER_INCH = 160
"""Of the figures."""

FINDINGS = "findings.json"
"""Beside every report: its title, and the sentences that it opens with."""

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #1a1a1a; max-width: 1080px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.7rem; } li { margin: 0.2rem 0; } h2 { font-size: 1.2rem; margin-top: 2.2rem; }
img { max-width: 100%; display: block; margin: 0.5rem 0; }
table { border-collapse: collapse; font-size: 0.9rem; margin: 0.6rem 0; }
th, td { padding: 0.3rem 0.7rem; text-align: right; border-bottom: 1px solid #ddd; vertical-align: bottom; }
td { white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
.note { color: #555; font-size: 0.9rem; } details { margin: 0.5rem 0; } summary { cursor: pointer; color: #0072b2; }
.scroll { overflow-x: auto; }
"""


class Part(ABC):
    """A piece of a report."""

    @abstractmethod
    def html(self, folder: Path) -> str:
        """As HTML; files lie in `folder`."""

    @abstractmethod
    def markdown(self) -> str:
        """As Markdown, to stand in the folder of the files."""


@final
@dataclass(frozen=True)
class Heading(Part):
    """The title of what follows."""

    text: str

    def html(self, folder: Path) -> str:
        return f"<h2>{html.escape(self.text)}</h2>"

    def markdown(self) -> str:
        return f"## {self.text}"


@final
@dataclass(frozen=True)
class Paragraph(Part):
    """Sentences; `strong` for a finding, `note` for how it was made."""

    text: str
    strong: bool = False
    note: bool = False

    def html(self, folder: Path) -> str:
        text = html.escape(self.text)
        return f"<p{' class=note' if self.note else ''}>{f'<b>{text}</b>' if self.strong else text}</p>"

    def markdown(self) -> str:
        return f"**{self.text}**" if self.strong else self.text


@final
@dataclass(frozen=True)
class Points(Part):
    """Sentences as a list."""

    texts: Sequence[str]

    def html(self, folder: Path) -> str:
        return f"<ul>{''.join(f'<li>{html.escape(text)}</li>' for text in self.texts)}</ul>"

    def markdown(self) -> str:
        return "\n".join(f"* {text}" for text in self.texts)


@final
@dataclass(frozen=True)
class Link(Part):
    """A file of the report's folder or below it, to be opened."""

    text: str
    file: str

    def html(self, folder: Path) -> str:
        return f'<p><a href="{html.escape(self.file)}">{html.escape(self.text)}</a></p>'

    def markdown(self) -> str:
        return f"[{self.text}]({self.file})"


@final
@dataclass(frozen=True)
class Figure(Part):
    """A PNG file of the report's folder, named relative to it."""

    file: str
    alternative: str

    def html(self, folder: Path) -> str:
        data = (folder / self.file).read_bytes()
        # Width and height stand in the header of every PNG: the page must not jump while it loads.
        width = int.from_bytes(data[16:20], "big") * CSS_PIXELS_PER_INCH // DOTS_PER_INCH
        source = base64.b64encode(data).decode()
        return f'<img width={width} alt="{html.escape(self.alternative)}" src="data:image/png;base64,{source}">'

    def markdown(self) -> str:
        return f"![{self.alternative}]({self.file})"


@final
@dataclass(frozen=True)
class Table(Part):
    """Cells as text, the first column left, all others right. With a `summary` the page shows it folded up."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    summary: str | None = None

    def html(self, folder: Path) -> str:
        head = "".join(f"<th>{html.escape(cell)}</th>" for cell in self.header)
        body = "".join(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in self.rows)
        table = f"<div class=scroll><table><tr>{head}</tr>{body}</table></div>"
        if self.summary is None:
            return table
        return f"<details><summary>{html.escape(self.summary)}</summary>{table}</details>"

    def markdown(self) -> str:
        lines = [self.header, ["---", *("---:" for _ in self.header[1:])], *self.rows]
        table = "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
        return table if self.summary is None else f"{self.summary}:\n\n{table}"


def write_document(folder: Path, title: str, parts: Sequence[Part]) -> Path:
    """Write `report.html`, `report.md` and `findings.json` into `folder`, each whole or not at all; the page's path."""
    body = "\n".join(part.html(folder) for part in parts)
    page = (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f"<style>{STYLE}</style></head>\n<body>\n<h1>{html.escape(title)}</h1>\n{body}\n</body></html>\n"
    )
    text = "\n\n".join([f"# {title}", *(part.markdown() for part in parts)]) + "\n"
    found = json.dumps({"title": title, "findings": _findings(parts)}, indent=2, ensure_ascii=False) + "\n"
    for name, content in (("report.md", text), (FINDINGS, found), ("report.html", page)):
        draft = folder / f".{name}"
        draft.write_text(content, encoding="utf-8")
        os.replace(draft, folder / name)
    return folder / "report.html"


def read_findings(folder: Path) -> list[str]:
    """What the report in `folder` found, sentence by sentence; nothing if there is none."""
    file = folder / FINDINGS
    return json.loads(file.read_text(encoding="utf-8"))["findings"] if file.exists() else []


def _findings(parts: Sequence[Part]) -> list[str]:
    """The strong sentences over the first heading."""
    opening = itertools.takewhile(lambda part: not isinstance(part, Heading), parts)
    return [part.text for part in opening if isinstance(part, Paragraph) and part.strong]
