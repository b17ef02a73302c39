"""Documents from files, folders and the standard library; bad input by name."""

from pathlib import Path

import pytest

from attention_residuals import InputError
from attention_residuals.train import Document, fingerprint, load_documents, read_documents, standard_library


def test_a_folder_gives_its_text_files_once(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "a.txt").write_bytes(b"first\n")
    (tmp_path / "b.py").write_bytes(b"second\n")
    (tmp_path / "copy.txt").write_bytes(b"first\n")
    (tmp_path / "image.bin").write_bytes(b"\x89PNG\0\0")
    (tmp_path / "empty.txt").touch()
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "config").write_bytes(b"hidden\n")
    assert sorted(document.data for document in read_documents([tmp_path])) == [b"first\n", b"second\n"]


def test_invalid_utf8_is_kept_as_bytes(tmp_path: Path) -> None:
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9\n")
    assert read_documents([tmp_path / "latin.txt"])[0].data == b"caf\xe9\n"


def test_the_default_is_the_standard_library() -> None:
    documents = load_documents([])
    assert documents == standard_library()
    names = {document.name for document in documents}
    assert "argparse.py" in names and not any("site-packages" in name or name.startswith("test/") for name in names)
    assert sum(len(document.data) for document in documents) > 5_000_000


@pytest.mark.parametrize(
    ("content", "message"), [(None, "does not exist"), (b"", "is empty"), (b"text\0more", "is binary")]
)
def test_a_bad_file_is_named(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "corpus.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=f"corpus.txt {message}"):
        read_documents([path])


def test_a_folder_without_text_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no text file"):
        read_documents([tmp_path])


def test_the_fingerprint_is_of_content_alone() -> None:
    one, two = Document("a", b"x"), Document("b", b"y")
    assert fingerprint([one, two]) == fingerprint([two, Document("renamed", b"x")])
    assert fingerprint([one]) != fingerprint([two])
