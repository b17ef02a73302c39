"""With zero queries a converted model is the original: outputs and gradients, in every architecture and block."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from attention_residuals import BlockSize, Layers, ReadScale, Sublayers
from attention_residuals.retrofit import retrofit
from attention_residuals.retrofit.measurement import default_sample

from .support import ARCHITECTURES, build, stir, tokens

BLOCKS = (Sublayers(1), Sublayers(3), Layers(2))


def run(model: Any, sample: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    """Outputs, and the gradients of a sum of them with fixed weights."""
    result = model(**sample)
    output = result.logits if "logits" in result else result.last_hidden_state
    weights = torch.randn(output.shape, generator=torch.Generator().manual_seed(5))
    model.zero_grad()
    (output * weights).sum().backward()
    return output.detach(), {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_zero_queries_are_the_original(name: str) -> None:
    original = build(name)
    sample = default_sample(original)
    output, gradients = run(original, sample)
    largest = max(float(gradient.norm()) for gradient in gradients.values())
    for block in BLOCKS:
        model = copy.deepcopy(original)
        report = retrofit(model, block)
        assert type(model) is type(original)
        assert report.output_difference <= 1e-5
        assert report.gradient_difference is not None and report.gradient_difference <= 1e-4
        mine, found = run(model, sample)
        assert (mine - output).abs().max() <= 1e-5 * output.abs().max()
        for key, gradient in gradients.items():
            # Some gradients are zero but for rounding, for example those of a bias on keys.
            assert (found[key] - gradient).norm() <= 1e-4 * max(float(gradient.norm()), 1e-3 * largest), key
        depth = {key for key in found if "attention_residuals" in key}
        assert len(depth) == 2 * sum(len(stack.sources) - 1 for stack in report.stacks)
        stir(model)
        assert (run(model, sample)[0] - output).abs().max() > 1e-2 * output.abs().max()


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_llama_is_the_formula(block: BlockSize) -> None:
    original = build("llama").double()
    model = copy.deepcopy(original)
    retrofit(model, block, gradients=False)
    assert {p.dtype for p in model.parameters()} == {torch.float64}
    stir(model)
    ids = tokens()
    with torch.no_grad():
        expected = _straight_line(original, model.model.attention_residuals, block.in_sublayers(6), ids)
        assert (model(ids).logits - expected).abs().max() <= 1e-12 * expected.abs().max()


def _straight_line(original: Any, depth: Any, block: int, ids: Tensor) -> Tensor:
    """Llama with depth attention, written out: Eq. 2-6 of arXiv 2603.15031, a read times its number of sources."""
    inner = original.model
    embedding = inner.embed_tokens(ids)
    rotation = inner.rotary_emb(embedding, torch.arange(ids.shape[1])[None])
    closed, open_sum, i = [embedding], None, 0

    def read(key: str) -> Tensor:
        values = torch.stack(closed if open_sum is None else [*closed, open_sum])
        if len(values) == 1:
            return values[0]
        keys = values * (values.pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt() * depth.key_norms[key]
        weights = (keys @ depth.queries[key]).softmax(0)
        return len(values) * (weights[..., None] * values).sum(0)

    for layer in inner.layers:
        for branch in ("attention", "mlp"):
            x = read(str(i))
            if branch == "attention":
                output = layer.self_attn(layer.input_layernorm(x), position_embeddings=rotation, attention_mask=None)[0]
            else:
                output = layer.mlp(layer.post_attention_layernorm(x))
            open_sum = output if open_sum is None else open_sum + output
            i += 1
            if i % block == 0:
                closed, open_sum = [*closed, open_sum], None
    return original.lm_head(inner.norm(read("output")))


@pytest.mark.parametrize("name", ["falcon", "falcon sequential", "gpt_neox", "vit", "dinov2", "phi3"])
def test_dropout_is_that_of_the_model(name: str) -> None:
    """Dropped whole, with certainty, where it is a function of theirs; drawn from one seed where it is a module."""
    functional = name.startswith("falcon")
    changes: dict[str, Any] = {"hidden_dropout": 1.0} if functional else {}
    changes |= {"vit": {"hidden_dropout_prob": 0.3}, "gpt_neox": {"hidden_dropout": 0.3}}.get(name, {})
    changes |= {"phi3": {"resid_pdrop": 0.3}}.get(name, {})
    original = build(name, **changes)
    sample = default_sample(original)
    model = copy.deepcopy(original)
    retrofit(model, Sublayers(2), gradients=False)
    original.train()
    model.train()
    results = []
    for each in (original, model):
        torch.manual_seed(3)
        result = each(**sample)
        results.append(result.logits if "logits" in result else result.last_hidden_state)
    assert (results[0] - results[1]).abs().max() <= 1e-5 * results[0].abs().max()


def test_narrow_weights_start_within_their_rounding() -> None:
    model = build("llama").bfloat16()
    report = retrofit(model, Sublayers(2))
    assert report.output_difference <= report.tolerance == torch.finfo(torch.bfloat16).eps ** 0.5
    assert model.model.attention_residuals.queries["1"].dtype == torch.float32
    assert model(tokens()).logits.dtype == torch.bfloat16


def test_the_mean_is_exact_but_for_eps() -> None:
    model = build("llama", rms_norm_eps=1e-12)
    report = retrofit(model, Sublayers(1), scale=ReadScale.MEAN)
    assert report.output_difference <= 1e-5
    assert model.config.attention_residuals["scale"] == "mean"


def test_a_layer_is_one_of_the_model() -> None:
    model = build("t5")
    retrofit(model, Layers(1), gradients=False)
    stacks = model.config.attention_residuals["stacks"]
    assert [(stack["name"], stack["block_sublayers"]) for stack in stacks] == [("encoder", 2), ("decoder", 3)]


def test_a_block_longer_than_a_stack_is_told() -> None:
    model = build("llama")
    with pytest.warns(UserWarning, match="8 sublayers is longer than the network of 6"):
        retrofit(model, Layers(4), gradients=False)
    assert model.config.attention_residuals["stacks"][0]["block_sublayers"] == 6


def test_report() -> None:
    report = retrofit(build("gpt_neox sequential"), Sublayers(2))
    (stack,) = report.stacks
    assert stack.name == "gpt_neox.attention_residuals" and stack.sources == (1, 2, 2, 3, 3, 4, 4)
    assert report.added_parameters == stack.parameters == 2 * 6 * 32
    table = str(report)
    assert "1, 2 x2, 3 x2, 4 x2" in table and "384 (" in table and f"{report.output_difference:.1e}" in table
    bare = retrofit(build("llama"), Sublayers(1), gradients=False)
    assert bare.gradient_difference is None and "not measured" in bare.table() and "1 to 7" in bare.table()
