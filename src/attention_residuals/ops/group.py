"""Reads that share a first phase: all their queries over the sources they have in common, in one pass over these.

A group is a run of consecutive reads (arXiv 2603.15031, Algorithm 1; there, the reads of a block). When it opens, its
common sources exist. Later each read goes on from its part of the first phase over the few *local* sources made since.

In the backward a source gets its gradient from all reads of the group in one pass, in which what came from elsewhere is
added too: never one gradient a read, added up by autograd. For that, a read leaves what its gradient needs with the
group, and sources *pull* from there: a local one when its own gradient is due, the common ones when all reads are done.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from itertools import count
from typing import Any, NamedTuple, final

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from attention_residuals.errors import InputError
from attention_residuals.ops.loops import compute_dtype
from attention_residuals.ops.once import once_differentiable
from attention_residuals.ops.partial import Partial, attn_res_partial, merge, normalise


class PreNorm(NamedTuple):
    """The RMSNorm in front of a sublayer: weight `[D]` and eps."""

    weight: Tensor
    eps: float


class Ahead(NamedTuple):
    """The read that will follow a published source, so that both may be made in one pass."""

    r: int
    gain: float
    norm: PreNorm | None

    def is_that(self, other: "Ahead | None") -> bool:
        """Whether both are one read, with the very same weight."""
        if other is None or self.r != other.r or self.gain != other.gain:
            return False
        if self.norm is None or other.norm is None:
            return self.norm is other.norm
        return self.norm.weight is other.norm.weight and self.norm.eps == other.norm.eps


class Group(ABC):
    """An open group together with the local sources there are: a value, of which `publish` makes another.

    `common` are its common sources, to be used from here on in place of those it was opened with.
    """

    common: tuple[Tensor, ...]

    @abstractmethod
    def publish(
        self, output: Tensor, partial_sum: Tensor | None = None, ahead: Ahead | None = None
    ) -> tuple["Group", Float[Tensor, "*tokens width"]]:
        """A new local source, and the group that has it.

        The source is `output`, besides those there are; or its sum with `partial_sum`, the last of them, in its place.
        `ahead` tells with what `read` will be called next on the new group; it may be called with anything else.
        """

    @abstractmethod
    def read(
        self, r: int, local: Sequence[Tensor], gain: float, norm: PreNorm | None = None
    ) -> Float[Tensor, "*tokens width"]:
        """Read `r` over the common sources and all local ones, in the order they were published; times `gain`.

        With `norm` its RMSNorm, taken before the mixture is rounded to the type of the sources.
        """


def converted(read: Ahead, dtype: torch.dtype) -> Ahead:
    """With the weight of its norm in the compute type of sources of `dtype`."""
    if read.norm is None or read.norm.weight.dtype == compute_dtype(dtype):
        return read
    return Ahead(read.r, read.gain, PreNorm(read.norm.weight.to(compute_dtype(dtype)), read.norm.eps))


class SlotGroup(Group):
    """A group whose local sources have gradients.

    A local source is known by a slot, a number of its own, and not by its memory: a checkpoint makes it again
    elsewhere.
    """

    def __init__(self, common: Sequence[Tensor]):
        self.common = tuple(common)
        self._slots: tuple[int, ...] = ()
        self._numbers = count()
        self._ahead: Ahead | None = None

    @final
    def publish(
        self, output: Tensor, partial_sum: Tensor | None = None, ahead: Ahead | None = None
    ) -> tuple["SlotGroup", Float[Tensor, "*tokens width"]]:
        slot = next(self._numbers)
        later = copy(self)
        later._slots = (*(self._slots if partial_sum is None else self._slots[:-1]), slot)
        later._ahead = ahead if partial_sum is not None and len(later._slots) == 1 else None
        announced = later._ahead and converted(later._ahead, self.common[0].dtype)
        return later, self._publish(slot, output, partial_sum, announced)

    @final
    def read(
        self, r: int, local: Sequence[Tensor], gain: float, norm: PreNorm | None = None
    ) -> Float[Tensor, "*tokens width"]:
        assert len(local) == len(self._slots), f"{len(local)} local sources for a group that has {len(self._slots)}"
        asked = Ahead(r, gain, norm)
        return self._read(self._slots, local, converted(asked, self.common[0].dtype), asked.is_that(self._ahead))

    @abstractmethod
    def _publish(self, slot: int, output: Tensor, partial_sum: Tensor | None, ahead: Ahead | None) -> Tensor: ...

    @abstractmethod
    def _read(self, slots: tuple[int, ...], local: Sequence[Tensor], asked: Ahead, announced: bool) -> Tensor: ...


@final
class TracedGroup(SlotGroup):
    """For a compiler and for function transforms: pure functions of tensors, with their ordinary gradients."""

    def __init__(self, sources: Sequence[Tensor], part: Partial, queries: Tensor, key_weights: Tensor, eps: float):
        super().__init__(sources)
        self.part = part
        self.queries, self.key_weights, self.eps = queries, key_weights, eps

    def _publish(self, slot: int, output: Tensor, partial_sum: Tensor | None, ahead: Ahead | None) -> Tensor:
        return output if partial_sum is None else partial_sum + output

    def _read(self, slots: tuple[int, ...], local: Sequence[Tensor], asked: Ahead, announced: bool) -> Tensor:
        return self.go_on(local, asked)

    def go_on(self, local: Sequence[Tensor], asked: Ahead) -> Tensor:
        """The read from its part of the first phase over `local`."""
        r, gain, norm = asked
        part = self.part.query(r)
        if local:
            own = slice(r, r + 1)
            part = merge(part, attn_res_partial(local, self.queries[own], self.key_weights[own], eps=self.eps))
        dtype = self.common[0].dtype
        if norm is None:
            return normalise(part, dtype, gain=gain).squeeze(0)
        mixed = normalise(part, compute_dtype(dtype), gain=gain).squeeze(0)
        return F.rms_norm(mixed, norm.weight.shape, norm.weight, norm.eps).to(dtype)


@dataclass(eq=False)
class ReadGradient:
    """What a read leaves with its group in the backward; see `operators.mix_backward`."""

    r: int
    slots: tuple[int, ...]
    grad: Tensor
    maximum: Tensor
    total: Tensor
    gain: float
    delta: Tensor | None = None
    mixture: Tensor | None = None
    """For the first gradient of a source to make the delta of, if that is not known; a part, if there is a share."""
    share: Tensor | None = None
    beside: Tensor | None = None
    """What the local sources have in the delta, where parts are in halves."""
    sums: Tensor | None = None
    """What the gradients of its sources so far gave its query."""


@final
class EagerGroup(SlotGroup):
    """For eager execution, with gradients that are pulled."""

    def __init__(self, sources: Sequence[Tensor], folded: Tensor, eps: float):
        # Nodes of the graph hold the exchange. It must hold neither the group, which holds their results, nor a source:
        # a source is held as a saved tensor, which a backward frees.
        self._exchange = Exchange(folded, sources[0].dtype, eps)
        self._link, *common = _Open.apply(self._exchange, folded, *sources)
        super().__init__(common)

    def _publish(self, slot: int, output: Tensor, partial_sum: Tensor | None, ahead: Ahead | None) -> Tensor:
        return _Publish.apply(self._exchange, slot, ahead, self._link, output, partial_sum)

    def _read(self, slots: tuple[int, ...], local: Sequence[Tensor], asked: Ahead, announced: bool) -> Tensor:
        made = self._exchange.made(slots, announced) or self._exchange.make(self.common, local, asked)
        weight, norm_eps = asked.norm or (None, 0.0)
        return _Read.apply(self._exchange, asked, made, slots, norm_eps, self._link, weight, *local)


PLAIN = (Tensor, torch.nn.Parameter)
"""Types that have memory of their own; subclasses, fake tensors among them, are for the dispatcher."""


@final
class NativeGroup(SlotGroup):
    """`EagerGroup` in C++ (`cpu/group.cpp`), for CPU tensors: no Python between the kernels, nor in the backward."""

    def __init__(self, sources: Sequence[Tensor], folded: Tensor, eps: float):
        self._group = torch.classes.attention_residuals.Group(sources, folded, eps)
        super().__init__(self._group.common())

    def _publish(self, slot: int, output: Tensor, partial_sum: Tensor | None, ahead: Ahead | None) -> Tensor:
        if type(output) not in PLAIN:
            raise InputError(f"a sublayer wrote a {type(output).__name__}, not a plain tensor; convert it first")
        if ahead is None:
            return self._group.publish(slot, output, partial_sum, -1, 1.0, None, 0.0)
        weight, norm_eps = ahead.norm or (None, 0.0)
        return self._group.publish(slot, output, partial_sum, ahead.r, ahead.gain, weight, norm_eps)

    def _read(self, slots: tuple[int, ...], local: Sequence[Tensor], asked: Ahead, announced: bool) -> Tensor:
        weight, norm_eps = asked.norm or (None, 0.0)
        return self._group.read(asked.r, slots, local, asked.gain, weight, norm_eps, announced)


class Made(NamedTuple):
    """A read, and what its backward needs: the mixture, or its part in halves with the share of that."""

    result: Tensor
    maximum: Tensor
    total: Tensor
    mixture: Tensor
    share: Tensor | None = None


class Exchange:
    """Where the reads of a group take their parts of the first phase, and leave what their gradients need.

    The first phase runs when its first part is asked for. A part is handed out once and then forgotten; asked again,
    as a recomputing checkpoint does, the phase runs anew, once for all parts. So no part outlives its read, and under
    activation checkpointing nothing but the common sources is held from the forward to the backward.
    """

    def __init__(self, folded: Tensor, dtype: torch.dtype, eps: float):
        self.folded, self.dtype, self.eps = folded, dtype, eps
        self.halved = folded.dtype != dtype
        self._parts: dict[int, list[Tensor]] = {}
        self._ahead: dict[int, Made] = {}
        self._pass = -1
        self._reads: list[ReadGradient] = []

    def take(self, r: int, sources: Sequence[Tensor], whole: bool = False) -> list[Tensor]:
        """Read `r`'s part of the first phase: mixture `[..., D]`, maximum and total `[1, T]`; in halves their scale.

        `whole`: the read has no other sources.
        """
        if r not in self._parts:
            values, numbers = self._first_phase(sources, r if whole else -1)
            parts = zip(values, *(one.split(1) for one in numbers), strict=True)
            self._parts = {n: list(part) for n, part in enumerate(parts)}
        return self._parts.pop(r)

    def _first_phase(self, sources: Sequence[Tensor], whole: int) -> tuple[list[Tensor], list[Tensor]]:
        """The mixtures, and the numbers `[R, T]` that go with them."""
        operators = torch.ops.attention_residuals
        with torch.no_grad():
            if self.halved:
                values, *numbers = operators.mix_halves(sources, self.folded, self.eps, whole)
            else:
                values, *numbers = operators.mix(sources, self.folded, self.eps, 1.0, True)
        return values, numbers

    def make(self, common: Sequence[Tensor], local: Sequence[Tensor], asked: Ahead) -> Made:
        """One read."""
        r, gain, norm = asked
        whole = not local and gain == 1.0 and norm is None and not (self.halved and r in self._parts)
        part = self.take(r, common, whole)
        if not whole:
            return self._extend(local, None, part, asked)[0]
        values, maximum, total, *_ = part
        return Made(values, maximum, total, values)

    def publish(self, slot: int, output: Tensor, partial_sum: Tensor, ahead: Ahead | None) -> Tensor:
        """The sum; with it the read ahead, if its part is at hand. It is not where a checkpoint recomputes a step."""
        if ahead is None or ahead.r not in self._parts:
            return partial_sum + output
        self._ahead[slot], source = self._extend([output], partial_sum, self._parts.pop(ahead.r), ahead)
        return source

    def made(self, slots: tuple[int, ...], announced: bool) -> Made | None:
        """The read that was made with the source of its one slot; handed out once."""
        return self._ahead.pop(slots[0], None) if announced else None

    def _extend(
        self, local: Sequence[Tensor], partial_sum: Tensor | None, part: list[Tensor], asked: Ahead
    ) -> tuple[Made, Tensor]:
        """The read from its part, and, if there is a `partial_sum`, the source."""
        r, gain, norm = asked
        weight, norm_eps = norm or (None, 0.0)
        operators = torch.ops.attention_residuals
        operands = local, partial_sum, self.folded[r : r + 1], part, weight, self.eps, norm_eps, gain, self.dtype
        with torch.no_grad():
            if self.halved:
                result, maximum, total, share, source = operators.extend_halves(*operands)
                return Made(result, maximum, total, part[0], share), source
            mixed, maximum, total, normed, source = operators.extend(*operands)
        mixed = mixed if local or gain != 1.0 else part[0]
        return Made(mixed if norm is None else normed, maximum, total, mixed), source

    def leave(self, read: ReadGradient) -> None:
        """Leave what the gradient of a read needs; a query may have been read with more than once."""
        self._of_this_pass().append(read)

    def pull(self, slot: int, source: Tensor, running: Tensor | None) -> Tensor | None:
        """The gradient of a local source: `running`, and what the reads of `slot` give."""
        reads = [read for read in self._of_this_pass() if slot in read.slots]
        grads, _ = self._gradients([source], [running], reads)
        return grads[0]

    def close(self, sources: list[Tensor], running: Sequence[Tensor | None]) -> tuple[Sequence[Tensor | None], Tensor]:
        """The gradients of the common sources, `running` added, and of `folded`; all reads and slots are done."""
        reads = self._of_this_pass()
        grads, sums = self._gradients(sources, running, reads, last=True)
        self._parts, self._ahead, self._reads = {}, {}, []
        return grads, self._grad_folded([read.r for read in reads], sums)

    def _gradients(
        self, sources: list[Tensor], running: Sequence[Tensor | None], reads: list[ReadGradient], last: bool = False
    ) -> tuple[Sequence[Tensor | None], Tensor | None]:
        """The gradients of `sources` from `reads`, and what their queries get of them so far, left with them too.

        `last`: these are the common sources. Beside halves their own share of the deltas is made anew: from a rounded
        part it would not do where the softmax is sharp.
        """
        if not reads:
            return running, None
        reads.sort(key=lambda read: read.r)
        grads, carried = [read.grad for read in reads], [read.sums for read in reads]
        unknown = [read for read in reads if read.mixture is not None]
        anew = last and self.halved
        with torch.no_grad():
            results, sums, made = torch.ops.attention_residuals.mix_backward(
                sources,
                running,
                self._folded_rows([read.r for read in reads]),
                grads,
                [read.maximum for read in reads],
                [read.total for read in reads],
                [read.beside if anew else read.delta for read in reads],
                [read.mixture for read in reads] if unknown else [],
                [read.share for read in reads] if unknown and self.halved else [],
                carried,
                [read.gain for read in reads],
                self.eps,
                anew,
            )
        for read, numbers in zip(unknown, made, strict=True):
            read.mixture, read.share = None, None
            read.delta, read.beside = (None, numbers) if self.halved else (numbers, None)
        *results, sums = once_differentiable([*results, sums], [*sources, *running, self.folded, *grads, *carried])
        for read, sums_of_read in zip(reads, sums.unbind(1), strict=True):
            read.sums = sums_of_read
        return results, sums

    def _grad_folded(self, numbers: list[int], sums: Tensor | None) -> Tensor:
        """The gradient of `folded`, when all sources have had theirs."""
        if sums is not None and numbers == list(range(len(self.folded))):
            return sums.sum(0)
        grad_folded = torch.zeros_like(self.folded)
        if sums is not None:
            for r, grad in zip(numbers, sums.sum(0).unbind(), strict=True):
                grad_folded[r].add_(grad)
        return grad_folded

    def _folded_rows(self, numbers: list[int]) -> Tensor:
        """The rows of `folded` with these ascending numbers; a view where none is left out or comes twice."""
        first, end = numbers[0], numbers[-1] + 1
        return self.folded[first:end] if numbers == list(range(first, end)) else self.folded[numbers]

    def _of_this_pass(self) -> list[ReadGradient]:
        """What the reads have left in the running backward pass; an earlier one may have ended without `close`."""
        current = torch._C._current_graph_task_id()
        if current != self._pass:
            self._pass, self._reads = current, []
        return self._reads


class _Open(torch.autograd.Function):
    """Common sources to themselves; the link is an empty tensor that ties reads and slots to this node."""

    @staticmethod
    def forward(ctx: Any, exchange: Exchange, folded: Tensor, *sources: Tensor) -> tuple[Tensor, ...]:
        ctx.exchange = exchange
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*sources)
        return folded.new_empty(0), *sources

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor | None) -> tuple[Tensor | None, ...]:
        _link, *running = grad_outputs
        grads, grad_folded = ctx.exchange.close(list(ctx.saved_tensors), running)
        return None, grad_folded, *grads


class _Publish(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        exchange: Exchange,
        slot: int,
        ahead: Ahead | None,
        link: Tensor,
        output: Tensor,
        partial_sum: Tensor | None,
    ) -> Tensor:
        ctx.exchange, ctx.slot, ctx.is_sum = exchange, slot, partial_sum is not None
        ctx.set_materialize_grads(False)
        source = output if partial_sum is None else exchange.publish(slot, output, partial_sum, ahead)
        ctx.save_for_backward(source)
        return source

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor | None) -> tuple[Tensor | None, ...]:
        (running,) = grad_outputs
        (source,) = ctx.saved_tensors
        grad = ctx.exchange.pull(ctx.slot, source, running)
        return None, None, None, None, grad, grad if ctx.is_sum else None


class _Read(torch.autograd.Function):
    """One read. It gives its sources no gradient: they pull it, after this node has run."""

    @staticmethod
    def forward(
        ctx: Any,
        exchange: Exchange,
        asked: Ahead,
        made: Made,
        slots: tuple[int, ...],
        norm_eps: float,
        link: Tensor,
        norm: Tensor | None,
        *local: Tensor,
    ) -> Tensor:
        ctx.exchange, ctx.r, ctx.slots, ctx.gain, ctx.norm_eps = exchange, asked.r, slots, asked.gain, norm_eps
        ctx.set_materialize_grads(False)
        # A read of the common sources alone has its delta from these.
        mixture, share = (made.mixture, made.share) if slots or norm is not None else (None, None)
        ctx.save_for_backward(mixture, share, made.maximum, made.total, norm, link, *local)
        return made.result

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor | None) -> tuple[Tensor | None, ...]:
        (grad,) = grad_outputs
        grad_norm = None
        if grad is not None:
            saved = ctx.saved_tensors
            _, _, _, _, norm, *others = saved
            read, grad_norm = _left(ctx, grad, saved)
            # What this read tells each of its sources depends on all of them, and on its query.
            inputs = [grad, norm, *others]
            (read.grad,) = once_differentiable([read.grad], inputs)
            if grad_norm is not None:
                (grad_norm,) = once_differentiable([grad_norm], inputs)
            ctx.exchange.leave(read)
        return (*[None] * 6, grad_norm, *[None] * len(ctx.slots))


def _left(ctx: Any, grad: Tensor, saved: tuple[Tensor, ...]) -> tuple[ReadGradient, Tensor | None]:
    """What a read leaves with its group, and the gradient of its norm."""
    exchange = ctx.exchange
    mixture, share, maximum, total, norm, _, *local = saved
    read = ReadGradient(ctx.r, ctx.slots, grad, maximum, total, ctx.gain)
    operators = torch.ops.attention_residuals
    with torch.no_grad():
        if exchange.halved and (norm is not None or len(local) > 1):
            folded = exchange.folded[ctx.r : ctx.r + 1]
            grad_mixed, read.delta, read.beside, grad_norm = operators.extend_halves_backward(
                grad, local, folded, mixture, share, maximum, total, norm, exchange.eps, ctx.norm_eps, ctx.gain
            )
            if norm is None:
                return read, None
            read.grad = grad_mixed
            return read, grad_norm
        if norm is None:
            read.mixture, read.share = mixture, share
            return read, None
        read.grad, products, grad_norm = operators.norm_backward(grad, mixture, norm, ctx.norm_eps)
        read.delta = products if ctx.gain == 1.0 else products / ctx.gain
        return read, grad_norm
