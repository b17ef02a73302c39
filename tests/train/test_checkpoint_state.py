"""What does not fit is refused by name, and nothing has changed then."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.optim import Optimizer

from attention_residuals import Decoder, DecoderConfig, InputError, build_decoder
from attention_residuals.train.checkpoint_state import model_tensors, optimizer_tensors
from attention_residuals.train.checkpoints import load_checkpoint, save_checkpoint
from tests.train.support import adamw, everything, muon, saved, small_model, train


def sgd(model: Decoder) -> dict[str, Optimizer]:
    return {"adamw": torch.optim.SGD(model.parameters(), lr=0.1)}


def adamw_of_some(model: Decoder) -> dict[str, Optimizer]:
    return {"adamw": torch.optim.AdamW([model.embedding.weight])}


def refusal(path: Path, model: Decoder, optimizers: dict[str, Optimizer]) -> str:
    """The message of a refused load, after which model and optimisers are as they were."""
    train(model, optimizers, range(1))
    before = everything(model, optimizers)
    with pytest.raises(InputError) as caught:
        load_checkpoint(path, model=model, optimizers=optimizers)
    assert all(map(torch.equal, everything(model, optimizers), before))
    return str(caught.value)


def test_missing_tensors_are_named_and_counted(tmp_path: Path) -> None:
    model = small_model(layers=3)
    message = refusal(saved(tmp_path, 1), model, adamw(model))
    assert re.search(
        r"is of another model: it lacks (sublayers\.4\S+, ){2}sublayers\.4\S+ and \d+ more; build", message
    )


def test_unexpected_tensors_are_named(tmp_path: Path) -> None:
    model = build_decoder(DecoderConfig.from_depth(2), seed=0)
    message = refusal(saved(tmp_path, 1), model, adamw(model))
    assert re.search(r"it has unexpected stream\.key_norms\.1, stream\S+, stream\S+ and 5 more; build", message)


def test_other_shapes_are_named(tmp_path: Path) -> None:
    model = build_decoder(DecoderConfig.from_depth(2, vocab_size=300, residual=small_model().config.residual), seed=0)
    message = refusal(saved(tmp_path, 1), model, adamw(model))
    assert "differs in embedding.weight (float32 [256, 16], in the model float32 [300, 16]), head.weight" in message


def test_another_type_is_named(tmp_path: Path) -> None:
    model = small_model(dtype=torch.bfloat16)
    message = refusal(saved(tmp_path, 1), model, adamw(model))
    assert "embedding.weight (float32 [256, 16], in the model bfloat16 [256, 16])" in message


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (muon, r"has the optimisers 'adamw' and this run has 'muon', 'adamw'"),
        (sgd, r"optimiser 'adamw' is AdamW in .*step-00000001 and SGD in this run"),
        (adamw_of_some, r"optimiser 'adamw' has other parameters in .* only there \S+, \S+, \S+ and \d+ more;"),
    ],
)
def test_other_optimisers_are_refused(
    tmp_path: Path, build: Callable[[Decoder], dict[str, Optimizer]], message: str
) -> None:
    model = small_model()
    assert re.search(message, refusal(saved(tmp_path, 1), model, build(model)))


def test_an_optimiser_of_another_model_is_refused_at_saving(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"optimiser 'adamw' has a parameter of shape \[256, 16\] that is not the"):
        save_checkpoint(tmp_path, step=1, model=small_model(), optimizers=adamw(small_model()), facts={})
    assert not list(tmp_path.iterdir())


def test_state_goes_by_name_whatever_the_order_of_the_groups(tmp_path: Path) -> None:
    model = small_model()
    optimizer = torch.optim.AdamW(model.parameters())
    train(model, {"all": optimizer}, range(2))
    path = save_checkpoint(tmp_path, step=2, model=model, optimizers={"all": optimizer}, facts={})
    reversed_order = torch.optim.AdamW(list(model.parameters())[::-1])
    load_checkpoint(path, model=model, optimizers={"all": reversed_order})
    for parameter in model.parameters():
        assert torch.equal(reversed_order.state[parameter]["exp_avg"], optimizer.state[parameter]["exp_avg"])


def test_step_counts_are_tensors_without_dimensions() -> None:
    model = small_model()
    optimizers = adamw(model)
    train(model, optimizers, range(3))
    step = optimizer_tensors(model, optimizers)["adamw/stream.queries.3/step"]
    assert step.shape == () and step.item() == 3


def test_state_that_is_no_tensor_is_refused() -> None:
    model = small_model()
    optimizers = adamw(model)
    optimizers["adamw"].state[model.embedding.weight]["seen"] = 0.1
    with pytest.raises(TypeError, match="optimiser 'adamw' keeps 'seen' as float; only tensors"):
        optimizer_tensors(model, optimizers)


def test_tensors_that_share_memory_or_are_strided_are_saved_apart(tmp_path: Path) -> None:
    model = torch.nn.Module()
    model.first = torch.nn.Parameter(torch.arange(6.0).view(2, 3).t())
    model.second = torch.nn.Parameter(model.first.detach())
    assert all(tensor.is_contiguous() for tensor in model_tensors(model).values())
    path = save_checkpoint(tmp_path, step=0, model=model, optimizers={}, facts={})
    with torch.no_grad():
        model.first.zero_()
    load_checkpoint(path, model=model, optimizers={})
    assert torch.equal(model.first, torch.arange(6.0).view(2, 3).t()) and torch.equal(model.second, model.first)
