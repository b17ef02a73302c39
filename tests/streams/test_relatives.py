"""What every variant and relative of Attention Residuals has in common with all other streams."""

from collections.abc import Sequence
from functools import partial
from itertools import pairwise

import pytest
import torch

from attention_residuals.configs import from_plain, to_plain
from attention_residuals.models import Role, init_weights, parameter_roles
from attention_residuals.streams import Additive, AttnRes, AttnResStream, Query, Residual, Stream, Sublayers

from .relatives import RELATIVES, built, each_relative, outputs_by, randomise
from .support import (
    assert_equal_to_rounding,
    assert_gradients_equal_to_rounding,
    draw,
    loss_and_gradients,
    run,
    small_decoder,
    tensors,
    tokens,
    toy_sublayer,
    walk,
)
from .test_state import checkpointed

SUBLAYERS = 7
INPUTS = (2, 3, 6)


@each_relative
def test_no_verb_changes_a_state_and_a_step_can_be_repeated(residual: Residual) -> None:
    stream = built(residual, SUBLAYERS)
    states = list(walk(stream, draw(*INPUTS)))
    before = [[tensor.clone() for tensor in tensors(state)] for state in states]
    for i, (state, following) in enumerate(pairwise(states)):
        again = stream.write(state, i, toy_sublayer(i, stream.read(state, i)))
        assert all(map(torch.equal, tensors(again), tensors(following)))
        stream.carried(state)
    for state, values in zip(states, before, strict=True):
        assert all(map(torch.equal, tensors(state), values))


@each_relative
def test_activation_checkpointing_changes_nothing(residual: Residual) -> None:
    model = small_decoder(residual, layers=3)
    randomise(model.stream)
    logits, _, grads = loss_and_gradients(model)
    ours, _, our_grads = loss_and_gradients(model, partial(checkpointed, model))
    assert_equal_to_rounding(ours, logits)
    assert_gradients_equal_to_rounding(our_grads, grads)
    assert grads.keys() == {name for name, _ in model.named_parameters()}


@pytest.mark.parametrize("name", ["dynamic", "rms-block", "delta"])  # compiling takes seconds; these differ most
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
def test_a_model_compiles_to_one_graph(name: str) -> None:
    torch._dynamo.reset()
    model = small_decoder(RELATIVES[name], layers=2)
    randomise(model.stream)
    logits, _, grads = loss_and_gradients(model)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    ours, _, our_grads = loss_and_gradients(model, compiled)
    assert_equal_to_rounding(ours, logits)
    assert_gradients_equal_to_rounding(our_grads, grads)
    torch._dynamo.reset()


@each_relative
def test_autocast_leaves_the_precision_of_the_stream(residual: Residual) -> None:
    model = small_decoder(residual, layers=2).float()
    randomise(model.stream)
    with torch.autocast("cpu", torch.bfloat16):
        state = model.stream.start(model.embedding(tokens()))
        for i in range(model.config.sublayers):
            state = model.step(state, i)
        mixture = model.stream.finish(state)
    assert {tensor.dtype for tensor in (mixture, *tensors(state))} == {torch.float32}
    narrow, wide = built(residual, SUBLAYERS).bfloat16(), built(residual, SUBLAYERS)
    found = run(narrow, draw(*INPUTS).bfloat16())
    assert found.dtype == torch.bfloat16
    expected = run(wide, draw(*INPUTS))
    assert (found.double() - expected).norm() < 0.1 * expected.norm()


@each_relative
def test_initialisation_keeps_what_a_fresh_stream_starts_from(residual: Residual) -> None:
    model = small_decoder(residual, layers=2)
    fresh = residual.build(4, 8).state_dict()
    randomise(model.stream)
    init_weights(model, seed=3)
    for name, value in model.stream.state_dict().items():
        assert torch.equal(value, fresh[name].double()), name


@each_relative
def test_every_parameter_of_a_stream_has_a_role_of_the_depth(residual: Residual) -> None:
    depth = {Role.NORM, Role.DEPTH_QUERY, Role.DEPTH_NORM, Role.DEPTH_COEFFICIENT, Role.DEPTH_MATRIX}
    assert set(parameter_roles(residual.build(4, 8)).values()) <= depth


