"""Two-phase execution is the same network: outputs and the gradient of every parameter."""

import pytest

from attention_residuals.streams import AttnRes, ReadScale, Sublayers

from .support import (
    assert_equal_to_rounding,
    assert_gradients_equal_to_rounding,
    loss_and_gradients,
    randomise_depth,
    small_decoder,
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
