"""Scores are sums of the decoder's own log-probabilities, whatever the batch, and short contexts are no obstacle."""

import math

import pytest
import torch
from lm_eval.api.instance import Instance

from attention_residuals.experiments.evaluation.scorer import Scorer
from attention_residuals.experiments.evaluation.subjects import Loaded
from tests.experiments.evaluation.support import copier, untrained

CONTEXT_TOKENS = 32
PAIRS = [
    ("a context", " and what follows"),
    ("b", "c"),
    ("ends in blanks  ", "then"),
    ("", "no context at all"),
    ("longer than the model takes, so that its beginning is lost", " to it"),
    ("p" * 31, "exactly fits"[:2]),
]


@pytest.fixture(scope="module")
def model() -> Loaded:
    return untrained(CONTEXT_TOKENS)


def scorer(model: Loaded, batch_sequences: int = 4) -> Scorer:
    return Scorer(model.model, model.tokenizer, batch_sequences, lambda done, total: None)


def asked(*arguments: object, kind: str = "loglikelihood") -> Instance:
    return Instance(kind, {}, arguments, 0, ("task", 0, 1))  # pyright: ignore[reportArgumentType]


def expected(model: Loaded, context: str, text: str) -> tuple[float, bool]:
    """By a forward of the decoder over one text; blanks at the end of a context are scored with the text."""
    bare = context.rstrip()
    text = context[len(bare) :] + text
    tokens = torch.tensor([[*(bare.encode() or b"\0"), *text.encode()]])[:, -CONTEXT_TOKENS - 1 :]
    with torch.no_grad():
        logits = model.model.model(tokens[:, :-1])[0, -len(text.encode()) :].log_softmax(-1)
    wanted = tokens[0, -len(text.encode()) :]
    return logits.gather(1, wanted[:, None]).sum().item(), bool((logits.argmax(-1) == wanted).all())


@pytest.mark.parametrize("batch_sequences", [1, 4, 64])
def test_scores_are_the_decoders(model: Loaded, batch_sequences: int) -> None:
    mine = scorer(model, batch_sequences)
    found = mine.loglikelihood([asked(*pair) for pair in PAIRS])
    for (score, greedy), pair in zip(found, PAIRS, strict=True):
        wanted, is_greedy = expected(model, *pair)
        assert score == pytest.approx(wanted, rel=1e-5)
        assert greedy == is_greedy
    assert mine.shortened == {"task": 1}


def test_a_text_is_greedy_if_every_token_is_the_likeliest() -> None:
    found = scorer(copier()).loglikelihood([asked("one two one", " two"), asked("one two one", " tw0")])
    likely = 10 - math.log(math.exp(10) + 255)  # one logit of ten, 255 of zero
    assert found[0] == (pytest.approx(4 * likely, abs=1e-5), True)
    assert found[1] == (pytest.approx(4 * likely - 10, abs=1e-5), False)


def test_a_continuation_longer_than_the_context_is_scored_once_a_token(model: Loaded) -> None:
    text = "".join(chr(97 + n % 26) for n in range(3 * CONTEXT_TOKENS + 5))
    mine = scorer(model)
    ((score, _),) = mine.loglikelihood([asked("x", text)])
    tokens, total = [*b"x", *text.encode()], 0.0
    for begin in range(0, len(text), CONTEXT_TOKENS):
        end = min(begin + CONTEXT_TOKENS, len(text))
        window = torch.tensor([tokens[max(0, end - CONTEXT_TOKENS) : end + 1]])
        with torch.no_grad():
            logits = model.model.model(window[:, :-1])[0, begin - end :].log_softmax(-1)
        total += logits.gather(1, window[0, begin - end :, None]).sum().item()
    assert score == pytest.approx(total, rel=1e-5)
    assert mine.shortened == {"task": 1}
    (rolling,) = mine.loglikelihood_rolling([asked(text, kind="loglikelihood_rolling")])
    ((whole, _),) = mine.loglikelihood([asked("", text)])
    assert rolling == pytest.approx(whole, rel=1e-5)


def test_text_is_drawn_within_the_context(model: Loaded) -> None:
    done: list[tuple[int, int]] = []
    mine = Scorer(model.model, model.tokenizer, 2, lambda *progress: done.append(progress))
    wishes = {"until": ["\n\n"], "max_gen_toks": 500}
    contexts = ["short", "a context that fills all of the model's context and more"]
    found = mine.generate_until([asked(context, wishes, kind="generate_until") for context in contexts])
    assert all(isinstance(text, str) and len(text) <= CONTEXT_TOKENS // 2 for text in found)
    assert mine.shortened == {"task": 2}
    assert done[0] == (0, 2) and done[-1] == (2, 2)
