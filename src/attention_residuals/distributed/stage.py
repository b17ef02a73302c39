"""A chunk of a decoder as a module of a pipeline: tensors of a state in, tensors of a state out."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from attention_residuals.distributed.cuts import Cuts, Transport
from attention_residuals.distributed.relay import Depot
from attention_residuals.models import BackboneConfig, Decoder, init_decoder
from attention_residuals.streams import State


def build_part(
    config: BackboneConfig, sublayers: range, *, seed: int, device: torch.device | str, dtype: torch.dtype
) -> Decoder:
    """The decoder of `config` with these sublayers alone, their parameters named and valued as in the whole.

    Built on the meta device: no more memory is taken than the part needs. The embedding comes with sublayer 0, the
    last norm and the head with the last sublayer.
    """
    with torch.device("meta"):
        model = Decoder(config)
    head = sublayers.stop == config.sublayers
    for key in set(model.sublayers) - set(map(str, sublayers)):
        del model.sublayers[key]
    model.stream.keep(sublayers, head=head)
    if sublayers.start > 0:
        del model.embedding
    if not head:
        del model.norm, model.head
    model = model.to(dtype).to_empty(device=device)
    init_decoder(model, seed=seed)
    return model


class Chunk(nn.Module):
    """Chunk `number` of a pipeline.

    Its forward takes tokens `[B, T]` in the first chunk, elsewhere the received tensors `[B, T, D]`, and the number of
    the micro-batch `[1]`; it gives logits `[B, T, vocab]` in the last chunk, elsewhere the tensors to send.

    `precision` is the context of the forward, not of the backward: autocast, for example.
    """

    precision: Callable[[], AbstractContextManager[object]] = staticmethod(nullcontext)

    def __init__(self, part: Decoder, cuts: Cuts, number: int, transport: Transport, depot: Depot):
        super().__init__()
        self.part, self.cuts, self.number, self.transport, self.depot = part, cuts, number, transport, depot
        self.sublayers = cuts.part(number)
        self.is_first, self.is_last = number == 0, number == cuts.chunks - 1
        self.sent_from = 0 if self.is_last else cuts.held(number + 1, part.stream.boundary, transport)
        self.kept_to = cuts.held(number + cuts.ranks, part.stream.boundary, transport)

    def forward(self, *tensors: Tensor, micro_batch: Tensor) -> Tensor | tuple[Tensor, ...]:
        number = int(micro_batch)
        with self.precision():
            state = self._through(self._opened(number, tensors))
            if self.number + self.cuts.ranks >= self.cuts.chunks:
                self.depot.forget(number)
            return self._logits(state) if self.is_last else self._to_send(number, state)

    def _opened(self, micro_batch: int, tensors: tuple[Tensor, ...]) -> State:
        stream = self.part.stream
        if self.is_first:
            return stream.start(self.part.embedding(*tensors))
        return stream.unpack((*self.depot.take(micro_batch), *tensors), self.sublayers.start)

    def _through(self, state: State) -> State:
        for i in self.sublayers:
            state = self.part.step(state, i)
        return state

    def _logits(self, state: State) -> Tensor:
        logits = self.part.logits(self.part.stream.finish(state))
        return logits.to(torch.promote_types(logits.dtype, torch.float32))  # the type that the pipeline was told of

    def _to_send(self, micro_batch: int, state: State) -> tuple[Tensor, ...]:
        found = self.part.stream.pack(state)
        sent = list(found[self.sent_from :])
        if self.kept_to:
            sent[0] = self.depot.keep(micro_batch, found[: self.kept_to], sent[0])
        return tuple(sent)
