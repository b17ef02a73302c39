"""Hyper-connections, plain, manifold-constrained and lite."""

import itertools
import math

import pytest
import torch
from torch import Tensor

from attention_residuals import InputError
from attention_residuals.streams import MHC, Additive, HyperConnections, MHCLite, Residual
from attention_residuals.streams.rivals.mhc import sinkhorn
from attention_residuals.streams.rivals.mhc_lite import permutation_matrices
from attention_residuals.streams.rivals.multistream import MultiStream

from ..support import assert_equal_to_rounding, draw
from .support import (
    EPS,
    SUBLAYERS,
    TOKENS,
    WIDTH,
    Oracle,
    Parameters,
    assert_follows,
    build,
    call,
    differs,
    norm,
    reads,
)

KINDS = [HyperConnections(), MHC(), MHCLite(), HyperConnections(2), MHC(3, iterations=5), MHCLite(2), MHC(1)]
each_kind = pytest.mark.parametrize("residual", KINDS, ids=repr)


def walk_streams(n: int, connections) -> Oracle:
    """The oracle of n streams whose weights `into [n]`, `out [n]` and `mix [n, n]` are `connections(p, H, i)`."""

    def oracle(p: Parameters, x: Tensor, sublayers: int) -> list[Tensor]:
        streams, found = [x] * n, []
        for i in range(sublayers):
            into, out, mix = connections(p, streams, i)
            found.append(sum((into[j] * streams[j] for j in range(n)), torch.zeros(())))
            output = call(p, i, found[-1])
            mixed = [sum((mix[k][j] * streams[j] for j in range(n)), torch.zeros(())) for k in range(n)]
            streams = [mixed[k] + out[k] * output for k in range(n)]
        return [*found, sum(streams, torch.zeros(()))]

    return oracle


def hyper(n: int) -> Oracle:
    def connections(p: Parameters, streams: list[Tensor], i: int):
        rows, (s_a, s_b) = p[f"projections.{i}"], p[f"scales.{i}"]
        dynamic = [[torch.tanh((norm(h) * row).sum()) for row in rows] for h in streams]
        into = [p[f"static_into.{i}"][j] + s_a * dynamic[j][0] for j in range(n)]
        out = [p[f"static_out.{i}"][j] + s_b * dynamic[j][1] for j in range(n)]
        # The paper's A_r[j, k] is the share of old stream j in new stream k.
        mix = [[p[f"static_mix.{i}"][j, k] + s_a * dynamic[j][2 + k] for j in range(n)] for k in range(n)]
        return into, out, mix

    return walk_streams(n, connections)


def constrained(n: int, project) -> Oracle:
    def connections(p: Parameters, streams: list[Tensor], i: int):
        x = norm(torch.cat(streams))
        logits = [(x * row).sum() for row in p[f"projections.{i}"]]
        a_in, a_out, *a_mix = p[f"scales.{i}"]
        into = [1 / (1 + torch.exp(-a_in * logits[j] - p[f"static_into.{i}"][j])) for j in range(n)]
        out = [2 / (1 + torch.exp(-a_out * logits[n + j] - p[f"static_out.{i}"][j])) for j in range(n)]
        if not a_mix:  # the first sublayer, or the last: no doubly stochastic matrix would change anything
            return into, out, torch.eye(n)
        return into, out, project([a_mix[0] * logit for logit in logits[2 * n :]], p[f"static_mix.{i}"])

    return walk_streams(n, connections)


def mhc(n: int, iterations: int) -> Oracle:
    def project(dynamic: list[Tensor], static: Tensor) -> list[list[Tensor]]:
        matrix = [[torch.exp(dynamic[k * n + j] + static[k, j]) for j in range(n)] for k in range(n)]
        for _ in range(iterations):
            columns = [sum((row[j] for row in matrix), torch.zeros(())) for j in range(n)]
            matrix = [[row[j] / columns[j] for j in range(n)] for row in matrix]
            matrix = [[entry / sum(row, torch.zeros(())) for entry in row] for row in matrix]
        return matrix

    return constrained(n, project)


def mhc_lite(n: int) -> Oracle:
    def project(dynamic: list[Tensor], static: Tensor) -> list[list[Tensor]]:
        powers = [torch.exp(logit + start) for logit, start in zip(dynamic, static, strict=True)]
        matrix = [[torch.zeros(()) for _ in range(n)] for _ in range(n)]
        for power, order in zip(powers, itertools.permutations(range(n)), strict=True):
            for k in range(n):
                matrix[k][order[k]] = matrix[k][order[k]] + power / sum(powers, torch.zeros(()))
        return matrix

    return constrained(n, project)


