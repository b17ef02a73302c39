"""An encoder and a decoder on streams of their own: parity with the plain residual, padding, bad sizes."""

import dataclasses

import pytest
import torch
from torch import Tensor

from attention_residuals import Additive, AttnRes, InputError, ReadScale, Residual, Sublayers
from attention_residuals.configs import from_plain, to_plain
from attention_residuals.models import (
    EncoderDecoder,
    EncoderDecoderConfig,
    Role,
    build_encoder_decoder,
    parameter_roles,
)
from attention_residuals.nn import Attention, CrossAttention, SwiGLU

CONFIG = EncoderDecoderConfig(
    vocab_size=13, source_layers=2, target_layers=3, width=12, heads=4, kv_heads=2, head_dim=4, mlp_width=10
)
SUMS = [
    AttnRes(scale=ReadScale.SUM),
    AttnRes(Sublayers(4), scale=ReadScale.SUM),
    AttnRes(Sublayers(3), scale=ReadScale.SUM, two_phase=False, output_read=False),
]


def build(residual: Residual = CONFIG.residual, seed: int = 0) -> EncoderDecoder:
    return build_encoder_decoder(dataclasses.replace(CONFIG, residual=residual), seed=seed, dtype=torch.float64)


def drawn_queries(model: EncoderDecoder) -> EncoderDecoder:
    """As large as those of a trained model: at zero the key norms get no gradient."""
    with torch.no_grad():
        for name, role in parameter_roles(model).items():
            if role is Role.DEPTH_QUERY:
                model.get_parameter(name).normal_(generator=torch.Generator().manual_seed(1))
    return model


def draw(rows: int, tokens: int) -> Tensor:
    return torch.randint(13, (rows, tokens), generator=torch.Generator().manual_seed(tokens))


def loss_and_gradients(model: EncoderDecoder) -> tuple[Tensor, dict[str, Tensor]]:
    target = draw(2, 7)
    logits = model(draw(2, 5), target[:, :-1])
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten())
    loss.backward()
    return loss.detach(), {name: one.grad for name, one in model.named_parameters() if one.grad is not None}


def test_a_layer_of_the_decoder_has_three_sublayers() -> None:
    model = build(AttnRes(Sublayers(3)))
    kinds = [type(sublayer) for sublayer in model.decoder.sublayers.values()]
    assert kinds == [Attention, CrossAttention, SwiGLU] * 3
    assert [type(sublayer) for sublayer in model.encoder.sublayers.values()] == [Attention, SwiGLU] * 2
    assert "3 blocks of 3, 4 sources" in model.decoder.stream.describe()
    assert model.encoder.stream.shape.sublayers == 4 and model.decoder.stream.shape.sublayers == 9


@pytest.mark.parametrize("residual", SUMS)
def test_with_zero_queries_it_is_the_standard_network(residual: AttnRes) -> None:
    plain, depth = build(Additive()), build(residual)
    shared = dict(depth.named_parameters())
    with torch.no_grad():
        for name, parameter in plain.named_parameters():
            shared[name].copy_(parameter)
    loss, gradients = loss_and_gradients(plain)
    found, found_gradients = loss_and_gradients(depth)
    torch.testing.assert_close(found, loss, rtol=0, atol=1e-12)
    assert gradients.keys() == {name for name, _ in plain.named_parameters()}
    for name, gradient in gradients.items():
        torch.testing.assert_close(found_gradients[name], gradient, rtol=0, atol=1e-12, msg=name)
    _, moved = loss_and_gradients(drawn_queries(build(residual)))
    assert any((moved[name] - gradients[name]).abs().max() > 1e-3 for name in gradients), "this test can fail"


def test_the_encoder_looks_both_ways_and_the_decoder_does_not() -> None:
    model, source, target = build(AttnRes(Sublayers(2))), draw(1, 6), draw(1, 8)
    other_source, other_target = source.clone(), target.clone()
    other_source[:, -1], other_target[:, 5] = (source[:, -1] + 1) % 13, (target[:, 5] + 1) % 13
    changed = (model.encode(other_source).features - model.encode(source).features).abs().amax(-1)
    assert (changed > 0).all()
    assert torch.equal(model(source, other_target)[:, :5], model(source, target)[:, :5])
    assert not torch.equal(model(other_source, target)[:, 0], model(source, target)[:, 0])


