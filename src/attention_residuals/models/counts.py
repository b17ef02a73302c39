"""Where the parameters of a model sit, counted on the meta device: nothing is filled or computed."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from torch import nn

from attention_residuals.models.config import BackboneConfig
from attention_residuals.models.decoder import Decoder
from attention_residuals.models.meta import without_values
from attention_residuals.nn import MixtureOfExperts


@dataclass(frozen=True)
class Part:
    """Parameters of one kind in a whole model.

    `places`: how many modules have them; of pre-norms and depth attention, how many reads. `active`: how many of
    `parameters` work for one token: of the experts those that a token chooses, of the embedding one row.
    """

    name: str
    places: int
    parameters: int
    active: int


@dataclass(frozen=True)
class ParameterCount:
    """The parts of a model, in the order in which a token meets them."""

    parts: tuple[Part, ...]

    @property
    def parameters(self) -> int:
        """Of all parts."""
        return sum(part.parameters for part in self.parts)

    @property
    def active(self) -> int:
        """At work for one token."""
        return sum(part.active for part in self.parts)


EMBEDDING, HEAD, FINAL_NORM, PRE_NORMS, DEPTH = "embedding", "head", "final norm", "pre-norms", "depth attention"
EXPERTS, SHARED, ROUTER = "experts", "shared experts", "routers"


def count_parameters(config: BackboneConfig) -> ParameterCount:
    """Count the decoder of a config, of any size, without memory for its weights."""
    with without_values():
        model = Decoder(config)
    found: dict[str, Part] = {}
    for new in _parts(model):
        old = found.get(new.name, Part(new.name, 0, 0, 0))
        found[new.name] = Part(
            new.name, old.places + new.places, old.parameters + new.parameters, old.active + new.active
        )
    return ParameterCount(tuple(part for part in found.values() if part.parameters))


def _parts(model: Decoder) -> Iterator[Part]:
    """Module by module."""
    table, head = _part(EMBEDDING, model.embedding), model.head
    yield table if head is None else replace(table, active=model.config.width)
    yield Part(PRE_NORMS, len(model.stream.pre_norms), *2 * (_size(model.stream.pre_norms),))
    depth = [child for child in model.stream.children() if child is not model.stream.pre_norms]
    reads = max((len(list(child.parameters())) for child in depth), default=0)
    yield Part(DEPTH, reads, *2 * (sum(map(_size, depth)),))
    for i in range(model.config.sublayers):
        yield from _parts_of_sublayer(model.sublayers[str(i)])
    yield _part(FINAL_NORM, model.norm)
    if head is not None:
        yield _part(HEAD, head)


def _parts_of_sublayer(sublayer: nn.Module) -> Iterator[Part]:
    if not isinstance(sublayer, MixtureOfExperts):
        yield _part(type(sublayer).__name__, sublayer)
        return
    router, shared = sublayer.router, sublayer.shared
    yield _part(ROUTER, router)
    experts = _size(sublayer) - _size(router) - (0 if shared is None else _size(shared))
    yield Part(EXPERTS, 1, experts, experts * router.top_k // router.experts)
    if shared is not None:
        yield _part(SHARED, shared)


def _part(name: str, module: nn.Module) -> Part:
    """One place, all of it at work for every token."""
    return Part(name, 1, *2 * (_size(module),))


def _size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
