"""What crosses the cuts of a pipeline, counted by positions alone."""

import pytest

from attention_residuals import AttnRes, InputError, Sublayers
from attention_residuals.distributed.cuts import Cuts, Transport
from attention_residuals.streams import Additive, Boundary, Highway, Residual, Stream


def stream_of(residual: Residual, sublayers: int) -> Stream:
    return residual.build(sublayers, width=4)


def closed_sends(cuts: Cuts, stream: Stream, transport: Transport) -> int:
    """Sends of closed blocks over all cuts, the embedding among them, running sums left out."""
    total = 0
    for chunk in range(1, cuts.chunks):
        boundary = stream.boundary(cuts.starts[chunk])
        total += cuts.crossing(chunk, stream.boundary, transport).received - (boundary.tensors - boundary.fixed)
    return total


def test_the_boundaries_of_block() -> None:
    stream = stream_of(AttnRes(Sublayers(3)), 8)
    found = [tuple(stream.boundary(i)) for i in range(9)]
    assert found == [(1, 1), (2, 1), (2, 1), (2, 2), (3, 2), (3, 2), (3, 3), (4, 3), (4, 3)]
    assert tuple(stream_of(Additive(), 8).boundary(5)) == (1, 0)


def test_figure_3_of_the_paper() -> None:
    """Four ranks, two virtual stages, a block over two chunks: 13 sends of blocks instead of 19."""
    cuts, stream = Cuts.even(16, 4, 2), stream_of(AttnRes(Sublayers(4)), 16)
    assert closed_sends(cuts, stream, Transport.NAIVE) == 19
    assert closed_sends(cuts, stream, Transport.RECEIVED) == 13
    assert closed_sends(cuts, stream, Transport.CACHED) == 11


@pytest.mark.parametrize(("ranks", "virtual"), [(2, 2), (4, 2), (2, 4), (8, 2), (4, 4), (8, 4)])
@pytest.mark.parametrize("blocks_per_chunk", [1, 2])
def test_the_closed_forms_of_the_paper(ranks: int, virtual: int, blocks_per_chunk: int) -> None:
    """Eq. 7 and 8, which leave the embedding out, where every chunk is whole blocks: N_p of them."""
    chunks, block = ranks * virtual, 2
    cuts = Cuts.even(chunks * blocks_per_chunk * block, ranks, virtual)
    stream = stream_of(AttnRes(Sublayers(block)), cuts.sublayers)
    embeddings = chunks - 1
    naive = chunks * (chunks - 1) // 2 * blocks_per_chunk
    assert closed_sends(cuts, stream, Transport.NAIVE) - embeddings == naive
    cached = (ranks * (ranks - 1) // 2 + (virtual - 1) * ranks**2) * blocks_per_chunk
    assert closed_sends(cuts, stream, Transport.RECEIVED) - (ranks - 1) == cached
    made = (virtual - 1) * ranks * blocks_per_chunk
    assert closed_sends(cuts, stream, Transport.CACHED) - (ranks - 1) == cached - made


def test_cuts_are_even_or_as_asked() -> None:
    assert Cuts.even(10, 2, 2).starts == (0, 3, 6, 8)
    assert [list(Cuts((0, 1, 5, 6), 8, 2).part(chunk)) for chunk in (1, 3)] == [[1, 2, 3, 4], [6, 7]]


@pytest.mark.parametrize(
    ("starts", "ranks", "message"),
    [
        ((1, 2), 2, "the first is 0"),
        ((0, 3, 3, 5), 2, "each later one is larger"),
        ((0, 8), 2, "the last is below 8"),
        ((0, 2, 4), 2, "3 chunks do not divide among 2 ranks"),
    ],
)
def test_cuts_that_are_none(starts: tuple[int, ...], ranks: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Cuts(starts, 8, ranks)


def test_more_chunks_than_sublayers() -> None:
    with pytest.raises(InputError, match="at most 6 are possible"):
        Cuts.even(6, 4, 2)


def test_a_stream_that_cannot_be_cut() -> None:
    stream = stream_of(Highway(), 6)
    for act in (lambda: stream.boundary(2), lambda: stream.pack(()), lambda: stream.unpack((), 2)):
        with pytest.raises(InputError, match="cannot be cut into stages; use AttnRes or Additive"):
            act()


def test_the_first_chunk_starts_from_tokens() -> None:
    with pytest.raises(AssertionError):
        Cuts.even(6, 2).crossing(0, lambda i: Boundary(1, 0), Transport.NAIVE)
