"""Two-phase execution is the same network: outputs and the gradient of every parameter."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from attention_residuals.streams import AttnRes, ReadScale, State, Stream, Sublayers

from ..ops.counting import Additions, FirstPhases
from .support import (
    assert_equal_to_rounding,
    assert_gradients_equal_to_rounding,
    draw,
    loss_and_gradients,
    randomise_depth,
    run,
    small_decoder,
    tokens,
    walk,
)


@pytest.mark.parametrize("scale", ReadScale)
@pytest.mark.parametrize("layers", [6, 7, 8, 13])
@pytest.mark.parametrize("block", [1, 3, 4, 6])
def test_two_phase_equals_direct(block: int, layers: int, scale: ReadScale) -> None:
    results = []
    for two_phase in (False, True):
        model = small_decoder(AttnRes(Sublayers(block), scale=scale, two_phase=two_phase), layers)
        randomise_depth(model)
        results.append(loss_and_gradients(model))
    (logits, loss, grads), (our_logits, our_loss, ours) = results
    assert_equal_to_rounding(our_logits, logits)
    assert_equal_to_rounding(our_loss, loss)
    assert_gradients_equal_to_rounding(ours, grads)
    assert ours.keys() == {name for name, _ in model.named_parameters()}
    assert all(grad.abs().max() > 0 for grad in ours.values())


def test_both_orders_have_the_same_parameters() -> None:
    direct, phased = (small_decoder(AttnRes(Sublayers(4), two_phase=phased), 3) for phased in (False, True))
    phased.load_state_dict(direct.state_dict(), strict=True)
    assert list(direct.state_dict()) == list(phased.state_dict())


def stream_of(block: int, sublayers: int, two_phase: bool = True, pre_norm: bool = True) -> Stream:
    stream = AttnRes(Sublayers(block), two_phase=two_phase).build(sublayers, width=6, pre_norm=pre_norm).double()
    randomise_depth(stream)
    return stream


def step(stream: Stream, state: State, i: int) -> State:
    """What this sublayer reads and writes is used once."""
    return stream.write(state, i, torch.tanh(stream.read(state, i)))


def chain(stream: Stream, embedding: Tensor) -> Tensor:
    state = stream.start(embedding)
    for i in range(stream.shape.sublayers):
        state = step(stream, state, i)
    return stream.finish(state)


def checkpointed_chain(stream: Stream, embedding: Tensor) -> Tensor:
    """Every step recomputed in the backward."""
    state = stream.start(embedding)
    for i in range(stream.shape.sublayers):
        state = checkpoint(step, stream, state, i, use_reentrant=False)
    return stream.finish(state)


@pytest.mark.parametrize(
    ("block", "sublayers", "groups"), [(4, 16, 4), (4, 14, 4), (3, 12, 4), (1, 24, 3), (12, 12, 1)]
)
def test_the_first_phase_of_a_block_is_recomputed_once(block: int, sublayers: int, groups: int) -> None:
    """Full has groups of eight reads."""
    stream, embedding = stream_of(block, sublayers), draw(7, 6).requires_grad_()
    with FirstPhases(tokens=7) as phases:
        loss = chain(stream, embedding).sum()
        assert phases.count == groups
        loss.backward()
        assert phases.count == groups
    with FirstPhases(tokens=7) as phases:
        loss = checkpointed_chain(stream, embedding).sum()
        assert phases.count == groups
        loss.backward()
        assert phases.count == 2 * groups


@pytest.mark.parametrize("block", [1, 4])
def test_autograd_adds_up_no_gradients_of_sources(block: int) -> None:
    """They come in one piece from each group, what later groups gave included. Sublayer 0 reads the embedding as it
    is, beside the groups: that is one addition."""
    counts = []
    for two_phase in (True, False):
        # Without pre-norms, whose own backward adds.
        result = chain(stream_of(block, 24, two_phase, pre_norm=False), draw(7, 6).requires_grad_())
        with Additions((7, 6)) as additions:
            result.sum().backward()
        counts.append(additions.count)
    assert counts[0] == 1 < 24 < counts[1]


@pytest.mark.parametrize("block", [1, 4])
def test_a_verb_may_be_repeated_and_every_result_counts(block: int) -> None:
    """Reading twice, or going on twice from one state, gives each result its share of the gradients."""
    results = []
    for two_phase in (True, False):
        stream, embedding = stream_of(block, 14, two_phase), draw(2, 6).requires_grad_()
        losses = []
        for i, state in enumerate(walk(stream, embedding)):
            if i < 14:
                losses += [stream.read(state, i).sum(), 2 * stream.read(state, i).square().sum()]
                branch = stream.write(state, i, torch.sin(stream.read(state, i)))
                losses.append(stream.finish(branch).sum() if i == 13 else stream.read(branch, i + 1).sum())
        inputs = [embedding, *stream.parameters()]
        results.append(torch.autograd.grad(torch.stack(losses).sum(), inputs, allow_unused=True))
    for ours, expected in zip(*results, strict=True):
        if ours is None or expected is None:
            assert ours is None and expected is None
        else:
            assert_equal_to_rounding(ours, expected)


@pytest.mark.parametrize("block", [1, 4])
def test_a_second_derivative_is_refused(block: int) -> None:
    stream, embedding = stream_of(block, 9), draw(2, 6).requires_grad_()
    leaves = [embedding, *(parameter for name, parameter in stream.named_parameters() if "norms." not in name)]
    loss = run(stream, embedding).square().sum()
    for grad in torch.autograd.grad(loss, leaves, create_graph=True):
        for leaf in leaves:
            with pytest.raises(RuntimeError, match="a second derivative through it is not implemented"):
                torch.autograd.grad(grad.square().sum(), leaf, retain_graph=True)


@pytest.mark.parametrize("two_phase", [False, True])
@pytest.mark.parametrize("block", [1, 4])
def test_a_functional_call_under_grad(block: int, two_phase: bool) -> None:
    model = small_decoder(AttnRes(Sublayers(block), two_phase=two_phase), layers=5)
    randomise_depth(model)
    _, _, expected = loss_and_gradients(model)
    inputs = tokens()

    def loss(parameters: dict[str, Tensor]) -> Tensor:
        logits = torch.func.functional_call(model, parameters, (inputs,))
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), inputs[:, 1:].flatten())

    ours = torch.func.grad(loss)({name: parameter.detach() for name, parameter in model.named_parameters()})
    assert_gradients_equal_to_rounding({name: ours[name] for name in expected}, expected)
    assert not any(ours[name].any() for name in ours.keys() - expected.keys())
