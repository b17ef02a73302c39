"""The standard residual, the two ends of Block, and what equals it: the read scale SUM with zero queries, exactly."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from attention_residuals.ops import attn_res_reference
from attention_residuals.streams import (
    Additive,
    AttnRes,
    AttnResStream,
    Blocks,
    BlockSize,
    ReadScale,
    Stream,
    Sublayers,
)

from .support import (
    ROUNDINGS,
    apart,
    assert_equal_to_rounding,
    assert_gradients_equal_to_rounding,
    draw,
    loss_and_gradients,
    randomise_depth,
    run,
    small_decoder,
    toy_sublayer,
    walk,
)

LAYERS = 6
SIZES = [Sublayers(1), Sublayers(3), Sublayers(4), Sublayers(5), Blocks(1)]
DEPTH_PARAMETERS = ("stream.queries.", "stream.key_norms.")


def pre_norm(stream: Stream, i: int, mixture: Tensor) -> Tensor:
    return F.rms_norm(mixture, (stream.shape.width,), stream.pre_norms[str(i)], stream.shape.norm_eps)


def randomise_pre_norms(stream: Stream) -> None:
    with torch.no_grad():
        for n, weight in enumerate(stream.pre_norms.values()):
            weight.copy_(1 + 0.3 * draw(*weight.shape, seed=n))


def test_additive_is_the_plain_residual_loop() -> None:
    stream = Additive().build(12, width=6).double()
    randomise_pre_norms(stream)
    x = draw(2, 6)
    for i, state in zip(range(12), walk(stream, x.clone()), strict=False):
        assert_equal_to_rounding(stream.carried(state), x)
        x = x + toy_sublayer(i, pre_norm(stream, i, x))
    assert_equal_to_rounding(run(stream, draw(2, 6)), x)


@pytest.mark.parametrize("scale", ReadScale)
@pytest.mark.parametrize("two_phase", [False, True])
def test_blocks_of_one_sublayer_are_full_attention_residuals(two_phase: bool, scale: ReadScale) -> None:
    stream = AttnRes(Sublayers(1), scale=scale, two_phase=two_phase).build(12, width=6).double()
    assert isinstance(stream, AttnResStream)
    randomise_pre_norms(stream)
    randomise_depth(stream)

    def read(sources: list[Tensor], key: str) -> Tensor:
        gain = len(sources) if scale is ReadScale.SUM else 1
        return gain * attn_res_reference(sources, stream.queries[key], stream.key_norms[key])[0]

    sources = [draw(2, 6)]
    for i in range(12):
        mixture = read(sources, str(i)) if i else sources[0]
        sources.append(toy_sublayer(i, pre_norm(stream, i, mixture)))
    assert_equal_to_rounding(run(stream, draw(2, 6)), read(sources, "output"))


def shared(grads: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: grad for name, grad in grads.items() if not name.startswith(DEPTH_PARAMETERS)}


@pytest.mark.parametrize("two_phase", [False, True])
@pytest.mark.parametrize("size", SIZES, ids=repr)
def test_sum_with_zero_queries_is_the_standard_residual(size: BlockSize, two_phase: bool) -> None:
    logits, loss, grads = loss_and_gradients(small_decoder(Additive(), LAYERS))
    residual = AttnRes(size, scale=ReadScale.SUM, two_phase=two_phase)
    our_logits, our_loss, ours = loss_and_gradients(small_decoder(residual, LAYERS))
    assert_equal_to_rounding(our_logits, logits)
    assert_equal_to_rounding(our_loss, loss)
    assert_gradients_equal_to_rounding(shared(ours), grads)


@pytest.mark.parametrize("size", SIZES, ids=repr)
def test_mean_with_zero_queries_is_the_standard_residual_but_for_eps(size: BlockSize) -> None:
    """A mean of N sources is N times smaller than their sum, so the eps of the norm behind it weighs N^2 times more."""
    for norm_eps, equal in ((1e-6, False), (0.0, True)):
        logits, loss, grads = loss_and_gradients(small_decoder(Additive(), LAYERS, norm_eps))
        our_logits, our_loss, ours = loss_and_gradients(small_decoder(AttnRes(size), LAYERS, norm_eps))
        assert (apart(our_loss, loss) <= ROUNDINGS) == equal
        assert (apart(our_logits, logits) <= ROUNDINGS) == equal
        if equal:
            assert_gradients_equal_to_rounding(shared(ours), grads)


@pytest.mark.parametrize("size", SIZES, ids=repr)
def test_depth_gradients_with_zero_queries(size: BlockSize) -> None:
    """Query and key weight enter as a product, so that a zero query learns first and the weight waits for it."""
    _, _, grads = loss_and_gradients(small_decoder(AttnRes(size), LAYERS))
    for name, grad in grads.items():
        if name.startswith("stream.key_norms."):
            assert torch.equal(grad, torch.zeros_like(grad)), name
        if name.startswith("stream.queries."):
            assert grad.abs().max() > 0, name


@pytest.mark.parametrize("scale", ReadScale)
def test_one_block_is_not_the_standard_residual(scale: ReadScale) -> None:
    """It mixes the embedding with one running sum, in proportions of its own."""
    stream = AttnRes(Blocks(1), scale=scale).build(6, width=6, pre_norm=False).double()
    assert isinstance(stream, AttnResStream)
    randomise_depth(stream)
    *_, last = walk(stream, draw(2, 6))
    mixed, plain = stream.finish(last), torch.stack(stream.sources(last)).sum(0)
    assert len(stream.sources(last)) == 2
    # Not even up to a factor: the directions differ.
    assert (F.cosine_similarity(mixed, plain, dim=-1) < 0.99).any()


def test_one_block_with_zero_queries_is_half_the_standard_residual_before_a_norm() -> None:
    stream = AttnRes(Blocks(1)).build(6, width=6, pre_norm=False).double()
    assert isinstance(stream, AttnResStream)
    *_, last = walk(stream, draw(2, 6))
    plain = torch.stack(stream.sources(last)).sum(0)
    assert_equal_to_rounding(2 * stream.finish(last), plain)
    assert apart(stream.finish(last), plain) > ROUNDINGS


@pytest.mark.parametrize("scale", ReadScale)
@pytest.mark.parametrize("two_phase", [False, True])
@pytest.mark.parametrize("block", [1, 4])
def test_without_output_read_the_head_sees_the_plain_sum(block: int, two_phase: bool, scale: ReadScale) -> None:
    residual = AttnRes(Sublayers(block), scale=scale, output_read=False, two_phase=two_phase)
    stream = residual.build(9, width=6, pre_norm=False).double()
    assert isinstance(stream, AttnResStream)
    randomise_depth(stream)
    embedding = draw(2, 6)
    total, state = embedding, stream.start(embedding)
    for i in range(9):
        output = toy_sublayer(i, stream.read(state, i))
        total, state = total + output, stream.write(state, i, output)
    assert_equal_to_rounding(stream.finish(state), total)
    assert "output" not in stream.queries
