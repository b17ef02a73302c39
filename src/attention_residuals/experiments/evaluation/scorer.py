"""Our models behind the interface by which `lm-eval` asks language models. Import it where it is used."""

import dataclasses
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Int
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from torch import Tensor

Advance = Callable[[int, int], None]
"""Told how many requests are done, of how many."""

Request = tuple[Any, list[int], list[int]]
"""Texts, tokens of the context, tokens of the continuation."""

TOKEN_LIMITS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
"""Names under which tasks say how much text they want at most."""


Base: Any = HFLM
"""The decorator that registers it hides its type."""


class Scorer(Base):
    """A causal model of `transformers` in memory, with a context as short as that of small models.

    What the base class cannot do with a short context is done here. A continuation longer than the context is scored
    window after window, each token once. Text is drawn up to half of the context. `shortened` counts, by task, the
    requests that did not fit: their contexts lose tokens on the left, or their text ends early.

    Args:
        model: its `max_position_embeddings` is the context.
        tokenizer: a fast tokenizer of `transformers`.
        batch_sequences: sequences computed at once.
        advance: see `Advance`.
    """

    def __init__(self, model: Any, tokenizer: Any, batch_sequences: int, advance: Advance):
        super().__init__(pretrained=model, tokenizer=tokenizer, batch_size=batch_sequences)
        self.shortened: Counter[str] = Counter()
        self._advance, self._done, self._total = advance, 0, 0
        self._tasks: list[str] = []

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """As in the base class."""
        self._begin(len(requests))
        self._tasks = [request.task_name or "" for request in requests]
        found = super().loglikelihood(requests, disable_tqdm)
        self._advance(self._total, self._total)
        return found

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """As in the base class: long texts go through in windows anyhow, and none counts as shortened."""
        self._begin(len(requests))
        self._tasks = []
        found = super().loglikelihood_rolling(requests, disable_tqdm)
        self._advance(self._total, self._total)
        return found

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """As in the base class, with at most half of the context for what is drawn."""
        self._begin(len(requests))
        most = self.max_gen_toks
        fitting = [self._with_room(request, most) for request in requests]
        found = super().generate_until(fitting, disable_tqdm)
        self._advance(self._total, self._total)
        return found

    @property
    def max_gen_toks(self) -> int:
        """Tokens drawn if a task does not say, and at most."""
        return max(1, self.max_length // 2)

    def _with_room(self, request: Instance, most: int) -> Instance:
        context, wishes = request.arguments
        wanted = next((wishes[name] for name in TOKEN_LIMITS if wishes.get(name) is not None), most)
        tokens = min(int(wanted), most)
        too_long = len(self.tok_encode(context)) > self.max_length - tokens
        self.shortened[request.task_name or ""] += too_long or tokens < int(wanted)
        kept = {name: value for name, value in wishes.items() if name not in TOKEN_LIMITS}
        return dataclasses.replace(request, arguments=(context, {**kept, "max_gen_toks": tokens}))

    def _loglikelihood_tokens(
        self, requests: list[Request], disable_tqdm: bool = False, override_bs: int | None = None
    ) -> list[tuple[float, bool]]:
        """Log-probability of each continuation and whether it is the likeliest text."""
        parts = [self._windows(request) for request in requests]
        flat = [window for windows in parts for window in windows]
        for task, (_, context, text) in zip(self._tasks, requests, strict=bool(self._tasks)):
            self.shortened[task] += len(context) + len(text) > self.max_length + 1
        scores = iter(super()._loglikelihood_tokens(flat, disable_tqdm, override_bs))
        found = []
        for windows in parts:
            mine = [next(scores) for _ in windows]
            found.append((sum(score for score, _ in mine), all(greedy for _, greedy in mine)))
        return found

    def _windows(self, request: Request) -> list[Request]:
        """The request, or, if its continuation is longer than the context, windows that predict each token once."""
        texts, context, continuation = request
        if len(continuation) <= self.max_length:
            return [request]
        windows = get_rolling_token_windows(continuation, context[-1], self.max_length, 1)
        return [(texts, *make_disjoint_window(window)) for window in windows]

    def _model_call(self, inps: Int[Tensor, "batch time"], *arguments: Any, **options: Any) -> Tensor:
        logits = super()._model_call(inps, *arguments, **options)
        self._step(inps.shape[0])
        return logits

    @torch.no_grad()
    def _model_generate(self, context: Int[Tensor, "batch time"], *arguments: Any, **options: Any) -> Tensor:
        drawn = super()._model_generate(context, *arguments, **options)
        self._step(context.shape[0])
        return drawn

    def _begin(self, total: int) -> None:
        self._done, self._total = 0, total
        self._advance(0, total)

    def _step(self, sequences: int) -> None:
        self._done = min(self._done + sequences, self._total)
        self._advance(self._done, self._total)
