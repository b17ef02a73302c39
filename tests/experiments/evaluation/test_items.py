"""Questions come from held-out text alone, and always the same ones."""

import dataclasses
import re

import numpy as np
import pytest

from attention_residuals import InputError
from attention_residuals.experiments.evaluation.items import (
    CONTINUATION,
    RECALL,
    WORD,
    ItemSizes,
    Questions,
    make_questions,
)
from attention_residuals.train import JsonTokenizer, TokenData
from attention_residuals.train.text.cache import SideTokens
from tests.experiments.evaluation.support import SEQUENCE_TOKENS, lines_twice, text_twice
from tests.train.text.test_tokenizer import trained as trained_backend

SIZES = ItemSizes(items=20, window_tokens=SEQUENCE_TOKENS)


def by_name(data: TokenData, sizes: ItemSizes = SIZES) -> dict[str, Questions]:
    return {questions.name: questions for questions in make_questions(data, sizes)}


def test_contexts_and_answers_stand_in_the_held_out_text() -> None:
    found, text = by_name(text_twice()), lines_twice(150, seed=2).decode()
    assert all(len(questions.documents) == 20 and questions.dropped == 0 for questions in found.values())
    for document in found[CONTINUATION].documents:
        choices = document["choices"]
        assert document["context"] + choices[document["answer"]] in text
        assert len(set(choices)) == 4 and all(choice in text for choice in choices)
        assert {len(choice) for choice in choices} == {SIZES.continuation_tokens}
        assert len({choice[0] for choice in choices}) == 1 and choices[0][0].isspace()
    assert len({document["answer"] for document in found[CONTINUATION].documents}) == 4
    for name in (RECALL, WORD):
        for document in found[name].documents:
            assert document["context"] + document["target"] + "\n" in text
            assert not document["context"][-1].isspace()
            word = document["target"].strip()
            assert bool(re.search(rf"\b{word}\b", document["context"])) == (name == RECALL)
    contexts = [document["context"] for questions in found.values() for document in questions.documents]
    assert all(SEQUENCE_TOKENS // 3 < len(context) < SEQUENCE_TOKENS for context in contexts)


def test_the_same_text_and_seed_give_the_same_questions() -> None:
    one, same, other = by_name(text_twice()), by_name(text_twice()), by_name(text_twice(), ItemSizes(20, 128, seed=1))
    for name, questions in one.items():
        assert questions.documents == same[name].documents != other[name].documents


def test_contexts_that_are_training_text_too_are_left_out() -> None:
    validation = lines_twice(150, seed=2)
    half = len(validation) // 2
    found = by_name(TokenData.from_bytes(validation[:half], validation, SEQUENCE_TOKENS))
    assert all(questions.dropped > 3 for questions in found.values())
    for questions in found.values():
        assert questions.documents
        assert not any(document["context"].encode() in validation[:half] for document in questions.documents)


def test_no_question_reaches_over_the_end_of_a_document() -> None:
    documents = [lines_twice(8, seed=n) for n in range(30)]
    text = b"".join(document + b"\0" for document in documents)
    ends = np.cumsum([len(document) + 1 for document in documents])
    side = SideTokens(np.frombuffer(text, np.uint8), ends, len(text))
    for questions in by_name(dataclasses.replace(text_twice(), validation=side)).values():
        assert questions.documents
        for document in questions.documents:
            assert any(document["context"].encode() in text for text in documents)


def test_a_text_in_which_a_character_is_several_bytes() -> None:
    text = lines_twice(150, seed=2).decode().replace("e", "\u00e9").replace("a", "\u4e2d")
    found = by_name(TokenData.from_bytes(lines_twice(60, seed=1), text.encode(), SEQUENCE_TOKENS))
    for questions in found.values():
        assert questions.documents
        assert all(document["context"] in text for document in questions.documents)


def test_a_trained_tokenizer() -> None:
    tokenizer, sides = JsonTokenizer("bpe:300", trained_backend().to_str()), list[SideTokens]()
    for text in (lines_twice(60, seed=1), lines_twice(150, seed=2)):
        tokens = np.append(tokenizer.encode_batch([text])[0], np.array(tokenizer.separator, tokenizer.dtype))
        sides.append(SideTokens(tokens, np.array([len(tokens)]), len(text)))
    data = dataclasses.replace(text_twice(), training=sides[0], validation=sides[1], tokenizer=tokenizer)
    found, text = by_name(data), lines_twice(150, seed=2).decode()
    for document in found[CONTINUATION].documents:
        assert document["context"] + document["choices"][document["answer"]] in text
    for document in found[RECALL].documents:
        assert document["context"] + document["target"] + "\n" in text
    assert found[CONTINUATION].documents and found[RECALL].documents


def test_a_text_without_words_gives_none() -> None:
    found = by_name(TokenData.from_bytes(b"0123456789" * 40, b"9876543210" * 40, SEQUENCE_TOKENS))
    assert not any(questions.documents for questions in found.values())


@pytest.mark.parametrize("sizes", [(0, 8), (8, 0)])
def test_counts_below_one_are_refused(sizes: tuple[int, int]) -> None:
    with pytest.raises(InputError, match="is 0; it must be a whole number of at least 1"):
        ItemSizes(*sizes)
