"""The decoder: sizes from one dial, values by name, the plain loop."""

import dataclasses

import pytest
import torch

from attention_residuals import Additive, AttnRes, Decoder, DecoderConfig, InputError, Sublayers, build_decoder
from attention_residuals.models import Role, init_decoder, init_weights, parameter_roles
from attention_residuals.nn import SwiGLU


def small(**changes) -> DecoderConfig:
    return dataclasses.replace(DecoderConfig.from_depth(3, vocab_size=11), **changes)


@pytest.mark.parametrize("layers", range(1, 49))
def test_every_depth_gives_sizes_that_fit(layers: int) -> None:
    config = DecoderConfig.from_depth(layers)
    with torch.device("meta"):
        Decoder(config)
    assert config.width == config.heads * config.head_dim
    assert config.heads % config.kv_heads == 0
    assert config.mlp_width * 3 >= config.width * 8


def test_the_default_depth_has_about_six_hundred_thousand_parameters() -> None:
    with torch.device("meta"):
        model = Decoder(DecoderConfig.from_depth(12))
    assert 550_000 < sum(parameter.numel() for parameter in model.parameters()) < 650_000


def test_forward_is_the_plain_residual_loop() -> None:
    model = build_decoder(small(), seed=0, dtype=torch.float64)
    tokens = torch.randint(11, (2, 5))
    x = model.embedding(tokens)
    for i, sublayer in enumerate(model.sublayers.values()):
        normed = torch.nn.functional.rms_norm(x, x.shape[-1:], model.stream.pre_norms[str(i)], 1e-6)
        x = x + sublayer(normed)
    assert model.head is not None
    torch.testing.assert_close(model(tokens), model.head(model.norm(x)), rtol=0, atol=1e-12)


def test_shared_parameters_start_equal_whatever_the_stream() -> None:
    plain = dict(build_decoder(small(residual=Additive()), seed=3).named_parameters())
    depth = dict(build_decoder(small(residual=AttnRes(Sublayers(2))), seed=3).named_parameters())
    assert plain.keys() < depth.keys()
    assert all(torch.equal(plain[name], depth[name]) for name in plain)
    other = dict(build_decoder(small(residual=Additive()), seed=4).named_parameters())
    assert not torch.equal(plain["embedding.weight"], other["embedding.weight"])


def test_values_depend_on_the_name_and_not_on_the_order_of_calls() -> None:
    whole = build_decoder(small(), seed=0)
    stage = build_decoder(small(), seed=1)
    del stage.sublayers["0"], stage.sublayers["1"]  # as a pipeline stage would
    init_weights(stage, seed=0, output_scale=6**-0.5)
    mine, theirs = dict(stage.named_parameters()), dict(whole.named_parameters())
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)


def test_sizes_at_the_start() -> None:
    model = build_decoder(DecoderConfig.from_depth(12), seed=0)
    sublayer = model.sublayers["1"]
    assert isinstance(sublayer, SwiGLU)
    assert model.embedding.weight.std().item() == pytest.approx(1, rel=0.05)
    assert sublayer.up.weight.std().item() == pytest.approx(64**-0.5, rel=0.05)
    assert sublayer.output.weight.std().item() == pytest.approx((24 * 176) ** -0.5, rel=0.05)


def test_no_two_matrices_are_alike() -> None:
    model = build_decoder(small(), seed=0)
    firsts = [parameter.flatten()[0].item() for parameter in model.parameters() if parameter.std() > 0]
    assert len(set(firsts)) == len(firsts) > 10


def test_queries_are_zero_and_norms_one_after_initialisation() -> None:
    model = build_decoder(small(residual=AttnRes()), seed=0)
    parameters = dict(model.named_parameters())
    roles = parameter_roles(model)
    assert roles.keys() == parameters.keys()
    queries = [parameters[name] for name, role in roles.items() if role is Role.DEPTH_QUERY]
    assert len(queries) == 6 and not any(query.any() for query in queries)
    norms = [parameters[name] for name, role in roles.items() if role in (Role.NORM, Role.DEPTH_NORM)]
    assert all((norm == 1).all() for norm in norms)


def test_the_head_has_a_role_of_its_own_and_starts_like_other_matrices() -> None:
    model = build_decoder(DecoderConfig.from_depth(12), seed=0)
    roles = parameter_roles(model)
    assert [name for name, role in roles.items() if role is Role.HEAD] == ["head.weight"]
    assert model.head is not None
    assert model.head.weight.std().item() == pytest.approx(64**-0.5, rel=0.05)


def test_tied_embeddings_are_one_tensor_through_a_meta_build() -> None:
    model = build_decoder(small(tied_embeddings=True), seed=0)
    assert "head.weight" not in dict(model.named_parameters())
    model(torch.randint(11, (1, 4))).sum().backward()
    untouched = set(range(11)) - {0}
    assert model.embedding.weight.grad is not None
    assert all(model.embedding.weight.grad[token].any() for token in untouched), "the head's gradient is missing"


def test_depth_decoder_trains_every_parameter() -> None:
    model = build_decoder(small(residual=AttnRes(Sublayers(2)), qk_norm=True), seed=0)
    init_queries(model)
    model(torch.randint(11, (2, 6))).square().mean().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.any(), name


def init_queries(model: Decoder) -> None:
    """Non-zero queries: at zero the key norms get no gradient, as they enter only as a product."""
    with torch.no_grad():
        for name, role in parameter_roles(model).items():
            if role is Role.DEPTH_QUERY:
                model.get_parameter(name).normal_(generator=torch.Generator().manual_seed(0))


def test_unknown_owners_of_parameters_are_refused() -> None:
    with pytest.raises(TypeError, match="weight belongs to a Bilinear"):
        parameter_roles(torch.nn.Bilinear(2, 2, 2))


@pytest.mark.parametrize("name", ["vocab_size", "layers", "width", "heads", "kv_heads", "head_dim", "mlp_width"])
def test_sizes_below_one_are_refused(name: str) -> None:
    with pytest.raises(InputError, match=f"{name} is 0"):
        small(**{name: 0})


def test_depth_zero_is_refused() -> None:
    with pytest.raises(InputError, match="depth is 0"):
        DecoderConfig.from_depth(0)


def test_values_do_not_depend_on_the_default_type_or_device() -> None:
    expected = build_decoder(small(), seed=0, dtype=torch.bfloat16).state_dict()
    found = build_decoder(small(), seed=1, dtype=torch.bfloat16)
    torch.set_default_dtype(torch.bfloat16)
    try:
        init_decoder(found, seed=0)
    finally:
        torch.set_default_dtype(torch.float32)
    assert all(torch.equal(value, expected[name]) for name, value in found.state_dict().items())