def test_projections_and_scalars_have_roles_of_their_own() -> None:
    projected = parameter_roles(AttnRes(query=Query.PROJECTED).build(2, 4, pre_norm=False))
    assert projected == {
        "key_norms.1": Role.DEPTH_NORM,
        "key_norms.output": Role.DEPTH_NORM,
        "query_projections.1": Role.DEPTH_MATRIX,
        "query_projections.output": Role.DEPTH_MATRIX,
    }
    static = AttnRes(query=Query.NONE, heads=2).build(2, 4, pre_norm=False)
    assert parameter_roles(static) == {
        "depth_logits.1": Role.DEPTH_COEFFICIENT,
        "depth_logits.output": Role.DEPTH_COEFFICIENT,
    }
    assert [tuple(value.shape) for value in static.parameters()] == [(2, 2), (3, 2)]


@each_relative
def test_the_mixing_matrix_makes_what_is_read(residual: Residual) -> None:
    stream = built(residual, SUBLAYERS)
    v = outputs_by(stream, lambda v, i: _reads(stream, v)[i], draw(*INPUTS))
    matrix = stream.mixing(v)
    if isinstance(residual, AttnRes) and residual.heads > 1:
        assert matrix is None
        return
    assert matrix is not None and matrix.shape == (SUBLAYERS + 1, SUBLAYERS + 1, *INPUTS[:-1])
    for row, read in zip(matrix, _reads(stream, v), strict=True):
        assert_equal_to_rounding((row.unsqueeze(-1) * torch.stack(v)).sum(0).detach(), read.detach())
    above = torch.ones(len(v), len(v), dtype=torch.bool).triu(1)
    assert not matrix[above].any(), "a read of what is not there yet"


def _reads(stream: Stream, v: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """What each read sees when the sublayers have written v_1, v_2, ...; as many reads as there are outputs."""
    state, found = stream.start(v[0]), []
    for i, output in enumerate(v[1:]):
        found.append(stream.mixture(state, i))
        state = stream.write(state, i, output)
    last = len(v) - 1
    return [*found, stream.finish(state) if last == stream.shape.sublayers else stream.mixture(state, last)]


@each_relative
def test_the_weights_of_a_read_start_equal(residual: Residual) -> None:
    stream = residual.build(SUBLAYERS, 6).double()
    assert isinstance(stream, AttnResStream)
    for i, state in enumerate(walk(stream, draw(*INPUTS))):
        weights = stream.weights(state, i).detach()
        assert weights.shape == (len(stream.sources(state)), *INPUTS[:-1])
        seen = weights[weights > 0]
        assert_equal_to_rounding(seen, torch.full_like(seen, float(seen[0])))


@pytest.mark.parametrize("name", ["keys not normed", "dynamic", "static", "sigmoid", "heads", "low rank", "delta"])
def test_a_fresh_stream_computes_the_standard_network(name: str) -> None:
    """Up to the factor of each read, which the pre-norm forgets but for its eps; so the head is compared normed."""
    stream, standard = RELATIVES[name].build(SUBLAYERS, 6, norm_eps=0.0), Additive().build(SUBLAYERS, 6, norm_eps=0.0)
    ours, theirs = run(stream.double(), draw(*INPUTS)), run(standard.double(), draw(*INPUTS))
    assert_equal_to_rounding(torch.nn.functional.normalize(ours, dim=-1), torch.nn.functional.normalize(theirs, dim=-1))


@each_relative
def test_a_config_goes_there_and_back(residual: Residual) -> None:
    assert from_plain(Residual, to_plain(residual)) == residual  # pyright: ignore[reportAbstractUsage]


def test_a_config_of_before_the_variants_is_the_method() -> None:
    plain = {
        "type": "AttnRes",
        "block": {"type": "Sublayers", "count": 4},
        "scale": "sum",
        "output_read": False,
        "key_eps": 1e-05,
        "two_phase": True,
    }
    found = from_plain(AttnRes, plain)
    assert to_plain(found).items() >= plain.items()
    assert type(found.build(8, 4)) is type(AttnRes(Sublayers(4)).build(8, 4))
