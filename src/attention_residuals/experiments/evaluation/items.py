"""Questions made from a run's held-out text: which continuation is the true one, and what the last word is.

The same text, seed and sizes give the same questions. Contexts that stand in the training text too are left out.
"""

import random
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import UInt

from attention_residuals.errors import require_positive
from attention_residuals.experiments.evaluation.occurrence import occur
from attention_residuals.train import TokenData, Tokenizer

CONTINUATION = "heldout_continuation"
RECALL = "heldout_recall"
WORD = "heldout_word"

CHOICES = 4

MOST_WINDOW_TOKENS = 1024
"""Longer contexts cost time and change little at the sizes this is for."""

SHARE_CONTINUED = 8
"""One token of so many in a window is continuation."""

SHARE_SPARE = 5
"""One question of so many is made beyond those wanted, in place of some whose context is training text too."""

ATTEMPTS = 100
"""Places to try for each question wanted."""

MOST_PER_WORD = 2
"""Questions with the same answer, so that no common word decides a task."""

UNKNOWN = "\ufffd"
"""What bytes decode to that are no text."""

LAST_WORD = re.compile(r"(?<=\S)(?P<target> ?\b[^\W\d]\w{3,})(?:[^\w\n]*\n|[.!?]\s)")
"""The last word of a line or sentence, of four letters at least, with the blank before it, if there is one."""


