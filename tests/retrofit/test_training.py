"""Training of converted models: checkpoints, copies, threads, and forwards that end early."""

import copy
import threading
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from attention_residuals import BlockSize, InputError, Sublayers
from attention_residuals.retrofit import retrofit
from attention_residuals.retrofit.measurement import default_sample
from attention_residuals.retrofit.walks import DepthWalk

from .support import build, stir, tokens


def converted(name: str, block: BlockSize) -> Any:
    model = build(name)
    retrofit(model, block, gradients=False)
    stir(model)
    return model


def walks(model: Any) -> list[DepthWalk]:
    hooks = [hook for module in model.modules() for hook in module._forward_pre_hooks.values()]
    return list({id(hook.walk): hook.walk for hook in hooks if hasattr(hook, "walk")}.values())


def recompute(model: Any, **options: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        model.gradient_checkpointing_enable(**options)


def gradients(model: Any, sample: dict[str, Tensor]) -> dict[str, Tensor]:
    """Of a loss over two forwards, so that the second one's state must not be taken for the first one's."""
    model.zero_grad()
    flipped = {key: value.flip(-1) for key, value in sample.items()}
    losses = [model(**each).logits.square().mean() for each in (sample, flipped)]
    backward = threading.Thread(target=(losses[0] + 2 * losses[1]).backward)  # accelerators have one of their own too
    backward.start()
    backward.join()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("block", [Sublayers(1), Sublayers(3)], ids=str)
@pytest.mark.parametrize("name", ["llama", "olmo2", "gpt_neox", "t5", "mixtral"])
def test_checkpoints_change_no_gradient(name: str, block: BlockSize) -> None:
    model = converted(name, block)
    sample = default_sample(model)
    expected = gradients(model, sample)
    recomputed = copy.deepcopy(model)
    recompute(recomputed)
    recomputed.train()
    for module in recomputed.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        elif hasattr(module, "dropout") and isinstance(module.dropout, float):
            module.dropout = 0.0
    calls = []
    inner = next(
        module for name, module in recomputed.named_modules() if name.endswith(".1.mlp") or ".1.layer.1" in name
    )
    inner.register_forward_pre_hook(lambda *_: calls.append(1))
    found = gradients(recomputed, sample)
    assert len(calls) >= 4, "nothing was recomputed"
    for key, value in expected.items():
        assert (found[key] - value).norm() <= 1e-5 * value.norm() + 1e-9, key
    assert all(walk.flight.run is None for walk in walks(recomputed))


def test_a_copy_made_with_checkpoints_has_its_own() -> None:
    model = converted("llama", Sublayers(2))
    recompute(model)
    model.train()
    sample = {"input_ids": tokens()}
    expected = gradients(model, sample)
    other = copy.deepcopy(model)  # its layers have carrying checkpoints already
    found = gradients(other, sample)
    assert all(torch.equal(found[key], value) for key, value in expected.items())
    assert not {id(walk.flight) for walk in walks(model)} & {id(walk.flight) for walk in walks(other)}
    with torch.no_grad():
        other.model.attention_residuals.queries["output"].add_(1)
    assert not torch.equal(model(**sample).logits, other(**sample).logits)


def test_reentrant_checkpoints_are_refused() -> None:
    model = converted("llama", Sublayers(2))
    recompute(model, gradient_checkpointing_kwargs={"use_reentrant": True})
    model.train()
    with pytest.raises(InputError, match="use_reentrant"):
        model(tokens())


def test_checkpoints_of_others_are_refused() -> None:
    model = converted("llama", Sublayers(2))
    layer = model.model.layers[1]
    model.model.layers[1].forward = lambda *a, **k: checkpoint(type(layer).forward, layer, *a, use_reentrant=False, **k)
    loss = model(tokens()).logits.sum()
    with pytest.raises(InputError, match="activation_checkpointing_enable"):
        loss.backward()


def test_a_forward_that_raises_leaves_nothing() -> None:
    model = converted("llama", Sublayers(2))
    ids = tokens()
    expected = model(ids).logits

    def fail(*_: Any) -> None:
        raise RuntimeError("midway")

    handle = model.model.layers[1].mlp.register_forward_pre_hook(fail)
    with pytest.raises(RuntimeError, match="midway"):
        model(ids)
    handle.remove()
    assert all(walk.flight.run is None for walk in walks(model))
    assert torch.equal(model(ids).logits, expected)
    with pytest.raises(InputError, match=r"layers\.1\.input_layernorm runs outside a forward"):
        model.model.layers[1].input_layernorm(torch.zeros(1, 1, 32))
    model.model.norm(torch.zeros(1, 1, 32))  # looking through the final norm stays possible


def test_a_skipped_layer_is_refused() -> None:
    model = converted("llama", Sublayers(2))
    model.config.num_hidden_layers = 2
    with pytest.raises(InputError, match=r"layers\.2\.input_layernorm was skipped"):
        model(tokens())


def test_threads_share_a_model() -> None:
    model = converted("llama", Sublayers(2))
    batches = [tokens(seed=seed) for seed in range(2)]
    with torch.no_grad():
        expected = [model(batch).logits for batch in batches]
    gate, found = threading.Barrier(2), {}

    def meet(*_: Any) -> None:
        gate.wait(20)

    model.model.layers[1].register_forward_pre_hook(meet)  # both are in the middle at once

    def work(n: int) -> None:
        with torch.no_grad():
            found[n] = model(batches[n]).logits

    threads = [threading.Thread(target=work, args=(n,)) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(found[n], expected[n]) for n in range(2))


def test_queries_train_by_name() -> None:
    model = converted("gemma2", Sublayers(2))
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(".attention_residuals.queries." in name)
    model(tokens()).logits.square().mean().backward()
    trained = {name for name, parameter in model.named_parameters() if parameter.grad is not None}
    assert trained == {f"model.attention_residuals.queries.{key}" for key in (*range(1, 6), "output")}


def test_compiled_model() -> None:
    model = converted("qwen2", Sublayers(2))
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    with torch.no_grad():
        expected = model(tokens(), use_cache=False).logits
        found = compiled(tokens(), use_cache=False).logits
    assert (expected - found).abs().max() <= 1e-5 * expected.abs().max()
