"""Prefill with sharded tokens, and decoding after it: logits and greedy tokens of the whole model on one process."""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor

from attention_residuals import Decoder, InputError
from attention_residuals.distributed.prefill import SharedForward
from attention_residuals.distributed.ranks import run_on_ranks
from attention_residuals.distributed.tensor import shard_matrices
from attention_residuals.inference import GrowingCache, Padding, Prompts, Sampling, Session, StaticCache, generate
from attention_residuals.models import DecoderConfig, build_decoder
from attention_residuals.streams import Additive, AttnRes, Residual, Sublayers

from .test_pipeline import VOCABULARY, vary_depth

LENGTHS = (5, 11, 2, 9)
NEW_TOKENS = 4
CHUNKS = ((1, Padding.LEFT), (5, Padding.RIGHT), (7, Padding.LEFT), (8, Padding.RIGHT), (None, Padding.LEFT))
"""Fewer tokens than ranks, shares that do not come out even, and such that do."""

RESIDUALS: tuple[Residual, ...] = (Additive(), AttnRes(Sublayers(3)), AttnRes())


def config_of(residual: Residual, kv_heads: int = 4) -> DecoderConfig:
    return DecoderConfig(VOCABULARY, 2, 8, 8, kv_heads, 4, 12, residual=residual)


def build(residual: Residual) -> Decoder:
    model = build_decoder(config_of(residual), seed=0, dtype=torch.float64)
    vary_depth(model)
    return model


def draw_prompts() -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(VOCABULARY, (length,), generator=generator) for length in LENGTHS]


def greedy_without_cache(model: Decoder, prompt: Tensor) -> tuple[Tensor, Tensor]:
    """Every token runs the whole text again: the drawn tokens, and the logits they were drawn from."""
    text, logits = prompt, []
    for _ in range(NEW_TOKENS):
        logits.append(model(text[None])[0, -1])
        text = torch.cat((text, logits[-1].argmax()[None]))
    return text[len(prompt) :], torch.stack(logits)


def assert_close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)


def check(mesh: DeviceMesh, residual: Residual) -> None:
    prompts, whole = draw_prompts(), build(residual).requires_grad_(False)
    expected = [greedy_without_cache(whole, prompt) for prompt in prompts]
    texts, logits = (torch.stack(parts) for parts in zip(*expected, strict=True))
    model = build(residual)
    forward = SharedForward(model, shard_matrices(model, mesh))
    for chunk, padding in CHUNKS:
        session = Session(model, GrowingCache(), forward)
        assert_close(session.prefill(Prompts.pad(prompts, padding), chunk), logits[:, 0])
        assert_close(session.append(texts[:, 0]), logits[:, 1])
        assert session.slots == max(LENGTHS) + 1
    found = generate(model, prompts, tokens=NEW_TOKENS, chunk_tokens=5, forward=forward)
    assert torch.equal(torch.stack(found), texts)
    cache = StaticCache(max(LENGTHS) + NEW_TOKENS)
    assert torch.equal(torch.stack(generate(model, prompts, tokens=NEW_TOKENS, cache=cache, forward=forward)), texts)


def check_what_a_rank_keeps(mesh: DeviceMesh) -> None:
    """Keys of its own heads for all tokens; and every token's features if they are asked for."""
    model, whole = build(RESIDUALS[1]), build(RESIDUALS[1])
    forward = SharedForward(model, shard_matrices(model, mesh))
    tokens = draw_prompts()[1].unsqueeze(0)
    caches, found = (GrowingCache(), GrowingCache()), []
    for one, cache, way in ((whole, caches[0], None), (model, caches[1], forward)):
        session = Session(one, cache, way)
        parts = [session.advance(part, torch.ones_like(part, dtype=torch.bool)) for part in tokens.split(5, dim=1)]
        found.append(torch.cat(parts, dim=1))
    assert_close(found[1], found[0].detach())
    config, rank = model.config, mesh.get_local_rank()
    assert isinstance(config, DecoderConfig)
    nothing = torch.empty(1, config.kv_heads, 0, config.head_dim, dtype=torch.float64)
    heads = config.kv_heads // mesh.size()
    for layer in range(config.layers):
        keys, values = caches[0].update(nothing, nothing, layer)
        own_keys, own_values = caches[1].update(nothing[:, :heads], nothing[:, :heads], layer)
        own = slice(rank * heads, (rank + 1) * heads)
        assert own_keys.shape == (1, heads, LENGTHS[1], config.head_dim)
        assert_close(own_keys, keys[:, own].detach())
        assert_close(own_values, values[:, own].detach())


def check_that_ranks_agree(mesh: DeviceMesh) -> None:
    """Every rank draws the same tokens without a word to the others."""
    model = build(RESIDUALS[1])
    forward = SharedForward(model, shard_matrices(model, mesh))
    drawn = torch.stack(generate(model, draw_prompts(), tokens=NEW_TOKENS, sampling=Sampling(seed=1), forward=forward))
    first = drawn.clone()
    dist.broadcast(first, src=0)
    assert torch.equal(drawn, first)


def check_refusals(mesh: DeviceMesh) -> None:
    """On every rank alike; what cannot be shared, before anything is."""
    model = build_decoder(config_of(Additive(), kv_heads=1), seed=0)
    with pytest.raises(InputError, match=f"kv_heads is 1, which {mesh.size()} .tensor. does not divide"):
        shard_matrices(model, mesh)
    assert not any(isinstance(parameter, DTensor) for parameter in model.parameters())
    model = build(RESIDUALS[1])
    with torch.no_grad():
        model.stream.pre_norms["3"][2] = float("nan")
    forward = SharedForward(model, shard_matrices(model, mesh))
    with pytest.raises(InputError, match=r"stream.pre_norms.3 holds NaN"):
        generate(model, draw_prompts(), tokens=1, forward=forward)


def on_ranks(rank: int, folder: Path) -> None:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tensor",))
    for residual in RESIDUALS:
        check(mesh, residual)
    check_what_a_rank_keeps(mesh)
    check_that_ranks_agree(mesh)
    check_refusals(mesh)
    (folder / f"done-{rank}").touch()


@pytest.mark.dist
@pytest.mark.parametrize("ranks", [2, 4])
def test_a_shared_model_answers_as_the_whole_one(ranks: int, tmp_path: Path) -> None:
    run_on_ranks(ranks, tmp_path, on_ranks)
    assert len(list(tmp_path.glob("done-*"))) == ranks
