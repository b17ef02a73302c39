"""Forwards one after another over the same sequences, each over the tokens that are new."""

from collections.abc import Iterator
from typing import Protocol, final, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from attention_residuals.inference.prompts import Prompts
from attention_residuals.nn import Context, KeyValueCache


@runtime_checkable
class Sizes(Protocol):
    """What a session must know of a config."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def width(self) -> int: ...


@runtime_checkable
class TextModel(Protocol):
    """What a session goes through: a `Decoder`, or a decoder with a memory that it looks at, `EncoderDecoder.given`."""

    @property
    def config(self) -> Sizes: ...

    @property
    def embedding(self) -> nn.Embedding: ...

    def mix(
        self, embedding: Float[Tensor, "batch time width"], context: Context | None = None
    ) -> Float[Tensor, "batch time width"]:
        """The loop over depth, from embedded tokens to what the final norm is given."""
        ...

    def context(
        self,
        positions: Int[Tensor, "batch time"],
        mask: Tensor | None = None,
        cache: KeyValueCache | None = None,
        valid: Tensor | None = None,
    ) -> Context:
        """What tokens at these positions are to be told."""
        ...

    def logits(self, x: Float[Tensor, "batch time width"]) -> Float[Tensor, "batch time vocab"]:
        """Final norm and head."""
        ...

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """All of them, to name one that holds NaN."""
        ...


@runtime_checkable
class SessionCache(KeyValueCache, Protocol):
    """A cache that tells its sizes beforehand."""

    def keys_for(self, tokens: int) -> int:
        """How many keys `update` will return once there are so many tokens."""
        ...


@runtime_checkable
class Forward(Protocol):
    """How new tokens go through a model: by default in this process, all of them."""

    def features(self, tokens: Int[Tensor, "batch time"], context: Context) -> Float[Tensor, "batch time width"]:
        """What the final norm is given for each new token."""
        ...

    def features_at(
        self, tokens: Int[Tensor, "batch time"], context: Context, rows: Int[Tensor, "n"], places: Int[Tensor, "n"]
    ) -> Float[Tensor, "n width"]:
        """The same for the tokens `places` of the sequences `rows` alone."""
        ...


@final
class WholeForward:
    """All new tokens in this process."""

    def __init__(self, model: TextModel):
        self.model = model

    def features(self, tokens: Int[Tensor, "batch time"], context: Context) -> Float[Tensor, "batch time width"]:
        """As in `Forward`."""
        return self.model.mix(self.model.embedding(tokens), context)

    def features_at(
        self, tokens: Int[Tensor, "batch time"], context: Context, rows: Int[Tensor, "n"], places: Int[Tensor, "n"]
    ) -> Float[Tensor, "n width"]:
        """As in `Forward`."""
        return self.features(tokens, context)[rows, places]


class Session:
    """A batch of sequences under way.

    Every forward appends a column of slots. Tokens know their position by the tokens before them, so padding may stand
    anywhere. The state of the depth begins and ends with each forward; what is kept are keys and values, and the
    states of recurrent sublayers.

    Args:
        model: a trained one.
        cache: a new one.
        forward: how new tokens go through the model; see `distributed.prefill` for several processes.
    """

    def __init__(self, model: TextModel, cache: SessionCache, forward: Forward | None = None):
        self.model, self.cache = model, cache
        self.forward = WholeForward(model) if forward is None else forward
        self._valid: Bool[Tensor, "batch slots"] | None = None
        self._padded = False

    @property
    def slots(self) -> int:
        """Tokens and padding so far."""
        return 0 if self._valid is None else self._valid.shape[1]

    def prefill(self, prompts: Prompts, chunk_tokens: int | None = None) -> Float[Tensor, "batch vocab"]:
        """Take in the prompts, `chunk_tokens` at a time, or all at once; the logits of the token after each.

        The state of the depth is that of one chunk: its memory does not grow with the prompts.
        """
        valid = prompts.valid.to(self.device)
        last = valid.shape[1] - 1 - valid.flip(1).int().argmax(1)
        found = self.model.embedding.weight.new_empty(len(last), self.model.config.width)
        begin = 0
        for tokens in prompts.tokens.to(self.device).split(chunk_tokens or prompts.tokens.shape[1], dim=1):
            end = begin + tokens.shape[1]
            (rows,) = ((last >= begin) & (last < end)).nonzero(as_tuple=True)
            context = self.context(valid[:, begin:end])
            found[rows] = self.forward.features_at(tokens, context, rows, last[rows] - begin)
            begin = end
        return self.model.logits(found.unsqueeze(1)).squeeze(1)

    def append(self, tokens: Int[Tensor, "batch"]) -> Float[Tensor, "batch vocab"]:
        """Take in one more token of each sequence; the logits of the one after it."""
        tokens = tokens.to(self.device).unsqueeze(1)
        return self.model.logits(self.advance(tokens, torch.ones_like(tokens, dtype=torch.bool))).squeeze(1)

    def advance(
        self, tokens: Int[Tensor, "batch time"], valid: Bool[Tensor, "batch time"]
    ) -> Float[Tensor, "batch time width"]:
        """One forward: what the final norm is given for each new token."""
        return self.forward.features(tokens, self.context(valid))

    def context(self, valid: Bool[Tensor, "batch time"]) -> Context:
        """The context of new tokens, which count as taken in from here on."""
        past = self.slots
        whole = bool(valid.all())
        self._padded = self._padded or not whole
        self._valid = valid if self._valid is None else torch.cat((self._valid, valid), dim=1)
        slots = torch.arange(past, self.slots, device=valid.device)
        positions = slots.unsqueeze(0)
        if self._padded:
            positions = (self._valid.cumsum(1)[:, past:] - 1).clamp(min=0)
        return self.model.context(positions, self._mask(slots), self.cache, None if whole else valid)

    def _mask(self, slots: Int[Tensor, "time"]) -> Bool[Tensor, "_ 1 time keys"] | None:
        """What tokens in these slots, the last ones, may look at; None where the plain causal rule says as much."""
        assert self._valid is not None
        keys = self.cache.keys_for(self.slots)
        if not self._padded and keys == self.slots:
            return None
        places = torch.arange(keys, device=slots.device)
        mask = (places <= slots.unsqueeze(1)).unsqueeze(0)
        if self._padded:
            valid = torch.zeros(len(self._valid), keys, dtype=torch.bool, device=slots.device)
            valid[:, : self.slots] = self._valid
            # A token of padding sees itself: a softmax over nothing has no value.
            mask = mask & valid.unsqueeze(1) | (places == slots.unsqueeze(1))
        return mask.unsqueeze(1)

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self.model.embedding.weight.device
