"""What holds for every scheme: pure verbs, tensors in tuples, recomputation, autocast, and the depth mixing matrix."""

from functools import partial
from itertools import pairwise

import pytest
import torch
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

from attention_residuals.experiments.arms import RIVALS
from attention_residuals.streams import AttnRes, Residual, State

from ..support import (
    assert_equal_to_rounding,
    assert_gradients_equal_to_rounding,
    draw,
    loss_and_gradients,
    small_decoder,
    tensors,
    tokens,
    toy_sublayer,
    walk,
)
from . import support
from .support import SUBLAYERS, TOKENS, differs, randomise

each_rival = pytest.mark.parametrize("residual", RIVALS.values(), ids=RIVALS.keys())

WIDTH = 8
"""As many as the heads of `multihead`."""

build = partial(support.build, width=WIDTH)

WITHOUT_MATRIX = {"layerscale", "postnorm", "deepnorm", "siamesenorm", "densenet", "multihead"}
"""A source has no single weight in a read: there is one per channel or head, or a matrix."""


@each_rival
def test_no_verb_changes_a_state(residual: Residual) -> None:
    stream = build(residual)
    for i, state in enumerate(walk(stream, draw(TOKENS, WIDTH))):
        before = [(id(tensor), tensor.clone()) for tensor in tensors(state)]
        if i < SUBLAYERS:
            stream.write(state, i, toy_sublayer(i, stream.read(state, i)))
        else:
            stream.finish(state)
        assert stream.carried(state).shape == (TOKENS, WIDTH)
        for tensor, (identity, value) in zip(tensors(state), before, strict=True):
            assert id(tensor) == identity
            assert torch.equal(tensor, value)


@each_rival
def test_a_step_can_be_repeated(residual: Residual) -> None:
    stream = build(residual)
    for i, (state, following) in enumerate(pairwise(walk(stream, draw(TOKENS, WIDTH)))):
        again = stream.write(state, i, toy_sublayer(i, stream.read(state, i)))
        for ours, first in zip(tensors(again), tensors(following), strict=True):
            assert torch.equal(ours, first)


@each_rival
def test_a_state_is_nested_tuples_of_tensors(residual: Residual) -> None:
    for state in walk(build(residual), draw(TOKENS, WIDTH)):
        assert [id(leaf) for leaf in tree_leaves(state)] == [id(tensor) for tensor in tensors(state)]


@each_rival
def test_nothing_crosses_tokens(residual: Residual) -> None:
    """So that a token decoded alone is what it is in a batch."""
    stream, embedding = build(residual), draw(2, TOKENS, WIDTH)
    *_, last = walk(stream, embedding)
    *_, alone = walk(stream, embedding[1, 2])
    assert_equal_to_rounding(stream.finish(alone), stream.finish(last)[1, 2])


@each_rival
def test_activation_checkpointing_changes_nothing(residual: Residual) -> None:
    model = small_decoder(residual, layers=3)
    randomise(model.stream)

    def recomputed(inputs: torch.Tensor) -> torch.Tensor:
        state: State = model.stream.start(model.embedding(inputs))
        for i in range(model.config.sublayers):
            state = checkpoint(model.step, state, i, use_reentrant=False)
        return model.logits(model.stream.finish(state))

    logits, loss, grads = loss_and_gradients(model)
    our_logits, our_loss, ours = loss_and_gradients(model, recomputed)
    assert_equal_to_rounding(our_logits, logits)
    assert_equal_to_rounding(our_loss, loss)
    assert_gradients_equal_to_rounding(ours, grads)


@each_rival
def test_autocast_keeps_the_type_of_the_embedding(residual: Residual) -> None:
    model = small_decoder(residual, 3).float()
    with torch.autocast("cpu", torch.bfloat16):
        state = model.stream.start(model.embedding(tokens()))
        for i in range(model.config.sublayers):
            state = model.step(state, i)
        mixture = model.stream.finish(state)
        assert {tensor.dtype for tensor in tensors(state)} == {torch.float32}
        assert mixture.dtype == torch.float32
        model.logits(mixture).float().square().mean().backward()
    exact = small_decoder(residual, 3).float()
    exact(tokens()).square().mean().backward()
    ours, theirs = model.embedding.weight.grad, exact.embedding.weight.grad
    assert ours is not None and theirs is not None
    assert (ours - theirs).norm() < 0.1 * theirs.norm()


@pytest.mark.parametrize("name", [*RIVALS, "full"])
def test_mixtures_are_the_mixing_matrix_times_the_sources(name: str) -> None:
    stream = build(RIVALS.get(name, AttnRes()))
    embedding = draw(2, TOKENS, WIDTH)
    outputs, mixtures, state = [embedding], [], stream.start(embedding)
    for i in range(SUBLAYERS):
        mixtures.append(stream.mixture(state, i))
        outputs.append(toy_sublayer(i, stream.read(state, i)))
        state = stream.write(state, i, outputs[-1])
    mixtures.append(stream.finish(state))
    matrix = stream.mixing(outputs)
    if name in WITHOUT_MATRIX:
        assert matrix is None
        return
    assert matrix is not None and matrix.shape == (SUBLAYERS + 1, SUBLAYERS + 1, 2, TOKENS)
    for row, mixture in zip(matrix, mixtures, strict=True):
        mixed = sum((weight[..., None] * v for weight, v in zip(row, outputs, strict=True)), torch.zeros(()))
        assert_equal_to_rounding(mixed, mixture)
    for read in range(SUBLAYERS):
        assert not matrix[read, read + 1 :].any(), "a read has weights for what comes after it"


@pytest.mark.parametrize("name", ["highway", "hc", "mhc", "mhc-lite"])
def test_dynamic_matrices_differ_between_tokens(name: str) -> None:
    stream = build(RIVALS[name])
    matrix = stream.mixing([draw(TOKENS, WIDTH, seed=i) for i in range(SUBLAYERS + 1)])
    assert matrix is not None and differs(matrix[..., 0], matrix[..., 1])


def test_rows_of_a_highway_sum_to_one() -> None:
    matrix = build(RIVALS["highway"]).mixing([draw(TOKENS, WIDTH, seed=i) for i in range(SUBLAYERS + 1)])
    assert matrix is not None
    assert_equal_to_rounding(matrix.sum(1), torch.ones(SUBLAYERS + 1, TOKENS, dtype=torch.float64))


@each_rival
def test_a_stream_says_what_it_is(residual: Residual) -> None:
    described = build(residual).describe()
    assert described and "\n" not in described and described in repr(build(residual))