@pytest.mark.parametrize("residual", [Additive(), AttnRes(Sublayers(4))])
@pytest.mark.parametrize("side", ["left", "right", "between"])
def test_padding_of_source_and_target_leaves_no_trace(residual: Residual, side: str) -> None:
    model = drawn_queries(build(residual)).requires_grad_(False)
    places = {"left": [0, 1, 2], "right": [6, 7, 8], "between": [1, 4, 5]}[side]
    valid = torch.ones(1, 9, dtype=torch.bool)
    valid[:, places] = False
    source, target = draw(2, 9), draw(2, 9) * 3 % 13
    valid = torch.cat((valid, torch.ones(1, 9, dtype=torch.bool)))
    found = model(source, target, valid, valid)
    for row in range(2):
        here = valid[row]
        alone = model(source[row, here][None], target[row, here][None])[0]
        torch.testing.assert_close(found[row, here], alone, rtol=1e-11, atol=1e-11)
    other = source.masked_fill(~valid, 3), target.masked_fill(~valid, 4)
    assert torch.equal(model(*other, valid, valid)[valid], found[valid])


def test_padding_behind_a_target_need_not_be_told() -> None:
    model, source, target = build(AttnRes()).requires_grad_(False), draw(1, 5), draw(1, 7)
    torch.testing.assert_close(model(source, target)[:, :4], model(source, target[:, :4]), rtol=1e-12, atol=1e-12)


def test_values_go_by_seed_and_name() -> None:
    one, other, third = build(Additive()), build(AttnRes(Sublayers(2))), build(Additive(), seed=1)
    names = dict(other.named_parameters())
    scales, others = (
        {"encoder": x.encoder.stream.output_scale, "decoder": x.decoder.stream.output_scale} for x in (one, other)
    )
    assert scales == {"encoder": 4**-0.5, "decoder": 9**-0.5}
    ratio = one.decoder.get_parameter("sublayers.1.output.weight").std() / 9**-0.5 * 16**0.5
    assert 0.8 < ratio < 1.2
    for name, parameter in one.named_parameters():
        half = name.partition(".")[0]
        factor = others[half] / scales[half] if name.endswith("output.weight") else 1
        torch.testing.assert_close(names[name], parameter * factor, rtol=1e-6, atol=0)
    assert not torch.equal(third.decoder.embedding.weight, one.decoder.embedding.weight)
    assert not torch.equal(one.encoder.embedding.weight, one.decoder.embedding.weight)


def test_the_decoder_may_have_a_stream_of_another_kind() -> None:
    config = dataclasses.replace(CONFIG, residual=AttnRes(), target_residual=Additive())
    model = build_encoder_decoder(config, seed=0)
    assert "queries" not in dict(model.decoder.stream.named_children())
    assert "queries" in dict(model.encoder.stream.named_children())


def test_a_config_comes_back_from_plain_and_follows_from_the_depth() -> None:
    config = EncoderDecoderConfig.from_depth(6, vocab_size=40, residual=AttnRes(Sublayers(6)))
    assert from_plain(EncoderDecoderConfig, to_plain(config)) == config
    assert config.source_layers == config.target_layers == 6 and config.width == 32 and config.target_sublayers == 18


@pytest.mark.parametrize(
    "name", ["vocab_size", "source_layers", "target_layers", "width", "heads", "kv_heads", "head_dim", "mlp_width"]
)
def test_sizes_below_one_are_refused(name: str) -> None:
    with pytest.raises(InputError, match=f"{name} is 0"):
        dataclasses.replace(CONFIG, **{name: 0})


def test_sizes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InputError, match="4 query heads cannot share 3"):
        dataclasses.replace(CONFIG, kv_heads=3)
    with pytest.raises(InputError, match="head_dim is 5"):
        dataclasses.replace(CONFIG, head_dim=5)
    with pytest.raises(InputError, match="depth is 0"):
        EncoderDecoderConfig.from_depth(0)
    valid = torch.tensor([[True, True], [False, False]])
    with pytest.raises(InputError, match="source 1 has no token"):
        build().encode(draw(2, 2), valid)
