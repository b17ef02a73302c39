"""`torch.compile`: one compilation for all equal sublayers, and whole models as one graph."""

from collections.abc import Iterator

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from attention_residuals.nn import SwiGLU
from attention_residuals.streams import Residual

from .support import (
    assert_equal_to_rounding,
    assert_gradients_equal_to_rounding,
    draw,
    each_residual,
    loss_and_gradients,
    randomise_depth,
    small_decoder,
)

# The compiler looks at `.grad` of every input. It hides the warning that gives, but not from a filter that raises.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    """Each test compiles anew and leaves nothing behind."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@each_residual
def test_equal_sublayers_are_compiled_once(residual: Residual) -> None:
    """A sublayer sees one tensor, so its graph does not depend on depth."""
    count = 48
    stream = residual.build(count, width=8).double()
    counter = CompileCounterWithBackend("eager")
    sublayers = [torch.compile(SwiGLU(8, 12).double(), backend=counter) for _ in range(count)]
    state = stream.start(draw(2, 3, 8))
    for i, sublayer in enumerate(sublayers):
        state = stream.write(state, i, sublayer(stream.read(state, i)))
    stream.finish(state).sum().backward()
    assert counter.frame_count == 1


@each_residual
def test_a_model_compiles_to_one_graph(residual: Residual) -> None:
    model = small_decoder(residual, layers=3)
    randomise_depth(model)
    logits, loss, grads = loss_and_gradients(model)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    our_logits, our_loss, ours = loss_and_gradients(model, compiled)
    assert_equal_to_rounding(our_logits, logits)
    assert_equal_to_rounding(our_loss, loss)
    assert_gradients_equal_to_rounding(ours, grads)
