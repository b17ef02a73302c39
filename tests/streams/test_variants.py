"""Each variant of the paper's Table 4 against its formula, alone and combined; contradictions are refused."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from attention_residuals import InputError
from attention_residuals.streams import AttnRes, AttnResStream, Blocks, Layers, Query, ReadScale, Sublayers, Weighting
from attention_residuals.streams.direct import DirectStream
from attention_residuals.streams.two_phase import TwoPhaseStream

from .relatives import assert_follows, block_sums, built
from .support import draw, walk

SUBLAYERS = 7

CASES = {
    "sigmoid": AttnRes(weighting=Weighting.SIGMOID),
    "sigmoid in blocks, summed": AttnRes(Sublayers(3), weighting=Weighting.SIGMOID, scale=ReadScale.SUM),
    "keys not normed": AttnRes(key_norm=False),
    "keys not normed, in blocks": AttnRes(Sublayers(4), key_norm=False, scale=ReadScale.SUM),
    "dynamic": AttnRes(query=Query.PROJECTED),
    "dynamic in blocks": AttnRes(Layers(1), query=Query.PROJECTED, scale=ReadScale.SUM),
    "dynamic, keys not normed": AttnRes(query=Query.PROJECTED, key_norm=False),
    "static": AttnRes(query=Query.NONE),
    "static sigmoids in blocks": AttnRes(Sublayers(2), query=Query.NONE, weighting=Weighting.SIGMOID),
    "window": AttnRes(window_sublayers=3),
    "window, summed": AttnRes(window_sublayers=2, scale=ReadScale.SUM),
    "window of static heads": AttnRes(window_sublayers=3, query=Query.NONE, heads=3),
    "heads": AttnRes(heads=2),
    "heads in blocks": AttnRes(Sublayers(4), heads=3, scale=ReadScale.SUM),
    "everything": AttnRes(window_sublayers=4, query=Query.PROJECTED, weighting=Weighting.SIGMOID, heads=6),
    "sources normed": AttnRes(Layers(1), normed_sources=True, logit_scale=6**-0.5),
    "sources normed, in a window, by sigmoids": AttnRes(
        window_sublayers=2, normed_sources=True, weighting=Weighting.SIGMOID, heads=2, scale=ReadScale.SUM
    ),
    "sources normed, static": AttnRes(Sublayers(3), query=Query.NONE, normed_sources=True, logit_scale=2.0),
    "logits scaled": AttnRes(Sublayers(3), logit_scale=0.5),
    "no output read": AttnRes(Sublayers(3), output_read=False, weighting=Weighting.SIGMOID),
}


def formula(residual: AttnRes, stream: AttnResStream) -> Callable[[Sequence[Tensor], int], Tensor]:
    """What read `i` makes of v_0, ..., v_i, from the parameters' names and the words of the documentation."""
    parameters = dict(stream.named_parameters())
    block = residual.block.in_sublayers(stream.shape.sublayers)

    def logits(sources: Tensor, key: str) -> Tensor:
        heads = residual.heads
        if residual.query is Query.NONE:
            scalars = parameters[f"depth_logits.{key}"]
            return scalars[:, None, None, :].expand(len(sources), *sources.shape[1:3], heads)
        keys = sources
        if residual.key_norm and not residual.normed_sources:
            size = ((sources**2).mean(-1, keepdim=True) + residual.key_eps) ** 0.5
            keys = parameters[f"key_norms.{key}"] * sources / size
        if residual.query is Query.PROJECTED:
            newest = sources[-1] / ((sources[-1] ** 2).mean(-1, keepdim=True) + residual.key_eps) ** 0.5
            query = torch.einsum("od,btd->bto", parameters[f"query_projections.{key}"], newest / newest.shape[-1])
        else:
            query = parameters[f"queries.{key}"].expand_as(sources[0])
        parts = zip(keys.chunk(heads, -1), query.chunk(heads, -1), strict=True)
        return torch.stack([torch.einsum("nbtd,btd->nbt", k, q) for k, q in parts], dim=-1)

    def read(v: Sequence[Tensor], i: int) -> Tensor:
        if i == 0:
            return v[0]
        sources = block_sums(v, block)
        if i == stream.shape.sublayers and not residual.output_read:
            return torch.stack(sources).sum(0)
        if residual.window_sublayers is not None:
            sources = [sources[0], *sources[1:][-residual.window_sublayers :]]
        stacked = torch.stack(sources)
        if residual.normed_sources:
            stacked = stacked / ((stacked**2).mean(-1, keepdim=True) + residual.key_eps) ** 0.5
        scores = residual.logit_scale * logits(stacked, "output" if i == stream.shape.sublayers else str(i))
        if residual.weighting is Weighting.SIGMOID:
            weights = 2 / len(sources) / (1 + torch.exp(-scores))
        else:
            weights = torch.exp(scores) / torch.exp(scores).sum(0)
        heads = zip(stacked.chunk(residual.heads, -1), weights.unbind(-1), strict=True)
        mixed = torch.cat([torch.einsum("nbt,nbtd->btd", weight, part) for part, weight in heads], dim=-1)
        return mixed * len(sources) if residual.scale is ReadScale.SUM else mixed

    return read


