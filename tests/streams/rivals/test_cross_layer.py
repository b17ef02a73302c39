"""Streams that read all earlier outputs: static depth weights, DenseNet and DenseFormer."""

import pytest
import torch
from torch import Tensor

from attention_residuals import AttnRes, InputError
from attention_residuals.streams import Additive, DenseFormer, DenseNet, StaticDepth

from ..support import assert_equal_to_rounding, draw
from .support import SUBLAYERS, TOKENS, WIDTH, Oracle, Parameters, assert_follows, build, call, differs, reads


def static(p: Parameters, x: Tensor, sublayers: int, softmax: bool) -> list[Tensor]:
    sources, found = [x], [x]
    for i in range(sublayers):
        sources.append(call(p, i, found[-1]))
        key = "output" if i + 1 == sublayers else i + 1
        scalars = p[f"scalars.{key}"]
        weights = scalars.exp() / scalars.exp().sum() if softmax else scalars
        mixed = torch.zeros_like(x)
        for n, source in enumerate(sources):
            mixed = mixed + weights[n] * source
        found.append(mixed)
    return found


def densenet(p: Parameters, x: Tensor, sublayers: int) -> list[Tensor]:
    sources, found = [x], [x]
    for i in range(sublayers):
        sources.append(call(p, i, found[-1]))
        key = "output" if i + 1 == sublayers else i + 1
        found.append(p[f"projections.{key}"] @ torch.cat(sources))
    return found


def denseformer(dilation: int, period: int, block: int) -> Oracle:
    def oracle(p: Parameters, x: Tensor, sublayers: int) -> list[Tensor]:
        hidden, found = [x], [x]
        for i in range(sublayers):
            x = x + call(p, i, x)
            if (i + 1) % block == 0:
                hidden.append(x)
                n = len(hidden) - 1
                if n % period == 0:
                    taken = [hidden[j] for j in range(n + 1) if j % dilation == n % dilation]
                    x = sum((a * state for a, state in zip(p[f"averages.{i}"], taken, strict=True)), torch.zeros(()))
            found.append(x)
        return found

    return oracle


@pytest.mark.parametrize("softmax", [True, False])
def test_static_follows_its_formula(softmax: bool) -> None:
    assert_follows(StaticDepth(softmax), lambda p, x, sublayers: static(p, x, sublayers, softmax))


def test_densenet_follows_its_formula() -> None:
    assert_follows(DenseNet(), densenet)


@pytest.mark.parametrize(("dilation", "period", "block"), [(1, 1, 2), (1, 1, 1), (2, 1, 1), (3, 2, 1), (1, 2, 2)])
@pytest.mark.parametrize("sublayers", [8, 9])
def test_denseformer_follows_its_formula(dilation: int, period: int, block: int, sublayers: int) -> None:
    assert_follows(DenseFormer(dilation, period, block), denseformer(dilation, period, block), sublayers)


@pytest.mark.parametrize("residual", [StaticDepth(softmax=False), DenseNet(), DenseFormer(), DenseFormer(4, 2)])
def test_the_start_is_the_standard_residual(residual) -> None:
    embedding = draw(TOKENS, WIDTH)
    expected = reads(build(Additive(), trained=False), embedding)
    assert_equal_to_rounding(reads(build(residual, trained=False), embedding), expected)


def test_static_starts_as_the_mean_of_all_sources() -> None:
    """Which is what Attention Residuals start as."""
    embedding = draw(TOKENS, WIDTH)
    expected = reads(build(AttnRes(two_phase=False), trained=False), embedding)
    assert_equal_to_rounding(reads(build(StaticDepth(), trained=False), embedding), expected)


def test_denseformer_averages_hidden_states_and_not_outputs() -> None:
    """On outputs the same weights would give another network: the one of static depth weights."""
    former, free = build(DenseFormer(sublayers_per_layer=1), 2, trained=False), build(StaticDepth(False), 2)
    with torch.no_grad():
        for key, read in (("0", "1"), ("1", "output")):
            former.get_parameter(f"averages.{key}").copy_(free.get_parameter(f"scalars.{read}"))
            former.pre_norms[key].copy_(free.pre_norms[key])
    embedding = draw(TOKENS, WIDTH)
    assert differs(reads(former, embedding)[1:], reads(free, embedding)[1:])


def test_sizes() -> None:
    """A scalar or a matrix for each pair of a read and a source; DenseFormer as in its section 3.1, d (d + 3) / 2."""
    pairs = sum(range(2, SUBLAYERS + 2))
    counts = {}
    for residual in (StaticDepth(), DenseNet(), DenseFormer(sublayers_per_layer=1), DenseFormer(4, 2, 1)):
        stream = residual.build(SUBLAYERS, WIDTH, pre_norm=False)
        counts[residual] = sum(parameter.numel() for parameter in stream.parameters())
    blocks = SUBLAYERS * (SUBLAYERS + 3) // 2
    assert list(counts.values()) == [pairs, pairs * WIDTH**2, blocks, 1 + 2 + 2]


def test_a_state_of_another_sublayer_is_refused() -> None:
    stream = build(StaticDepth())
    state = stream.start(draw(TOKENS, WIDTH))
    with pytest.raises(AssertionError, match="state holds 1 sources"):
        stream.read(state, 1)
    with pytest.raises(AssertionError, match="state holds 1 sources"):
        stream.write(state, 1, draw(TOKENS, WIDTH))


@pytest.mark.parametrize("name", ["dilation", "period", "sublayers_per_layer"])
def test_counts_below_one_are_refused(name: str) -> None:
    with pytest.raises(InputError, match=f"{name} is 0"):
        DenseFormer(**{name: 0})
