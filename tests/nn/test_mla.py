"""Latent attention: against a straight line, with caches of every kind, and its bad input."""

import pytest
import torch
from torch import Tensor

from attention_residuals import AttnRes, Decoder, DecoderConfig, InputError, Sublayers, build_decoder
from attention_residuals.inference import GrowingCache, Padding, Prompts, Session, StaticCache
from attention_residuals.models import Role, init_weights, parameter_roles
from attention_residuals.nn import Context, LatentAttention, rotate, rotation

WIDTH, HEADS, RANK, OWN, SHARED, VALUE, THETA = 12, 3, 10, 5, 4, 7, 100.0
KINDS = {
    "rotated": {"rope_theta": THETA},
    "without positions": {"rope_theta": None},
    "low-rank queries": {"rope_theta": THETA, "query_rank": 6},
    "without a shared key": {"shared_dim": 0},
}
each_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())


def build(kind: dict) -> LatentAttention:
    torch.manual_seed(0)
    sizes = {"heads": HEADS, "kv_rank": RANK, "head_dim": OWN, "shared_dim": SHARED, "value_dim": VALUE}
    made = LatentAttention(WIDTH, **{**sizes, **kind}).double()
    with torch.no_grad():
        made.latent_norm.weight.uniform_(0.5, 1.5)
    return made


def normed(x: Tensor, weight: Tensor) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight


def straight_line(attention: LatentAttention, x: Tensor) -> Tensor:
    """Every head by itself, its key and value written out."""
    own, shared, value = attention.head_dim, attention.shared_dim, attention.value_dim
    weights = dict(attention.named_parameters())
    latent = normed(x @ weights["latent.weight"].T, weights["latent_norm.weight"])
    from_query = x
    if attention.query_rank is not None:
        from_query = normed(x @ weights["query_latent.weight"].T, weights["query_norm.weight"])
    theta = attention.rope_theta
    turn = rotation(torch.arange(x.shape[1]), shared, theta or 1.0, x.dtype)
    outputs = []
    for head in range(attention.heads):
        query = from_query @ weights["query.weight"].T[:, head * (own + shared) : (head + 1) * (own + shared)]
        scores = query[..., :own] @ (latent @ weights["key.weight"].T[:, head * own : (head + 1) * own]).mT
        if shared:
            query, key = query[..., own:], x @ weights["shared_key.weight"].T
            scores = scores + (query @ key.mT if theta is None else rotate(query, turn) @ rotate(key, turn).mT)
        future = torch.ones_like(scores).triu(1).bool()
        seen = (scores / (own + shared) ** 0.5).masked_fill(future, float("-inf")).softmax(-1)
        outputs.append(seen @ (latent @ weights["value.weight"].T[:, head * value : (head + 1) * value]))
    return torch.cat(outputs, -1) @ weights["output.weight"].T


@each_kind
def test_equals_the_straight_line(kind: dict) -> None:
    attention, x = build(kind), torch.randn(2, 7, WIDTH, dtype=torch.float64)
    torch.testing.assert_close(attention(x), straight_line(attention, x), rtol=1e-12, atol=1e-12)
    ours = torch.autograd.grad(attention(x).square().sum(), list(attention.parameters()))
    theirs = torch.autograd.grad(straight_line(attention, x).square().sum(), list(attention.parameters()))
    torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-11)


@each_kind
@pytest.mark.parametrize("cache", [GrowingCache, lambda: GrowingCache(20)])
@pytest.mark.parametrize("cuts", [(4, 3, 1, 1), (1,) * 9, (9,), (1, 7, 1)])
def test_tokens_one_after_another_are_as_those_at_once(kind: dict, cache, cuts: tuple[int, ...]) -> None:
    attention, x = build(kind), torch.randn(2, 9, WIDTH, dtype=torch.float64)
    expected, kept, found, begin = attention(x), cache(), [], 0
    for tokens in cuts:
        turn = rotation(torch.arange(begin, begin + tokens), attention.shared_dim, THETA, x.dtype)
        found.append(attention(x[:, begin : begin + tokens], Context(turn, cache=kept)))
        begin += tokens
    torch.testing.assert_close(torch.cat(found, 1), expected, rtol=1e-12, atol=1e-12)


