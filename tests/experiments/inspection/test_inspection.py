"""Depth weights and masking of converted models, against sums written out, and the report of them."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from attention_residuals import InputError, Sublayers
from attention_residuals.cli import main
from attention_residuals.experiments.inspection.measure import InspectConfig, inspect, passes
from attention_residuals.hf import fast_tokenizer
from attention_residuals.retrofit import TokenWindows, TuningText, retrofit, save_depth
from attention_residuals.train import ByteTokenizer
from tests.retrofit.support import VOCABULARY, build, stir

TOKENS = torch.randint(3, VOCABULARY, (200,), generator=torch.Generator().manual_seed(4))
TEXT = TuningText(TokenWindows(TOKENS, TOKENS, 12), (1,))
CONFIG = InspectConfig(tokens=24, masking_tokens=24)


def converted(name: str = "llama", block: int = 2) -> Any:
    model = build(name)
    retrofit(model, Sublayers(block), gradients=False)
    stir(model)
    return model


def losses_by_hand(model: Any, windows: torch.Tensor, read: int | None, source: int | None) -> torch.Tensor:
    """Loss of each window, with the layers of a Llama called one by one and reads written out (Sublayers(2))."""
    inner, stream = model.model, model.model.attention_residuals
    inputs = torch.cat([torch.ones(len(windows), 1, dtype=torch.int64), windows[:, :-1]], 1)
    hidden = inner.embed_tokens(inputs)
    places = torch.arange(inputs.shape[1])[None]
    rope = inner.rotary_emb(hidden, position_ids=places)
    sources = [hidden]

    def mixture(i: int, key: str) -> torch.Tensor:
        stacked = torch.stack(sources)
        if i == 0:
            return stacked[0]
        keys = F.rms_norm(stacked, (32,), stream.key_norms[key], stream.reads.key_eps)
        weights = (keys @ stream.queries[key]).softmax(0)
        if read in (None, i) and source is not None and source < len(sources) and len(sources) > 1:
            weights[source] = 0
            weights = weights / weights.sum(0)
        return len(sources) * (weights[..., None] * stacked).sum(0)

    for i in range(6):
        layer = inner.layers[i // 2]
        x = mixture(i, str(i))
        if i % 2:
            output = layer.mlp(layer.post_attention_layernorm(x))
        else:
            output = layer.self_attn(layer.input_layernorm(x), position_embeddings=rope, attention_mask=None)[0]
        sources = [*sources, output] if i % 2 == 0 else [*sources[:-1], sources[-1] + output]
    logits = model.lm_head(F.rms_norm(mixture(6, "output"), (32,), inner.norm.weight, 1e-6))[:, 1:]
    return (
        F.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten(), reduction="none").view(len(windows), -1).mean(1)
    )


@torch.no_grad()
def plain_twin(model: Any) -> Any:
    """The same model without hooks, its stream beside it, so that its modules can be called one by one."""
    twin = build("llama")
    twin.model.attention_residuals = model.model.attention_residuals
    return twin


@pytest.mark.filterwarnings("ignore")
def test_effects_are_those_of_sums_written_out() -> None:
    model = converted()
    found = inspect(model, TEXT, CONFIG)
    windows = TEXT.windows.validation_windows(24)
    twin = plain_twin(model)
    with torch.no_grad():
        base = losses_by_hand(twin, windows, None, None)
        assert found["masking"]["loss"] == pytest.approx(base.mean().item(), rel=1e-5)
        for read in range(7):
            row = found["masking"]["effects"][read]
            assert len(row) == 1 + -(-read // 2)
            for source, effect in enumerate(row):
                if len(row) == 1:
                    assert effect is None
                    continue
                expected = losses_by_hand(twin, windows, read, source) - base
                assert effect == pytest.approx(expected.mean().item(), abs=2e-5)
                error = found["masking"]["errors"][read][source]
                assert error == pytest.approx((expected.std() / len(windows) ** 0.5).item(), abs=2e-5)
        for source, effect in enumerate(found["masking"]["everywhere"]):
            expected = losses_by_hand(twin, windows, None, source) - base
            assert effect == pytest.approx(expected.mean().item(), abs=2e-5)
    assert found["read_names"][:3] == ["layer 1 self_attn", "layer 1 mlp", "layer 2 self_attn"]
    assert found["read_names"][-1] == "head" and found["sources"] == ["embedding", "block 1", "block 2", "block 3"]
    for weights, entropy in zip(found["reads"]["weights"], found["reads"]["entropy_shares"], strict=True):
        assert sum(weights) == pytest.approx(1) and 0 < entropy <= 1 + 1e-9
    assert found["reads"]["entropy_shares"][-1] < 0.99


def test_how_much_is_looked_at() -> None:
    model, calls = converted(), []
    config = InspectConfig(24, 12, masking_reads=2)
    found = inspect(model, TEXT, config, lambda: calls.append(1))
    assert len(calls) == passes(model, config)
    masked = [read for read, row in enumerate(found["masking"]["effects"]) if row[0] is not None]
    assert masked == [2, 6] and found["masking"]["tokens"] == 12
    none = InspectConfig(12, 0)
    assert inspect(model, TEXT, none)["masking"] is None and passes(model, none) == 1
    with pytest.raises(InputError, match="has 0 stacks"):
        inspect(build("llama"), TEXT)
    with pytest.raises(InputError, match="masking_reads"):
        InspectConfig(masking_reads=0)


def test_a_fresh_conversion_is_equal_everywhere() -> None:
    model = build("gpt_neox")
    retrofit(model, Sublayers(1), gradients=False)
    found = inspect(model, TEXT, InspectConfig(24, 0))
    assert found["reads"]["entropy_shares"] == pytest.approx([1.0] * 4)
    assert found["read_names"] == ["layer 1", "layer 2", "layer 3", "head"]


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "plain"
    model = build("llama", vocab_size=256)
    model.save_pretrained(source)
    fast_tokenizer(ByteTokenizer(), 64).save_pretrained(source)
    retrofit(model, Sublayers(2), gradients=False)
    stir(model)
    save_depth(model, tmp_path / "depth")
    for n in range(30):
        (tmp_path / f"{n}.txt").write_text("".join(f"{k * n} is {k} times {n}.\n" for k in range(9)))
    texts = [str(tmp_path / f"{n}.txt") for n in range(30)]
    words = ["--data", *texts, "--sequence", "16", "--tokens", "32", "--mask-tokens", "32", "--mask-reads", "3"]
    assert (
        main(["inspect", str(source), "--adapter", str(tmp_path / "depth"), "--out", str(tmp_path / "out"), *words])
        == 0
    )
    assert "Report:" in capsys.readouterr().out
    found = json.loads((tmp_path / "out/inspection.json").read_text())
    assert found["architecture"] == "LlamaForCausalLM" and len(found["reads"]["weights"]) == 7
    assert {path.suffix for path in (tmp_path / "out").iterdir()} == {".json", ".png", ".html", ".md"}
    report = (tmp_path / "out/report.md").read_text()
    assert "rank correlation" in report and "layer 2 mlp" in report
    assert main(["inspect", str(source), "--out", str(tmp_path / "b"), *words]) == 2
    assert "attnres retrofit" in capsys.readouterr().err and not (tmp_path / "b").exists()
