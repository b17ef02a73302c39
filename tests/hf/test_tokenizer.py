"""The tokenizers of runs in transformers: token for token the same, after being saved too."""

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from attention_residuals.hf.tokenizer import byte_characters, fast_tokenizer
from attention_residuals.train import ByteTokenizer, JsonTokenizer
from tests.train.text.test_tokenizer import trained

TEXTS = [
    "",
    " ",
    "  two  spaces, a\ttab\r\n and  lines \n\n",
    "caf\u00e9 \u4e16\u754c \U0001f600 e\u0301 \ufb01 \u0130",
    "\u0100 <|endoftext|> </s> <0x00>",  # the first is how byte-level tokenizers write NUL
    "".join(map(chr, range(0xD800))),
]


def there_and_back(tokenizer: Any, path: Path) -> Any:
    tokenizer.save_pretrained(path)
    return AutoTokenizer.from_pretrained(path)


@pytest.fixture(scope="module")
def byte_level(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return there_and_back(fast_tokenizer(ByteTokenizer(), 10**6), tmp_path_factory.mktemp("bytes"))


@pytest.mark.parametrize("text", TEXTS)
def test_bytes_are_tokens_and_text_again(byte_level: Any, text: str) -> None:
    ids = byte_level(text)["input_ids"]
    assert ids == list(text.encode()) and byte_level.decode(ids) == text
    assert byte_level(text, add_special_tokens=False)["input_ids"] == ids


def test_there_are_just_256_tokens(byte_level: Any) -> None:
    assert len(byte_level) == byte_level.vocab_size == 256
    assert [byte_level.convert_tokens_to_ids(byte_characters()[byte]) for byte in range(256)] == list(range(256))
    assert byte_level.decode([97, 255, 98]) == "a\ufffdb"


def test_the_separator_ends_and_pads_and_no_text_can_forge_it(byte_level: Any) -> None:
    assert byte_level.eos_token_id == byte_level.pad_token_id == 0
    assert 0 not in byte_level(byte_level.eos_token)["input_ids"]
    assert byte_level.decode([0, 97, 0], skip_special_tokens=True) == "a"
    found = byte_level(["a", "abc"], padding=True)
    assert dict(found) == {"input_ids": [[0, 0, 97], [97, 98, 99]], "attention_mask": [[0, 0, 1], [1, 1, 1]]}


def test_a_trained_tokenizer_gives_the_same_tokens(tmp_path: Path) -> None:
    ours = JsonTokenizer("bpe:300", trained().to_str())
    theirs = there_and_back(fast_tokenizer(ours, 10**6), tmp_path)
    for text in TEXTS:
        ids = theirs(text)["input_ids"]
        assert ids == ours.encode_batch([text.encode()])[0].tolist() and theirs.decode(ids) == text
    assert theirs.eos_token_id == theirs.pad_token_id == ours.separator
    assert ours.separator not in theirs("<|endoftext|>")["input_ids"]


def test_tokens_that_training_never_saw_are_not_added(tmp_path: Path) -> None:
    from tokenizers.processors import TemplateProcessing

    backend = trained("</s>")
    backend.post_processor = TemplateProcessing(single="</s> $A </s>", special_tokens=[("</s>", 0)])
    backend.enable_truncation(2)
    theirs = there_and_back(fast_tokenizer(JsonTokenizer("own.json", backend.to_str()), 10**6), tmp_path)
    assert theirs.eos_token_id == 0 and 0 not in theirs("text")["input_ids"] and len(theirs("xyz xyz")["input_ids"]) > 2