def decoder(kind: dict, dtype: torch.dtype = torch.float64) -> Decoder:
    """A decoder of ours whose attention is latent: heads of the config as wide as what is rotated."""
    config = DecoderConfig(
        vocab_size=50,
        layers=3,
        width=16,
        heads=2,
        kv_heads=2,
        head_dim=SHARED,
        mlp_width=16,
        rope_theta=THETA,
        residual=AttnRes(Sublayers(3)),
    )
    model = build_decoder(config, seed=0)
    for i in range(0, config.sublayers, 2):
        sizes = {"width": 16, "heads": 3, "kv_rank": RANK, "head_dim": OWN, "shared_dim": SHARED, "value_dim": VALUE}
        model.sublayers[str(i)] = LatentAttention(**{**sizes, **kind})
    init_weights(model, seed=0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "queries" in name:
                parameter.normal_(generator=torch.Generator().manual_seed(len(name)))
    return model.to(dtype).requires_grad_(False)


@each_kind
@pytest.mark.parametrize("padding", Padding)
@pytest.mark.parametrize("chunk", [1, 4, None])
def test_sessions_of_ragged_prompts_equal_whole_forwards(kind: dict, padding: Padding, chunk: int | None) -> None:
    model, generator = decoder(kind), torch.Generator().manual_seed(2)
    batch = [torch.randint(50, (length,), generator=generator) for length in (3, 11, 1)]
    new = torch.randint(50, (3, 4), generator=generator)
    for cache in (GrowingCache(), StaticCache(18)):
        session = Session(model, cache)
        logits = [session.prefill(Prompts.pad(batch, padding), chunk)]
        logits += [session.append(column) for column in new.T]
        for row, prompt in enumerate(batch):
            expected = model(torch.cat((prompt, new[row]))[None])[0, len(prompt) - 1 :]
            torch.testing.assert_close(torch.stack(logits, 1)[row], expected, rtol=1e-11, atol=1e-11)


@each_kind
def test_a_cache_keeps_latents_and_shared_keys_alone(kind: dict) -> None:
    model, cache = decoder(kind), GrowingCache(8)
    Session(model, cache).prefill(Prompts.pad([torch.arange(5)]))
    kept = sum(room.keys.numel() + room.values.numel() for room in cache._layers.values())
    assert kept == 3 * 8 * (RANK + kind.get("shared_dim", SHARED))


@pytest.mark.parametrize("tokens", [1, 5])
def test_one_new_token_makes_no_keys_of_heads(tokens: int) -> None:
    """The maps from latents to heads run over all tokens in a longer forward, and over none with a single one."""
    attention, cache, calls = build(KINDS["rotated"]), GrowingCache(), []
    x = torch.randn(1, 20, WIDTH, dtype=torch.float64)
    attention(x, Context(rotation(torch.arange(20), SHARED, THETA, x.dtype), cache=cache))
    attention.key.register_forward_pre_hook(lambda _, given: calls.append(given[0].shape[1]))
    turn = rotation(torch.arange(20, 20 + tokens), SHARED, THETA, x.dtype)
    attention(x[:, :tokens], Context(turn, cache=cache))
    assert calls == ([] if tokens == 1 else [25])


def test_order_tells_nothing_without_positions_but_what_came_before() -> None:
    attention, x = build(KINDS["without positions"]), torch.randn(1, 6, WIDTH, dtype=torch.float64)
    swapped = x[:, [1, 0, 2, 3, 4, 5]]
    torch.testing.assert_close(attention(x)[:, 2:], attention(swapped)[:, 2:], rtol=1e-12, atol=1e-12)
    rotated = build(KINDS["rotated"])
    assert (rotated(x) - rotated(swapped))[:, 2:].abs().max() > 1e-3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_other_types(dtype: torch.dtype) -> None:
    model, exact = decoder(KINDS["rotated"], dtype), decoder(KINDS["rotated"])
    session, tokens = Session(model, GrowingCache()), torch.arange(9)
    logits = [session.prefill(Prompts.pad([tokens[:8]])), session.append(tokens[8:])]
    expected = exact(tokens[None])[:, 7:]
    error = (torch.stack(logits, 1).double() - expected).abs().max()
    assert error <= 32 * torch.finfo(dtype).eps * expected.abs().max()


def test_every_parameter_has_a_role() -> None:
    roles = parameter_roles(build(KINDS["low-rank queries"]))
    norms = {name for name, role in roles.items() if role is Role.NORM}
    outputs = {name for name, role in roles.items() if role is Role.OUTPUT}
    assert norms == {"query_norm.weight", "latent_norm.weight"} and outputs == {"output.weight"}
    assert {role for name, role in roles.items() if name not in norms | outputs} == {Role.MATRIX}


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ({"heads": 0}, "heads is 0; it must be a whole number of at least 1"),
        ({"kv_rank": -1}, "kv_rank is -1; it must"),
        ({"head_dim": 0}, "head_dim is 0; it must"),
        ({"value_dim": 2.5}, "value_dim is 2.5; it must"),
        ({"query_rank": 0}, "query_rank is 0; it must"),
        ({"shared_dim": -2}, "shared_dim is -2; it must"),
        ({"shared_dim": 3}, "shared_dim is 3; rotary positions need an even number"),
    ],
)
def test_sizes_that_cannot_be_are_refused(kind: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        build(kind)
    build({"shared_dim": 3, "rope_theta": None})


def test_a_rotation_of_another_width_is_a_fault() -> None:
    attention, x = build(KINDS["rotated"]), torch.randn(1, 4, WIDTH, dtype=torch.float64)
    with pytest.raises(AssertionError, match="the rotation is of 6 features, the shared key has 4"):
        attention(x, Context(rotation(torch.arange(4), 6, THETA, x.dtype)))
