"""States: never changed by a verb, tensors and nothing else, of known length, and safe to recompute from."""

from collections.abc import Callable
from functools import partial
from itertools import pairwise

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

from attention_residuals.models import Decoder
from attention_residuals.ops import Group
from attention_residuals.streams import Additive, AttnRes, AttnResStream, Residual, State, Sublayers

from .support import (
    assert_equal_to_rounding,
    assert_gradients_equal_to_rounding,
    draw,
    each_residual,
    loss_and_gradients,
    randomise_depth,
    small_decoder,
    tensors,
    tokens,
    toy_sublayer,
    walk,
)

SUBLAYERS = 14


@each_residual
def test_no_verb_changes_a_state(residual: Residual) -> None:
    stream = residual.build(SUBLAYERS, width=6).double()
    randomise_depth(stream)
    verbs: list[Callable[[State, int], object]] = [
        lambda state, i: stream.read(state, i) if i < SUBLAYERS else None,
        lambda state, i: stream.write(state, i, toy_sublayer(i, draw(2, 6))) if i < SUBLAYERS else None,
        lambda state, i: stream.finish(state),
        lambda state, i: stream.carried(state),
    ]
    for i, state in enumerate(walk(stream, draw(2, 6))):
        before = [(id(tensor), tensor.clone()) for tensor in tensors(state)]
        for verb in verbs:
            verb(state, i)
        for tensor, (identity, value) in zip(tensors(state), before, strict=True):
            assert id(tensor) == identity
            assert torch.equal(tensor, value)


@each_residual
def test_a_read_is_its_normed_mixture(residual: Residual) -> None:
    for pre_norm in (True, False):
        stream = residual.build(SUBLAYERS, width=6, pre_norm=pre_norm).double()
        randomise_depth(stream)
        for i, state in zip(range(SUBLAYERS), walk(stream, draw(2, 6)), strict=False):
            assert_equal_to_rounding(stream.normed(stream.mixture(state, i), i), stream.read(state, i))


@each_residual
def test_a_step_can_be_repeated(residual: Residual) -> None:
    stream = residual.build(SUBLAYERS, width=6).double()
    randomise_depth(stream)
    states = list(walk(stream, draw(2, 6)))
    for i, (state, following) in enumerate(pairwise(states)):
        again = stream.write(state, i, toy_sublayer(i, stream.read(state, i)))
        for ours, first in zip(tensors(again), tensors(following), strict=True):
            assert torch.equal(ours, first)


@each_residual
def test_a_state_is_nested_tuples_of_tensors(residual: Residual) -> None:
    """`tensors` fails on anything else, and the same state is reached through a pytree."""
    for state in walk(residual.build(SUBLAYERS, width=6).double(), draw(2, 6)):
        leaves = [leaf for leaf in tree_leaves(state) if not isinstance(leaf, Group)]
        assert [id(leaf) for leaf in leaves] == [id(tensor) for tensor in tensors(state)]


@pytest.mark.parametrize("two_phase", [False, True])
@pytest.mark.parametrize("block", [1, 3, 4, 14])
def test_the_number_of_sources_follows_from_the_sublayer(block: int, two_phase: bool) -> None:
    stream = AttnRes(Sublayers(block), two_phase=two_phase).build(SUBLAYERS, width=6).double()
    assert isinstance(stream, AttnResStream)
    for i, state in enumerate(walk(stream, draw(2, 6))):
        assert len(stream.sources(state)) == stream.reads.partition.sources(i)


def test_an_additive_state_is_one_tensor() -> None:
    assert {len(state) for state in walk(Additive().build(SUBLAYERS, width=6).double(), draw(2, 6))} == {1}


@pytest.mark.parametrize("two_phase", [False, True])
def test_a_verb_refuses_the_state_of_another_sublayer(two_phase: bool) -> None:
    stream = AttnRes(Sublayers(4), two_phase=two_phase).build(SUBLAYERS, width=6).double()
    states = list(walk(stream, draw(2, 6)))
    with pytest.raises(AssertionError, match="3 sources"):
        stream.read(states[5], 3)
    with pytest.raises(AssertionError, match="3 sources"):
        stream.write(states[5], 3, draw(2, 6))


@pytest.mark.parametrize("output_read", [True, False])
@pytest.mark.parametrize("two_phase", [False, True])
@pytest.mark.parametrize("block", [1, 4])
def test_weights_of_every_read_sum_to_one(block: int, two_phase: bool, output_read: bool) -> None:
    residual = AttnRes(Sublayers(block), output_read=output_read, two_phase=two_phase)
    stream = residual.build(SUBLAYERS, width=6).double()
    assert isinstance(stream, AttnResStream)
    randomise_depth(stream)
    for i, state in enumerate(walk(stream, draw(2, 6))):
        weights = stream.weights(state, i)
        assert weights.shape == (len(stream.sources(state)), 2)
        assert_equal_to_rounding(weights.sum(0), torch.ones(2, dtype=torch.float64))


def checkpointed(model: Decoder, tokens: Tensor) -> Tensor:
    """The forward of `model`, every sublayer recomputed in the backward."""
    state: State = model.stream.start(model.embedding(tokens))
    for i in range(model.config.sublayers):
        state = checkpoint(model.step, state, i, use_reentrant=False)
    return model.logits(model.stream.finish(state))


@each_residual
def test_activation_checkpointing_changes_nothing(residual: Residual) -> None:
    model = small_decoder(residual, layers=7)
    randomise_depth(model)
    logits, loss, grads = loss_and_gradients(model)
    our_logits, our_loss, ours = loss_and_gradients(model, partial(checkpointed, model))
    assert_equal_to_rounding(our_logits, logits)
    assert_equal_to_rounding(our_loss, loss)
    assert_gradients_equal_to_rounding(ours, grads)


@each_residual
def test_autocast_trains_as_with_the_standard_residual(residual: Residual) -> None:
    """Sublayers answer in bfloat16 there, while the stream keeps the type of the embedding."""
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
    for (name, ours), theirs in zip(model.named_parameters(), exact.parameters(), strict=True):
        assert ours.grad is not None and theirs.grad is not None, name
    ours, theirs = model.embedding.weight.grad, exact.embedding.weight.grad
    assert ours is not None and theirs is not None
    assert (ours - theirs).norm() < 0.1 * theirs.norm()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_weights_come_in_the_type_they_are_computed_in(dtype: torch.dtype) -> None:
    stream = AttnRes(Sublayers(2), output_read=False).build(4, width=4).to(dtype)
    assert isinstance(stream, AttnResStream)
    expected = torch.float64 if dtype == torch.float64 else torch.float32
    for i, state in enumerate(walk(stream, draw(2, 4).to(dtype))):
        weights = stream.weights(state, i)
        assert weights.dtype == expected
        assert torch.allclose(weights.sum(0), torch.ones(2, dtype=expected))
