"""Tokenizers: there and back, special tokens that text cannot forge, invalid UTF-8, and faults by name."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers, trainers

from attention_residuals import InputError
from attention_residuals.train.text import ByteTokenizer, JsonTokenizer
from attention_residuals.train.text.tokenizer import invalid_sequences, read_tokenizer

TEXT = "A text with ünïcode, <|endoftext|> and\n  spaces. "


def trained(end: str = "<|endoftext|>", size: int = 300) -> Any:
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=[end], initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator([TEXT] * 10, trainer)
    return backend


def test_bytes_are_tokens() -> None:
    tokenizer = ByteTokenizer()
    tokens = tokenizer.encode_batch([b"caf\xe9", b""])
    assert [list(one) for one in tokens] == [[99, 97, 102, 233], []] and tokens[0].dtype == np.uint8
    assert tokenizer.decode([99, 97, 233]) == "ca\ufffd"


def test_a_tokenizer_file_goes_there_and_back(tmp_path: Path) -> None:
    trained().save(str(tmp_path / "tokenizer.json"))
    tokenizer = read_tokenizer(tmp_path / "tokenizer.json")
    (tokens,) = tokenizer.encode_batch([TEXT.encode()])
    assert tokenizer.decode(tokens.tolist()) == TEXT
    assert tokens.dtype == np.uint16 and len(tokens) < len(TEXT)


def test_text_cannot_forge_the_end_of_a_document() -> None:
    tokenizer = JsonTokenizer("test", trained().to_str())
    assert tokenizer.separator not in tokenizer.encode_batch([b"<|endoftext|>"])[0]


def test_a_copy_in_another_process_is_the_same() -> None:
    tokenizer = JsonTokenizer("test", trained().to_str())
    make, arguments = tokenizer.__reduce__()
    copy = make(*arguments)
    assert copy.fingerprint == tokenizer.fingerprint
    assert np.array_equal(copy.encode_batch([TEXT.encode()])[0], tokenizer.encode_batch([TEXT.encode()])[0])


def test_fingerprints_tell_tokenizers_apart() -> None:
    one, two = (JsonTokenizer("test", trained(size=size).to_str()) for size in (280, 290))
    assert one.fingerprint != two.fingerprint
    assert JsonTokenizer("another name", one.json).fingerprint == one.fingerprint


def test_invalid_utf8_is_replaced_and_counted() -> None:
    tokenizer = JsonTokenizer("test", trained().to_str())
    text = b"caf\xe9 and \xff\xff, and a real \xef\xbf\xbd"
    assert tokenizer.decode(tokenizer.encode_batch([text])[0].tolist()) == text.decode(errors="replace")
    assert invalid_sequences(text) == 3 and invalid_sequences(TEXT.encode()) == 0


def test_truncation_padding_and_dropout_of_a_file_are_switched_off() -> None:
    backend = trained()
    backend.enable_truncation(3)
    backend.enable_padding(length=50)
    backend.model.dropout = 0.5
    tokenizer = JsonTokenizer("test", backend.to_str())
    found = tokenizer.encode_batch([TEXT.encode()] * 5)
    assert tokenizer.decode(found[0].tolist()) == TEXT
    assert all(np.array_equal(found[0], other) for other in found)


@pytest.mark.parametrize(("size", "dtype"), [(256, "uint8"), (257, "uint16"), (65_536, "uint16"), (65_537, "uint32")])
def test_the_type_of_tokens_follows_from_the_vocabulary(size: int, dtype: str) -> None:
    tokenizer = ByteTokenizer()
    tokenizer.vocab_size = size
    assert tokenizer.dtype.name == dtype


def test_numbers_of_tokens_may_have_gaps() -> None:
    content = json.loads(trained().to_str())
    content["model"]["vocab"]["<far>"] = 70_000
    assert JsonTokenizer("test", json.dumps(content)).vocab_size == 70_001


def test_faults_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none.json cannot be read as a tokenizer .* give bytes, bpe:SIZE or"):
        read_tokenizer(tmp_path / "none.json")
    (tmp_path / "other.json").write_text('{"a": 1}')
    with pytest.raises(InputError, match=r"other.json is no tokenizer of the tokenizers library"):
        read_tokenizer(tmp_path / "other.json")
    trained(end="<stop>").save(str(tmp_path / "endless.json"))
    with pytest.raises(InputError, match=r"endless.json has no token that ends a document; add one of <\|endoftext"):
        read_tokenizer(tmp_path / "endless.json")


def test_a_missing_library_says_which_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(InputError, match=r"needs tokenizers: pip install 'attention-residuals\[text\]'"):
        JsonTokenizer("test", "{}")
