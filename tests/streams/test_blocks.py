"""How sublayers are cut into blocks: properties of the cut, refused sizes, warnings where words and result differ."""

import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attention_residuals.errors import InputError
from attention_residuals.streams import (
    Additive,
    AttnRes,
    AttnResStream,
    Blocks,
    BlockSize,
    Layers,
    Partition,
    Stream,
    Sublayers,
)

COUNTS = st.integers(1, 40)


def build(size: BlockSize, sublayers: int) -> Stream:
    return AttnRes(size).build(sublayers, width=4)


def cut_of(size: BlockSize, sublayers: int) -> Partition:
    """The resulting cut, any warning aside."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        stream = build(size, sublayers)
    assert isinstance(stream, AttnResStream)
    return stream.reads.partition


@settings(deadline=None)
@given(sublayers=COUNTS, block=COUNTS)
def test_blocks_cover_every_sublayer_once(sublayers: int, block: int) -> None:
    cut = cut_of(Sublayers(block), sublayers)
    openings = [i for i in range(sublayers) if cut.opens_block(i)]
    lengths = [b - a for a, b in zip(openings, [*openings[1:], sublayers], strict=True)]
    assert openings[0] == 0
    assert len(openings) == cut.blocks
    assert set(lengths[:-1]) <= {min(block, sublayers)}
    assert 1 <= lengths[-1] <= block


@settings(deadline=None)
@given(sublayers=COUNTS, block=COUNTS)
def test_sources_are_the_embedding_and_every_block_begun(sublayers: int, block: int) -> None:
    cut = cut_of(Sublayers(block), sublayers)
    begun = 0
    for i in range(sublayers + 1):
        assert cut.sources(i) == 1 + begun
        begun += i < sublayers and cut.opens_block(i)
    assert len(cut.source_names()) == cut.sources(sublayers) == cut.blocks + 1
    assert len(set(cut.source_names())) == cut.blocks + 1


@settings(deadline=None)
@given(sublayers=COUNTS, count=COUNTS)
def test_a_number_of_blocks_is_never_exceeded(sublayers: int, count: int) -> None:
    count = min(count, sublayers)
    cut = cut_of(Blocks(count), sublayers)
    assert cut.blocks <= count
    # The shortest block that keeps to the number.
    assert cut.block == 1 or -(-sublayers // (cut.block - 1)) > count


@settings(deadline=None)
@given(layers=st.integers(1, 20), count=COUNTS)
def test_layers_are_pairs_of_sublayers(layers: int, count: int) -> None:
    assert cut_of(Layers(count), 2 * layers) == cut_of(Sublayers(2 * count), 2 * layers)


@settings(deadline=None)
@given(sublayers=COUNTS, block=COUNTS, count=COUNTS)
def test_a_warning_is_given_just_where_the_words_are_not_kept(sublayers: int, block: int, count: int) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        build(Sublayers(block), sublayers)
    assert len(caught) == (block > sublayers)
    count = min(count, sublayers)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        build(Blocks(count), sublayers)
    assert len(caught) == (cut_of(Blocks(count), sublayers).blocks != count)


def test_a_block_longer_than_the_network() -> None:
    with pytest.warns(UserWarning, match=r"a block of 20 sublayers is longer than the network of 14") as caught:
        build(Layers(10), 14)
    assert cut_of(Layers(10), 14) == Partition(14, 14)
    assert caught[0].filename == __file__


def test_a_number_of_blocks_that_cannot_be_had() -> None:
    message = r"5 blocks asked of 12 sublayers: blocks of 3 sublayers give 4"
    with pytest.warns(UserWarning, match=message) as caught:
        build(Blocks(5), 12)
    assert cut_of(Blocks(5), 12) == Partition(12, 3)
    assert caught[0].filename == __file__


@pytest.mark.parametrize("unit", [Sublayers, Layers, Blocks])
@pytest.mark.parametrize("count", [0, -3, True, False, 2.0, 1.5, "4", None])
def test_bad_counts(unit: type[BlockSize], count: object) -> None:
    with pytest.raises(InputError, match=f"^{unit.__name__}\\(count={count!r}.*whole number of at least 1"):
        unit(count)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("number", [0, -1])
def test_bad_sublayers_per_layer(number: int) -> None:
    with pytest.raises(InputError, match=f"sublayers_per_layer is {number}"):
        Layers(2, sublayers_per_layer=number)


@pytest.mark.parametrize("block", [4, 0, None, 2.5, "4", True])
def test_a_block_without_a_unit(block: object) -> None:
    with pytest.raises(InputError, match=rf"block is {block!r}.*write Sublayers\(n\), Layers\(n\) or Blocks\(n\)"):
        AttnRes(block=block)  # pyright: ignore[reportArgumentType]


def test_more_blocks_than_sublayers() -> None:
    with pytest.raises(InputError, match=r"13 blocks asked of 12 sublayers.*Blocks\(12\) is Full"):
        build(Blocks(13), 12)


@pytest.mark.parametrize("residual", [Additive(), AttnRes()])
@pytest.mark.parametrize(("name", "value"), [("sublayers", 0), ("sublayers", -2), ("width", 0), ("width", -1)])
def test_bad_sizes_of_a_stream(residual: Additive | AttnRes, name: str, value: int) -> None:
    sizes = {"sublayers": 4, "width": 8} | {name: value}
    with pytest.raises(InputError, match=f"{name} is {value}"):
        residual.build(sizes["sublayers"], sizes["width"])


def test_an_input_error_is_a_value_error() -> None:
    assert issubclass(InputError, ValueError)


@pytest.mark.parametrize(
    ("size", "sublayers", "words"),
    [
        (Sublayers(1), 12, "Full: 12 sublayers, 13 sources at the output"),
        (Sublayers(4), 12, "Block: 12 sublayers in 3 blocks of 4, 4 sources at the output"),
        (Layers(12), 186, "Block: 186 sublayers in 8 blocks of 24, the last of 18, 9 sources at the output"),
        (Blocks(1), 12, "Block: 12 sublayers in 1 block of 12, 2 sources at the output"),
    ],
)
def test_description(size: BlockSize, sublayers: int, words: str) -> None:
    stream = build(size, sublayers)
    assert stream.describe() == f"AttnRes {words}, read scale mean"
    assert stream.describe() in repr(stream)


@pytest.mark.parametrize("value", [0, -2, 1.5, True])
def test_sublayers_per_layer_is_a_count(value: float) -> None:
    with pytest.raises(InputError, match=f"sublayers_per_layer is {value}"):
        Layers(1, value)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("scale", ["sum", None, 1])
def test_a_scale_that_is_none_is_refused(scale: object) -> None:
    with pytest.raises(InputError, match=f"scale is {scale!r}; choose ReadScale"):
        AttnRes(scale=scale)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("eps", [-1.0, float("nan"), float("inf")])
def test_a_key_eps_that_is_none_is_refused(eps: float) -> None:
    with pytest.raises(InputError, match=f"key_eps is {eps}"):
        AttnRes(key_eps=eps)