@pytest.mark.parametrize("n", [1, 2, 4])
def test_hyper_connections_follow_their_formula(n: int) -> None:
    assert_follows(HyperConnections(n), hyper(n))


@pytest.mark.parametrize(("n", "iterations"), [(2, 3), (4, 20)])
def test_mhc_follows_its_formula(n: int, iterations: int) -> None:
    assert_follows(MHC(n, iterations), mhc(n, iterations), sublayers=5)


@pytest.mark.parametrize("n", [2, 3, 4])
def test_mhc_lite_follows_its_formula(n: int) -> None:
    assert_follows(MHCLite(n), mhc_lite(n), sublayers=5)


def test_hyper_connections_start_as_the_standard_residual() -> None:
    """Every stream is the standard residual, so the head sees n of them."""
    embedding = draw(TOKENS, WIDTH)
    found = reads(build(HyperConnections(), trained=False), embedding)
    expected = reads(build(Additive(), trained=False), embedding)
    assert_equal_to_rounding(found[:-1], expected[:-1])
    assert_equal_to_rounding(found[-1], 4 * expected[-1])


def mixing_matrix(residual: Residual, trained: bool = True, sublayer: int = 1) -> Tensor:
    """`[tokens, n, n]`, of streams that differ."""
    stream = build(residual, trained=trained)
    assert isinstance(stream, MultiStream)
    matrix = stream.connections(draw(TOKENS, stream.streams, WIDTH), sublayer).mix
    assert matrix is not None
    return matrix


@pytest.mark.parametrize(("residual", "allowed"), [(MHC(), 0.002), (MHCLite(), 0.01)])
def test_constrained_mixing_starts_at_the_identity(residual: MHC | MHCLite, allowed: float) -> None:
    matrix = mixing_matrix(residual, trained=False)
    assert (matrix - torch.eye(4, dtype=torch.float64)).abs().max() < allowed
    assert differs(matrix, torch.eye(4, dtype=torch.float64).expand_as(matrix))


@pytest.mark.parametrize("residual", [MHC(), MHCLite()])
def test_streams_are_told_apart_from_the_start(residual: MHC | MHCLite) -> None:
    """Equal streams would get equal gradients and stay equal for ever."""
    stream = build(residual, trained=False)
    assert isinstance(stream, MultiStream)
    h = draw(TOKENS, 4, WIDTH)
    for i in range(SUBLAYERS):
        chosen = torch.arange(4) == i % 4
        into, out = torch.where(chosen, 1.0, -1.0).sigmoid(), 2 * torch.where(chosen, 1.0, -1.0).sigmoid()
        found = stream.connections(h, i)
        torch.testing.assert_close(found.into, into.double().expand(TOKENS, 4))
        torch.testing.assert_close(found.out, out.double().expand(TOKENS, 4))


def test_mhc_lite_is_doubly_stochastic_to_rounding() -> None:
    for n in (2, 3, 4, 5):
        matrix = mixing_matrix(MHCLite(n))
        ones = torch.ones(TOKENS, n, dtype=torch.float64)
        assert (matrix >= 0).all()
        assert_equal_to_rounding(matrix.sum(-1), ones)
        assert_equal_to_rounding(matrix.sum(-2), ones)


def test_sinkhorn_is_doubly_stochastic_once_it_has_converged() -> None:
    logits = 2 * draw(50, 4, 4)
    ones = torch.ones(50, 4, dtype=torch.float64)
    once, often = sinkhorn(logits, 1), sinkhorn(logits, 20)
    for matrix in (once, often):
        assert (matrix > 0).all()
        assert_equal_to_rounding(matrix.sum(-1), ones)
    assert (often.sum(-2) - ones).abs().max() < 0.01 < 0.1 < (once.sum(-2) - ones).abs().max()
    assert_equal_to_rounding(sinkhorn(logits, 1000).sum(-2), ones)


def test_sinkhorn_begins_with_the_columns() -> None:
    logits = draw(4, 4)
    powers = logits.exp()
    by_column = powers / powers.sum(0, keepdim=True)
    assert_equal_to_rounding(sinkhorn(logits, 1), by_column / by_column.sum(1, keepdim=True))
    assert differs(sinkhorn(logits, 1), sinkhorn(logits.t(), 1).t())


