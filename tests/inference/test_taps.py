"""A tap is what the next consumer reads, for every sublayer, the last one included."""

import pytest
import torch
import torch.nn.functional as F

from attention_residuals import Additive, AttnRes, InputError, ReadScale, Sublayers
from attention_residuals.inference import GrowingCache, Session, forward_with_taps
from attention_residuals.ops.reference import attn_res_reference
from attention_residuals.streams import AttnResStream

from .support import RESIDUALS, build, prompts

each_residual = pytest.mark.parametrize("residual", RESIDUALS.values(), ids=RESIDUALS.keys())
TOKENS = torch.stack(prompts(12, 12))


@each_residual
def test_taps_change_nothing(residual) -> None:
    model = build(residual)
    logits, taps = forward_with_taps(model, TOKENS, range(model.config.sublayers))
    assert torch.equal(logits, model(TOKENS))
    assert list(taps) == list(range(model.config.sublayers))


@each_residual
def test_a_tap_is_what_the_next_sublayer_is_given_and_the_last_what_the_head_is(residual) -> None:
    model = build(residual)
    seen: dict[int, torch.Tensor] = {}
    for i, sublayer in model.sublayers.items():

        def look(_: object, inputs: tuple[torch.Tensor, ...], i: int = int(i)) -> None:
            seen[i] = inputs[0]

        sublayer.register_forward_pre_hook(look)
    logits, taps = forward_with_taps(model, TOKENS, range(model.config.sublayers))
    config = model.config
    for i, tap in taps.items():
        if i + 1 < config.sublayers:
            weight = model.stream.pre_norms[str(i + 1)]
            normed = F.rms_norm(tap.mixture, (config.width,), weight, config.norm_eps)
            torch.testing.assert_close(normed, seen[i + 1], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(model.logits(taps[config.sublayers - 1].mixture), logits, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("scale", ReadScale)
@pytest.mark.parametrize("block", [1, 3, 4])
def test_weights_mix_the_sources_to_the_mixture(block: int, scale: ReadScale) -> None:
    model = build(AttnRes(Sublayers(block), scale=scale)).double()
    stream, outputs = model.stream, []
    assert isinstance(stream, AttnResStream)
    for sublayer in model.sublayers.values():
        sublayer.register_forward_hook(lambda *arguments: outputs.append(arguments[2]))
    _, taps = forward_with_taps(model, TOKENS, range(model.config.sublayers))
    for i, tap in taps.items():
        done = outputs[: i + 1]
        sums = [sum(done[n : n + block]) for n in range(0, len(done), block)]
        sources = [model.embedding(TOKENS), *sums]
        key = "output" if i + 1 == model.config.sublayers else str(i + 1)
        expected, weights = attn_res_reference(sources, stream.queries[key], stream.key_norms[key], eps=1e-6)
        gain = len(sources) if scale is ReadScale.SUM else 1
        assert tap.weights is not None
        torch.testing.assert_close(tap.weights, weights, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(tap.mixture, gain * expected, rtol=1e-10, atol=1e-10)


def test_the_standard_residual_has_its_sum_and_no_weights() -> None:
    model = build(Additive())
    _, taps = forward_with_taps(model, TOKENS, [0])
    assert taps[0].weights is None
    expected = model.embedding(TOKENS) + model.compute(0, model.stream.read((model.embedding(TOKENS),), 0))
    torch.testing.assert_close(taps[0].mixture, expected)


def test_without_an_output_read_the_last_tap_is_the_sum_that_the_head_sees() -> None:
    model = build(AttnRes(Sublayers(3), output_read=False))
    logits, taps = forward_with_taps(model, TOKENS, [model.config.sublayers - 1])
    last = taps[model.config.sublayers - 1]
    torch.testing.assert_close(model.logits(last.mixture), logits)
    assert last.weights is not None and torch.equal(last.weights[0], last.weights[-1])


@each_residual
def test_taps_in_a_session(residual) -> None:
    """While decoding with a cache, as a draft model is fed."""
    model, last = build(residual), TOKENS.shape[1] - 1
    _, whole = forward_with_taps(model, TOKENS, [2, 9])
    session, valid = Session(model, GrowingCache()), torch.ones_like(TOKENS, dtype=torch.bool)
    session.advance(TOKENS[:, :last], valid[:, :last])
    logits, taps = forward_with_taps(model, TOKENS[:, last:], [2, 9], session.context(valid[:, last:]))
    torch.testing.assert_close(logits[:, -1], model(TOKENS)[:, -1], rtol=1e-4, atol=1e-4)
    for i in (2, 9):
        torch.testing.assert_close(taps[i].mixture[:, -1], whole[i].mixture[:, -1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("i", [-1, 10])
def test_a_sublayer_that_is_not_there_is_named(i: int) -> None:
    with pytest.raises(InputError, match=rf"a tap after sublayer {i} is asked for; .* are 0 to 9"):
        forward_with_taps(build(AttnRes()), TOKENS, [i])
