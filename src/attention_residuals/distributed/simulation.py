"""A step of a pipeline on paper: when every chunk computes, when every tensor travels, how long all of it takes.

Ranks run their actions in the order of the schedule (`orders.py`), each as soon as the rank is free and what it starts
from has come. What is sent waits for its wire, first come first served. Nothing is measured here.
"""

import heapq
import itertools
import math
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass
from enum import Enum

from attention_residuals.distributed.layout import Schedule
from attention_residuals.distributed.orders import Action, order


class Wires(Enum):
    """What transfers share. They take no time of the receiver, which waits for them when it has nothing else to do."""

    LINKS = "links"
    """Each rank has a link to each of its neighbours, with one transfer at a time in each direction."""

    PORTS = "ports"
    """Each rank has one port, with one transfer at a time out of it and one at a time into it."""

    BLOCKING = "blocking"
    """No overlap: a rank computes nothing while it sends."""


@dataclass(frozen=True)
class Load:
    """What a pipeline does for one micro-batch, by chunk.

    Args:
        forward, backward: seconds of each chunk.
        received: bytes that cross the cut in front of each chunk, 0 for the first; gradients back are as many.
    """

    forward: tuple[float, ...]
    backward: tuple[float, ...]
    received: tuple[int, ...]


@dataclass(frozen=True)
class Step:
    """A simulated step.

    Args:
        seconds: from its begin to the end of the last action.
        computing, sending: seconds of each rank.
    """

    seconds: float
    computing: tuple[float, ...]
    sending: tuple[float, ...]

    @property
    def bubble(self) -> float:
        """The share of the ranks' time in which they compute nothing."""
        return 1 - sum(self.computing) / (len(self.computing) * self.seconds)

    @property
    def raw_transport(self) -> float:
        """The seconds in which the rank that sends longest does so, over those of the step."""
        return max(self.sending) / self.seconds

    def exposed(self, without: "Step") -> float:
        """The share of the step that goes when links take no time; `without` is that step."""
        return (self.seconds - without.seconds) / self.seconds


def simulate(
    load: Load,
    ranks: int,
    micro_batches: int,
    schedule: Schedule,
    bytes_per_second: float = math.inf,
    wires: Wires = Wires.LINKS,
) -> Step:
    """Run a step; the bytes a second are those of one direction of a wire.

    Raises:
        InputError: numbers for which there is no such schedule.
    """
    orders = [order(schedule, rank, ranks, len(load.forward) // ranks, micro_batches) for rank in range(ranks)]
    run = _Run(load, orders, bytes_per_second, wires)
    run.until_done()
    return Step(run.now, tuple(run.computing), tuple(run.sending))


Pair = tuple[int, int]
"""Of ranks: the sender and the receiver."""


class _Run:
    """The events of a step, in time."""

    def __init__(self, load: Load, orders: list[list[Action]], bytes_per_second: float, wires: Wires):
        self.load, self.ranks, self.speed = load, len(orders), bytes_per_second
        self.left = [deque(actions) for actions in orders]
        self.ready = {action for action in orders[0] if action.chunk == 0 and not action.backward}
        sides = itertools.product(range(self.ranks), (1, -1))
        pairs = dict.fromkeys((rank, (rank + side) % self.ranks) for rank, side in sides)
        self.queues: dict[Pair, deque[tuple[float, Action]]] = {pair: deque() for pair in pairs}
        self.lanes = {pair: _lanes(wires, *pair) for pair in pairs}
        self.near = [[pair for pair in pairs if rank in pair] for rank in range(self.ranks)]
        self.busy: set[Hashable] = set()
        self.events: list[tuple[float, int, tuple[Hashable, ...], Pair, Action]] = []
        self.numbers = itertools.count()
        self.now = 0.0
        self.computing, self.sending = [0.0] * self.ranks, [0.0] * self.ranks

    def until_done(self) -> None:
        """Run all actions."""
        self.start(set(range(self.ranks)))
        while self.events:
            self.now = self.events[0][0]
            touched: set[int] = set()
            while self.events and self.events[0][0] == self.now:
                _, _, lanes, (source, target), action = heapq.heappop(self.events)
                self.busy.difference_update(lanes)
                touched |= {source, target}
                if source == target:
                    self.computed(source, action)
                else:
                    self.ready.add(action)
            self.start(touched)
        assert not any(self.left), "a rank waits for what nobody sends"

    def computed(self, rank: int, done: Action) -> None:
        """Send on what an action has made, to the action that starts from it."""
        last = len(self.load.forward) - 1
        if done.backward and done.chunk == 0:
            return
        if not done.backward and done.chunk == last:
            following = done._replace(backward=True)
        else:
            following = done._replace(chunk=done.chunk + (-1 if done.backward else 1))
        target = following.chunk % self.ranks
        if target == rank:
            self.ready.add(following)
        else:
            self.queues[rank, target].append((self.now, following))

    def start(self, touched: set[int]) -> None:
        """Start what can be, at these ranks and on their wires: transfers first."""
        pairs = {pair for rank in touched for pair in self.near[rank] if self.queues[pair]}
        for pair in sorted(pairs, key=lambda pair: (self.queues[pair][0][0], pair)):
            lanes = self.lanes[pair]
            if self.busy.isdisjoint(lanes):
                _, action = self.queues[pair].popleft()
                seconds = self.load.received[action.chunk + action.backward] / self.speed
                self.sending[pair[0]] += seconds
                self.begin(seconds, lanes, pair, action)
        for rank in touched:
            lane = ("rank", rank)
            if self.left[rank] and self.left[rank][0] in self.ready and lane not in self.busy:
                action = self.left[rank].popleft()
                seconds = (self.load.backward if action.backward else self.load.forward)[action.chunk]
                self.computing[rank] += seconds
                self.begin(seconds, (lane,), (rank, rank), action)

    def begin(self, seconds: float, lanes: tuple[Hashable, ...], pair: Pair, action: Action) -> None:
        """Something that takes its lanes for some seconds."""
        self.busy.update(lanes)
        heapq.heappush(self.events, (self.now + seconds, next(self.numbers), lanes, pair, action))


def _lanes(wires: Wires, source: int, target: int) -> tuple[Hashable, ...]:
    """What a transfer has for itself while it lasts."""
    return {
        Wires.LINKS: (("link", source, target),),
        Wires.PORTS: (("out", source), ("in", target)),
        Wires.BLOCKING: (("rank", source),),
    }[wires]