def test_no_logit_overflows_sinkhorn() -> None:
    logits = torch.tensor([[1e4, -1e4], [1e4, 0.0]], requires_grad=True)
    matrix = sinkhorn(logits, 20)
    matrix[0, 0].backward()
    assert matrix.isfinite().all() and logits.grad is not None and logits.grad.isfinite().all()


def test_permutations_are_all_there() -> None:
    for n in (1, 2, 3, 4):
        matrices = permutation_matrices(n).unflatten(1, (n, n))
        assert len({tuple(matrix.flatten().tolist()) for matrix in matrices}) == math.factorial(n)
        assert torch.equal(matrices[0], torch.eye(n))
        assert (matrices.sum(-1) == 1).all() and (matrices.sum(-2) == 1).all()


@each_kind
def test_the_mixing_of_the_streams_is_applied(residual: Residual, monkeypatch: pytest.MonkeyPatch) -> None:
    """A known fault of other people's code: the matrix is computed, and the identity stands in its place."""
    stream, embedding = build(residual), draw(TOKENS, WIDTH)
    assert isinstance(stream, MultiStream)
    before = reads(stream, embedding)
    computed = stream.connections
    monkeypatch.setattr(stream, "connections", lambda h, i: computed(h, i)._replace(mix=None))
    changed = differs(reads(stream, embedding), before)
    assert changed == (stream.streams > 1 or isinstance(residual, HyperConnections))


@pytest.mark.parametrize("residual", [MHC(), MHCLite()])
def test_no_mixing_could_change_the_first_read_or_the_head(residual: Residual) -> None:
    """Why the sublayers at the ends have none: the streams are equal at first, and the head sees their sum.

    mHC keeps the last one, for its columns sum to one only as nearly as Sinkhorn has converged.
    """
    stream = build(residual, 3)
    assert isinstance(stream, MultiStream)
    assert not stream.mixes(0) and stream.mixes(1) and stream.mixes(2) == isinstance(residual, MHC)
    (h, *_), embedding = stream.start(draw(TOKENS, WIDTH)), draw(TOKENS, WIDTH)
    matrix = stream.connections(draw(TOKENS, 4, WIDTH), 1).mix
    assert matrix is not None
    assert_equal_to_rounding(matrix @ h, embedding.unsqueeze(1).expand(TOKENS, 4, WIDTH))
    h = draw(TOKENS, 4, WIDTH, seed=5)
    assert differs((matrix @ h).sum(1), h.sum(1)) == isinstance(residual, MHC)


@each_kind
def test_connections_depend_on_the_token(residual: Residual) -> None:
    stream = build(residual)
    assert isinstance(stream, MultiStream)
    into, out, mix = stream.connections(draw(2, stream.streams, WIDTH), 1)
    assert differs(*into) and differs(*out)
    assert (mix is not None) == stream.mixes(1)
    assert mix is None or differs(*mix)


@each_kind
def test_connections_forget_the_size_of_the_streams(residual: Residual) -> None:
    """They see normed streams."""
    stream = residual.build(SUBLAYERS, WIDTH, norm_eps=0.0).double()
    with torch.no_grad():
        for n, parameter in enumerate(stream.parameters()):
            parameter.add_(draw(*parameter.shape, seed=n))
    assert isinstance(stream, MultiStream)
    h = draw(TOKENS, stream.streams, WIDTH)
    for larger, weights in zip(stream.connections(1000 * h, 2), stream.connections(h, 2), strict=True):
        if weights is not None:
            assert larger is not None
            assert_equal_to_rounding(larger, weights)


def test_what_is_carried_is_the_mean_of_the_streams() -> None:
    stream, embedding = build(HyperConnections(), trained=False), draw(TOKENS, WIDTH)
    state = stream.write(stream.start(embedding), 0, draw(TOKENS, WIDTH, seed=1))
    assert_equal_to_rounding(stream.carried(state), embedding + draw(TOKENS, WIDTH, seed=1))


@pytest.mark.parametrize("kind", [HyperConnections, MHC, MHCLite])
def test_no_streams_are_refused(kind: type[Residual]) -> None:
    with pytest.raises(InputError, match="streams is 0"):
        kind(streams=0)  # pyright: ignore[reportCallIssue]


def test_other_numbers_are_refused() -> None:
    with pytest.raises(InputError, match="iterations is 0"):
        MHC(iterations=0)
    with pytest.raises(InputError, match="streams is 7, which has 5040 permutations; mHC-lite takes at most 6"):
        MHCLite(7)


def test_eps_is_that_of_the_network() -> None:
    stream = HyperConnections().build(2, WIDTH, norm_eps=EPS)
    assert stream.shape.norm_eps == EPS
