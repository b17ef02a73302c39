"""A checkpoint with the depth attention of Kimi K3 against a straight-line forward over its tensors, by their names."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from attention_residuals import AttnRes, Decoder, Layers
from attention_residuals.dialects import load_kimi
from attention_residuals.inference import GrowingCache, Prompts, Session
from attention_residuals.streams import AttnResStream

from . import straight
from .support import EPS, VOCABULARY, draw_tensors, kimi_config, write

CASES = [(13, 3), (5, 2), (7, 10)]
TOKENS = torch.randint(VOCABULARY, (2, 9), generator=torch.Generator().manual_seed(1))
pytestmark = pytest.mark.filterwarnings("ignore:a block of 20 sublayers is longer than the network of 14")


def assert_close(found: Tensor, expected: Tensor, sublayers: int) -> None:
    """Each sublayer adds the rounding of its sums, of up to 64 terms one after another."""
    allowed = 64 * sublayers * torch.finfo(torch.float64).eps
    assert found.shape == expected.shape
    assert (found - expected).abs().max() <= allowed * expected.abs().max()


def both(folder: Path, layers: int, block: int) -> tuple[Decoder, straight.Walk]:
    tensors = draw_tensors(layers, depth=True)
    model = load_kimi(write(folder / "kimi", kimi_config(layers, block), tensors), dtype=torch.float64)
    assert model.config.residual == AttnRes(Layers(block), key_eps=EPS)
    return model.requires_grad_(False), straight.run(tensors, TOKENS, layers, block)


@pytest.mark.parametrize(("layers", "block"), CASES)
def test_every_state_and_every_read(layers: int, block: int, tmp_path: Path) -> None:
    model, walk = both(tmp_path, layers, block)
    stream = model.stream
    assert isinstance(stream, AttnResStream)
    state = stream.start(model.embedding(TOKENS))
    for i in range(2 * layers):
        assert_close(stream.mixture(state, i), walk.reads[i], i + 1)
        state = model.step(state, i)
        if i % 2:
            *blocks, prefix = stream.sources(state)
            assert_close(prefix, walk.prefixes[i // 2], i + 1)
            assert len(blocks) == len(walk.blocks[i // 2]) == i // 2 // block + 1
            for mine, theirs in zip(blocks, walk.blocks[i // 2], strict=True):
                assert_close(mine, theirs, i + 1)
    assert_close(stream.finish(state), walk.output, 2 * layers)
    assert_close(model(TOKENS), walk.logits, 2 * layers)


@pytest.mark.parametrize(("layers", "block"), CASES)
def test_token_by_token_and_in_chunks(layers: int, block: int, tmp_path: Path) -> None:
    model, walk = both(tmp_path, layers, block)
    for first, chunk in ((1, None), (5, 2)):
        session = Session(model, GrowingCache())
        prompts = Prompts(TOKENS[:, :first], torch.ones(2, first, dtype=torch.bool))
        found = [session.prefill(prompts, chunk), *(session.append(token) for token in TOKENS[:, first:].T)]
        assert_close(torch.stack(found, 1), walk.logits[:, first - 1 :], 2 * layers)


def test_other_units_are_other_networks(tmp_path: Path) -> None:
    tensors = draw_tensors(5, depth=True)
    models = [load_kimi(write(tmp_path / str(n), kimi_config(5, n), tensors), dtype=torch.float64) for n in (1, 2)]
    assert (models[0](TOKENS) - models[1](TOKENS)).abs().max() > 0.05
    expected = straight.run(tensors, TOKENS, 5, 1).logits
    assert_close(models[0](TOKENS), expected, 10)


def test_without_a_block_size_it_is_the_standard_residual(tmp_path: Path) -> None:
    tensors = draw_tensors(4, depth=False)
    model = load_kimi(write(tmp_path / "kimi", kimi_config(4, None), tensors), dtype=torch.float64)
    assert_close(model(TOKENS), straight.run(tensors, TOKENS, 4, None).logits, 8)
