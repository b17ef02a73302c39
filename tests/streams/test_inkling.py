"""Reads of normed sources against the `Inkling2BlockAttentionResidual` of transformers, alone and through the depth."""

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import Inkling2TextConfig
from transformers.models.inkling2.modeling_inkling2 import Inkling2BlockAttentionResidual

from attention_residuals.streams import AttnRes, AttnResStream, Layers, Stream

from .support import assert_equal_to_rounding, draw, toy_sublayer

WIDTH, LAYERS, BLOCK = 6, 5, 2
OURS = AttnRes(Layers(BLOCK), normed_sources=True, logit_scale=WIDTH**-0.5)


@pytest.fixture
def in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their reads are float32 whatever they are given; here they compute in float64, by the same lines."""
    monkeypatch.setattr(Tensor, "float", Tensor.double)


def their_read(query: Tensor) -> Any:
    config = Inkling2TextConfig(hidden_size=WIDTH, num_hidden_layers=1)
    config._attn_implementation = "sdpa"  # whose softmax has the type of its input
    read = Inkling2BlockAttentionResidual(config).double()
    read.query = torch.nn.Parameter(query.detach().clone())
    return read


def stream_with_queries() -> AttnResStream:
    stream = OURS.build(2 * LAYERS, WIDTH, pre_norm=False).double()
    assert isinstance(stream, AttnResStream) and not stream.key_norms
    with torch.no_grad():
        for n, query in enumerate(stream.queries.values()):
            query.copy_(draw(WIDTH, seed=100 + n) * 2)
    return stream


def ours(stream: Stream, embedding: Tensor) -> Tensor:
    state = stream.start(embedding)
    for i in range(2 * LAYERS):
        state = stream.write(state, i, toy_sublayer(i, stream.read(state, i)))
    return stream.finish(state)


def theirs(reads: dict[str, Any], embedding: Tensor) -> Tensor:
    """The loop of their decoder layers: a read, then the boundary, then the sublayer; sums inside a block."""
    prefix, blocks = embedding, embedding[..., None, :][..., :0, :]
    for layer in range(LAYERS):
        attention, mlp = 2 * layer, 2 * layer + 1
        x = reads[str(attention)](blocks, prefix)[0] if layer else prefix
        opens = layer % BLOCK == 0
        if opens:
            blocks = torch.cat([blocks, prefix.unsqueeze(-2)], -2)
        output = toy_sublayer(attention, x)
        prefix = output if opens else prefix + output
        prefix = prefix + toy_sublayer(mlp, reads[str(mlp)](blocks, prefix)[0])
    return reads["output"](blocks, prefix)[0]


@pytest.mark.usefixtures("in_float64")
def test_outputs_and_gradients_are_those_of_transformers() -> None:
    stream, embedding = stream_with_queries(), draw(2, 3, WIDTH).requires_grad_()
    reads = {key: their_read(query) for key, query in stream.queries.items()}
    found, expected = ours(stream, embedding), theirs(reads, embedding)
    assert_equal_to_rounding(found.detach(), expected.detach())
    upstream = draw(*expected.shape, seed=9)
    mine = torch.autograd.grad(found, [embedding, *stream.queries.values()], upstream)
    other = torch.autograd.grad(expected, [embedding, *(read.query for read in reads.values())], upstream)
    for one, another in zip(mine, other, strict=True):
        assert another.abs().max() > 0
        assert_equal_to_rounding(one, another)


def test_one_read_in_float32_as_they_compute_it() -> None:
    sources = draw(2, 3, 4, WIDTH).float()
    query = draw(WIDTH, seed=1).float() * 3
    read = their_read(query).float()
    stream = AttnRes(normed_sources=True, logit_scale=WIDTH**-0.5).build(3, WIDTH)
    assert isinstance(stream, AttnResStream)
    with torch.no_grad():
        stream.queries["output"].copy_(query)
    found = stream.finish(tuple(sources.unbind(-2)))
    expected = read(sources[..., :-1, :], sources[..., -1, :])[0]
    # Sums of 6 and of 4 terms, a softmax, and values of size 1.
    assert (found - expected).abs().max() <= 32 * torch.finfo(torch.float32).eps