@pytest.mark.parametrize("residual", CASES.values(), ids=CASES.keys())
def test_outputs_and_gradients_are_those_of_the_formula(residual: AttnRes) -> None:
    stream = built(residual, SUBLAYERS)
    assert isinstance(stream, AttnResStream)
    assert_follows(stream, formula(residual, stream))


def test_the_formula_is_the_method_where_nothing_varies() -> None:
    stream = built(AttnRes(Sublayers(3)), SUBLAYERS)
    assert isinstance(stream, AttnResStream)
    assert_follows(stream, formula(AttnRes(Sublayers(3)), stream))


def test_the_method_itself_runs_as_before() -> None:
    assert type(AttnRes().build(6, 4)) is type(AttnRes(Blocks(2)).build(6, 4)) is TwoPhaseStream
    assert type(AttnRes(two_phase=False).build(6, 4)) is DirectStream


def test_a_window_wider_than_the_network_is_full() -> None:
    embedding = draw(2, 3, 6)
    full, windowed = built(AttnRes(two_phase=False), 5), built(AttnRes(window_sublayers=9), 5)
    for ours, theirs in zip(walk(windowed, embedding), walk(full, embedding), strict=True):
        assert torch.allclose(ours[-1], theirs[-1], rtol=1e-12, atol=1e-12)


def test_weights_outside_the_window_are_zero() -> None:
    stream = built(AttnRes(window_sublayers=2), 6)
    assert isinstance(stream, AttnResStream)
    *_, last = walk(stream, draw(2, 3, 6))
    weights = stream.weights(last, 6)
    assert [bool(weight.any()) for weight in weights] == [True, False, False, False, False, True, True]
    assert torch.allclose(weights.sum(0), torch.ones(2, 3, dtype=torch.float64))


def test_a_sigmoid_lets_sources_be_ignored_together() -> None:
    stream = built(AttnRes(weighting=Weighting.SIGMOID), 4)
    assert isinstance(stream, AttnResStream)
    *_, last = walk(stream, draw(2, 3, 6))
    sums = stream.weights(last, 4).sum(0)
    assert (sums.max() - sums.min()) > 0.1 and sums.min() > 0 and sums.max() < 2


def test_descriptions_name_what_varies() -> None:
    assert "variant" not in AttnRes().build(4, 6).describe() and ";" not in AttnRes().build(4, 6).describe()
    everything = CASES["everything"].build(4, 6).describe()
    assert everything.endswith("; query projected, sigmoid, window of 4 sublayers, 6 heads")
    assert AttnRes(key_norm=False).build(4, 6).describe().endswith("; keys not normed")
    assert CASES["sources normed"].build(4, 6).describe().endswith("; sources normed, logits times 0.408248")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"window_sublayers": 8, "block": Sublayers(4)}, r"window_sublayers is 8 and block is Sublayers\(count=4\)"),
        ({"window_sublayers": 8, "block": Blocks(4)}, r"window_sublayers is 8 and block is Blocks\(count=4\)"),
        ({"query": Query.NONE, "key_norm": False}, "query is Query.NONE and key_norm is False"),
        ({"window_sublayers": 0}, "window_sublayers is 0; it must be a whole number of at least 1"),
        ({"window_sublayers": 2.5}, "window_sublayers is 2.5; it must be a whole number"),
        ({"heads": 0}, "heads is 0; it must be a whole number of at least 1"),
        ({"query": "projected"}, "query is 'projected'; choose one of Query.LEARNED, Query.PROJECTED, Query.NONE"),
        ({"weighting": 1}, "weighting is 1; choose one of Weighting.SOFTMAX, Weighting.SIGMOID"),
        ({"key_eps": -1.0}, "key_eps is -1.0"),
        ({"normed_sources": True, "key_norm": False}, "normed_sources is True and key_norm is False"),
        ({"logit_scale": 0.0}, r"logit_scale is 0\.0; it must be a positive number"),
    ],
)
def test_what_makes_no_sense_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        AttnRes(**fields)


def test_heads_that_do_not_divide_the_width_are_refused() -> None:
    with pytest.raises(InputError, match="heads is 4, which does not divide the width 6"):
        AttnRes(heads=4).build(4, 6)