@dataclass(frozen=True)
class ItemSizes:
    """How many questions, and how long.

    Args:
        items: questions of each task, if the text has so many.
        window_tokens: context and answer together: no more than the model can take.
        seed: of the places they are taken from.

    Raises:
        InputError: a count below 1.
    """

    items: int
    window_tokens: int
    seed: int = 0

    def __post_init__(self) -> None:
        require_positive(self, "items", "window_tokens")

    @property
    def continuation_tokens(self) -> int:
        """Of a continuation to choose."""
        return max(2, self.window_tokens // SHARE_CONTINUED)


@dataclass(frozen=True, eq=False)
class Questions:
    """The questions of one task: what `lm-eval` is given of each, and how many were left out as training text."""

    name: str
    documents: list[dict[str, Any]]
    dropped: int


@dataclass(frozen=True, eq=False)
class _Item:
    """A question and the tokens of its context as they stand in the held-out text."""

    document: dict[str, Any]
    context: UInt[np.ndarray, "_"]
    answer: str


@dataclass(frozen=True, eq=False)
class _Place:
    """A window of held-out text that ends at token `end`, cut in two: `before` and `after`."""

    end: int
    before: str
    after: str
    context: UInt[np.ndarray, "_"]


@dataclass(eq=False)
class _Chosen:
    """Items of one task as they are found, no context twice."""

    wanted: int
    most_per_answer: int
    items: list[_Item] = field(default_factory=list)
    seen: Counter[str] = field(default_factory=Counter)

    def offer(self, item: _Item) -> None:
        context, answer = f"c {item.document['context']}", f"a {item.answer}"
        if not self.full and not self.seen[context] and self.seen[answer] < self.most_per_answer:
            self.items.append(item)
            self.seen.update((context, answer))

    @property
    def full(self) -> bool:
        return len(self.items) == self.wanted


def make_questions(data: TokenData, sizes: ItemSizes) -> list[Questions]:
    """The three local tasks, as far as the validation side of `data` has text for them.

    `heldout_continuation`: a context and four continuations of as many tokens, the true one and three from other places
    that begin with the same kind of blank; chance is one in four. `heldout_recall`: the last word of a line or
    sentence, which stands earlier in the context too. `heldout_word`: one that does not. As with LAMBADA (arXiv
    1606.06031) a last word counts if greedy decoding writes it.
    """
    found = {CONTINUATION: _continuations(data, sizes), **_last_words(data, sizes)}
    return [_without_training_text(name, items, data, sizes.items) for name, items in found.items()]


def _without_training_text(name: str, items: list[_Item], data: TokenData, wanted: int) -> Questions:
    contexts = [item.context for item in items]
    assert all(occur(data.validation.tokens, contexts)), "a context that is not held-out text"
    leaked = occur(data.training.tokens, contexts)
    kept = [item.document for item, known in zip(items, leaked, strict=True) if not known]
    return Questions(name, kept[:wanted], sum(leaked))


def _continuations(data: TokenData, sizes: ItemSizes) -> list[_Item]:
    rng = _generator(data, sizes, CONTINUATION)
    chosen = _Chosen(_with_spare(sizes.items), 1)
    pool: list[_Place] = []
    for begin, end in _windows(data, sizes, rng):
        cut = end - sizes.continuation_tokens
        place = _cut(data, begin, cut, end)
        if place is not None and place.after[:1] in (" ", "\n") and not place.before[-1].isspace():
            pool.append(place)
        if len(pool) == CHOICES * chosen.wanted:
            break
    for place in pool:
        others = [other for other in pool if _could_stand_for(other, place, sizes.window_tokens)]
        texts = sorted({other.after for other in others} - {place.after})
        if len(texts) < CHOICES - 1:
            continue
        choices = [place.after, *rng.sample(texts, CHOICES - 1)]
        rng.shuffle(choices)
        document = {"context": place.before, "choices": choices, "answer": choices.index(place.after)}
        chosen.offer(_Item(document, place.context, place.before))
        if chosen.full:
            break
    return chosen.items


def _could_stand_for(other: _Place, place: _Place, window_tokens: int) -> bool:
    """Whether a continuation is from another place and not given away by its first character."""
    return abs(other.end - place.end) >= window_tokens and other.after[0] == place.after[0]


def _last_words(data: TokenData, sizes: ItemSizes) -> dict[str, list[_Item]]:
    rng = _generator(data, sizes, WORD)
    chosen = {name: _Chosen(_with_spare(sizes.items), MOST_PER_WORD) for name in (RECALL, WORD)}
    for begin, end in _windows(data, sizes, rng):
        tokens = data.validation.tokens[begin:end]
        text = data.tokenizer.decode(tokens.tolist())
        match = max(LAST_WORD.finditer(text), key=lambda found: found.start(), default=None)
        if match is None or UNKNOWN in text:
            continue
        context, target = text[: match.start()], match["target"]
        word, length = target.strip(), _tokens_within(data.tokenizer, tokens, match.start())
        if not context or not length:
            continue
        item = _Item({"context": context, "target": target}, tokens[:length], word)
        if re.search(rf"(?<!\w){re.escape(word)}(?!\w)", context):
            chosen[RECALL].offer(item)
        elif word not in context:
            chosen[WORD].offer(item)
        if all(task.full for task in chosen.values()):
            break
    return {name: task.items for name, task in chosen.items()}


def _windows(data: TokenData, sizes: ItemSizes, rng: random.Random) -> Iterator[tuple[int, int]]:
    """Random places `[begin, end)` of the validation text, each inside one document and at least half a window long."""
    tokens, ends = len(data.validation.tokens), data.validation.ends
    for _ in range(ATTEMPTS * sizes.items):
        end = rng.randrange(tokens) + 1
        document = int(np.searchsorted(ends, end, side="left"))
        first = int(ends[document - 1]) if document else 0
        begin = max(first, end - sizes.window_tokens)
        if end < ends[document] and end - begin >= sizes.window_tokens // 2:  # the separator is no text
            yield begin, end


def _cut(data: TokenData, begin: int, cut: int, end: int) -> _Place | None:
    """A window as text before and from token `cut` on; None where it does not come apart in whole characters."""
    decode, tokens = data.tokenizer.decode, data.validation.tokens[begin:end]
    whole, before = decode(tokens.tolist()), decode(tokens[: cut - begin].tolist())
    if UNKNOWN in whole or not before or not whole.startswith(before) or whole == before:
        return None
    return _Place(end, before, whole[len(before) :], tokens[: cut - begin])


def _tokens_within(tokenizer: Tokenizer, tokens: UInt[np.ndarray, "_"], characters: int) -> int:
    """How many leading tokens there are to so many characters."""
    length: Callable[[int], int] = lambda count: len(tokenizer.decode(tokens[:count].tolist()))  # noqa: E731
    return bisect_right(range(len(tokens) + 1), characters, key=length) - 1


def _with_spare(items: int) -> int:
    return items + items // SHARE_SPARE


def _generator(data: TokenData, sizes: ItemSizes, name: str) -> random.Random:
    return random.Random(f"{sizes.seed}/{data.fingerprint}/{name}")
