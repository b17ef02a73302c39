"""What cannot be converted is told by name, and stays as it was."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import transformers
from torch import nn

from attention_residuals import InputError, ReadScale, Sublayers
from attention_residuals.retrofit import Stack, Sublayer, declarations, declare, declared, retrofit

from .support import SIZES, VIT, build, tokens

BERT = {**SIZES, "hidden_size": 32}


@pytest.fixture
def registry() -> Iterator[None]:
    """Declarations of a test are gone after it."""
    before = dict(declarations._STACKS)
    yield
    declarations._STACKS.clear()
    declarations._STACKS.update(before)


def refused(model: Any, match: str, **options: Any) -> None:
    """A conversion is refused, and nothing of it stays."""
    hooks = _hooks(model)
    names, modes = [name for name, _ in model.named_modules()], [module.training for module in model.modules()]
    with pytest.raises(InputError, match=match):
        retrofit(model, **{"block_size": Sublayers(1), **options})
    assert _hooks(model) == hooks
    assert [name for name, _ in model.named_modules()] == names
    assert [module.training for module in model.modules()] == modes
    assert not hasattr(model.config, "attention_residuals")
    assert all(parameter.grad is None for parameter in model.parameters())


def _hooks(model: nn.Module) -> list[tuple[int, int]]:
    return [
        (len(module._forward_pre_hooks), sum(_is_foreign(hook) for hook in module._forward_hooks.values()))
        for module in model.modules()
    ]


def _is_foreign(hook: Any) -> bool:
    """Hooks that collect outputs are put in by transformers at the first forward."""
    return not hook.__module__.startswith("transformers")


def bert() -> Any:
    torch.manual_seed(0)
    return transformers.BertForMaskedLM(transformers.BertConfig(**BERT)).eval()


def test_unknown_and_post_norm_models() -> None:
    refused(bert(), r"BertForMaskedLM has no stack.*post-norm")
    with pytest.raises(InputError, match="Linear is no model of transformers"):
        retrofit(nn.Linear(2, 2), Sublayers(1))
    with pytest.raises(InputError, match="number without a unit"):
        retrofit(build("llama"), 4)  # pyright: ignore[reportArgumentType]


@pytest.mark.usefixtures("registry")
def test_a_declared_post_norm_stream_is_found_out() -> None:
    branches = (Sublayer("attention", "attention.output.dense"), Sublayer("intermediate", "output.dense"))
    declare("BertModel", Stack("encoder.layer", branches, "encoder.layer.2.output.LayerNorm"))
    refused(bert(), r"bert\.encoder\.layer\.0\.intermediate does not read the embedding plus")


@pytest.mark.usefixtures("registry")
@pytest.mark.parametrize(
    ("stack", "match"),
    [
        (
            Stack("layers", (Sublayer("input_layernorm", "self_attn"),), "norm"),
            r"model\.layers\.1\.input_layernorm does not read",
        ),
        (
            Stack(
                "layers",
                (Sublayer("post_attention_layernorm", "mlp"), Sublayer("input_layernorm", "self_attn")),
                "norm",
            ),
            r"model\.layers\.0\.input_layernorm reads when .* is due",
        ),
        (
            Stack("layers", (Sublayer("input_layernorm", "self_attn"), Sublayer("norm_2", "mlp")), "norm"),
            r"model\.layers\.0\.norm_2 is declared and LlamaDecoderLayer has no such module",
        ),
    ],
)
def test_wrong_declarations(stack: Stack, match: str) -> None:
    declare("LlamaModel", stack)
    refused(build("llama"), match)


@pytest.mark.usefixtures("registry")
def test_a_forgotten_scale_is_found_out_in_a_narrow_type_too() -> None:
    declare("GraniteModel", declarations._STACKS["LlamaModel"])
    for kind in (torch.float32, torch.bfloat16):
        refused(build("granite").to(kind), r"model\.layers\.0\.post_attention_layernorm does not read")


@pytest.mark.usefixtures("registry")
def test_a_dozen_lines_declare_a_model() -> None:
    model = _small("SmolLM3ForCausalLM", "SmolLM3Config")
    refused(model, "SmolLM3ForCausalLM has no stack")
    declare(
        "SmolLM3Model",
        Stack(
            layers="layers",
            sublayers=(Sublayer("input_layernorm", "self_attn"), Sublayer("post_attention_layernorm", "mlp")),
            norm="norm",
        ),
    )
    assert "SmolLM3Model" in declared()
    assert retrofit(model, Sublayers(2)).output_difference <= 1e-5


def _small(kind: str, config: str) -> Any:
    torch.manual_seed(0)
    return getattr(transformers, kind)(getattr(transformers, config)(**SIZES)).eval()


def test_the_mean_needs_norms() -> None:
    refused(build("olmo2"), r"model\.layers\.0\.mlp is no norm", scale=ReadScale.MEAN)
    small = _small("LlamaForCausalLM", "LlamaConfig")
    small.config.attention_residuals = None
    with pytest.raises(InputError, match=r"scale=ReadScale\.SUM"):
        retrofit(small, Sublayers(1), scale=ReadScale.MEAN, tolerance=1e-7)
    with pytest.raises(InputError, match=r"choose ReadScale"):
        retrofit(small, Sublayers(1), scale="mean")  # pyright: ignore[reportArgumentType]


def test_a_second_conversion() -> None:
    model = build("llama")
    retrofit(model, Sublayers(2), gradients=False)
    expected = model(tokens()).logits
    with pytest.raises(InputError, match=r"converted already \(model\.attention_residuals\)"):
        retrofit(model, Sublayers(2))
    assert torch.equal(model(tokens()).logits, expected)


def _offloaded(model: Any) -> None:
    model.model.layers[0]._hf_hook = object()


def _quantised(model: Any) -> None:
    model.hf_quantizer = object()


def _compiled(model: Any) -> None:
    model.compile(backend="eager")


def _hooked(model: Any) -> None:
    model.model.layers[1].mlp.register_forward_hook(lambda *_: None)


def _broken(model: Any) -> None:
    with torch.no_grad():
        model.model.layers[2].mlp.down_proj.weight.fill_(float("nan"))


def _empty(model: Any) -> None:
    model.model.layers[2].mlp.to("meta")


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (_offloaded, r"model\.layers\.0 is dispatched or offloaded"),
        (_quantised, "quantised"),
        (_compiled, "compiled; convert it first"),
        (_hooked, r"layers\.1\.mlp has a hook"),
        (_broken, "NaN"),
        (_empty, r"model\.layers\.2\.mlp\.\w+\.weight has no values"),
    ],
)
def test_models_that_are_not_plain(change: Callable[[Any], None], match: str) -> None:
    model = build("llama")
    change(model)
    refused(model, match)


def test_a_difference_that_is_too_large_undoes_everything() -> None:
    model = build("llama").train()
    expected = model(tokens()).logits
    refused(model, "is allowed", tolerance=1e-12, block_size=Sublayers(2))
    assert torch.equal(model(tokens()).logits, expected)


def test_samples() -> None:
    siglip = transformers.SiglipConfig(
        text_config={**SIZES, "num_key_value_heads": None, "projection_size": 32}, vision_config=VIT
    )
    torch.manual_seed(0)
    model: Any = transformers.SiglipModel(siglip).eval()
    refused(model, "give sample=")
    sample = {"input_ids": tokens(), "pixel_values": torch.randn(2, 3, 16, 16)}
    report = retrofit(model, Sublayers(2), sample=sample)
    assert len(report.stacks) == 2 and report.output_difference <= 1e-5
