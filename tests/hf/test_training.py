"""Training by others' loops: recomputed steps, Trainer, LoRA."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments

from attention_residuals import Additive, AttnRes, Residual
from attention_residuals.hf import AttnResForCausalLM
from tests.hf.support import BLOCK, STREAMS, model, tokens

# Its replacement is younger than the releases of other libraries that still call it.
pytestmark = pytest.mark.filterwarnings(
    "ignore:`(is_)?gradient_checkpointing(_enable|_disable)?` is deprecated:FutureWarning"
)


def gradients(wrapped: Any, **inputs: Any) -> dict[str, torch.Tensor]:
    wrapped.zero_grad(set_to_none=True)
    ids = tokens()
    wrapped(ids, labels=ids, **inputs).loss.backward()
    return {name: value.grad for name, value in wrapped.named_parameters() if value.grad is not None}


@pytest.mark.parametrize("residual", STREAMS)
@pytest.mark.parametrize("options", [None, {"use_reentrant": True}, {"use_reentrant": False}])
def test_recomputed_steps_change_no_gradient(residual: Residual, options: dict[str, Any] | None) -> None:
    wrapped = model(residual).train()
    mask = torch.ones(2, 9, dtype=torch.int64)
    mask[0, :3] = 0
    expected = gradients(wrapped, attention_mask=mask)
    calls: list[int] = []
    wrapped.model.sublayers["3"].register_forward_pre_hook(lambda *_: calls.append(3))
    wrapped.gradient_checkpointing_enable(gradient_checkpointing_kwargs=options)
    found = gradients(wrapped, attention_mask=mask)
    assert len(calls) == 2, "a recomputed sublayer runs twice"
    assert found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in expected)
    assert wrapped(tokens()).cache is None
    wrapped.gradient_checkpointing_disable()
    gradients(wrapped)
    assert len(calls) == 4, "one run for the forward that had no backward, one now"


def test_every_other_layer_can_be_recomputed() -> None:
    wrapped = model().train()
    wrapped.activation_checkpointing_enable(every_n_layers=2)
    calls: list[int] = []
    for i, sublayer in enumerate(wrapped.model.sublayers.values()):
        sublayer.register_forward_pre_hook(lambda *_, i=i: calls.append(i))
    gradients(wrapped)
    assert sorted(calls) == [0, 0, 1, 1, 2, 3, 4, 4, 5, 5]


def test_a_copy_recomputes_its_own_steps() -> None:
    wrapped = model().train()
    wrapped.activation_checkpointing_enable()
    copied = copy.deepcopy(wrapped)
    gradients(copied)
    assert all(value.grad is None for value in wrapped.parameters())
    assert all(value.grad is not None for value in copied.parameters())


def test_a_cache_that_is_given_is_filled_once() -> None:
    wrapped = model().train()
    cache = wrapped(tokens()).cache
    wrapped.activation_checkpointing_enable()
    loss = wrapped(tokens(), cache=cache).logits.sum()
    loss.backward()
    assert cache.get_seq_length() == 18


@pytest.mark.parametrize("residual", [Additive(), AttnRes()])
def test_gradients_through_padding_are_finite(residual: Residual) -> None:
    mask = torch.ones(2, 9, dtype=torch.int64)
    mask[0, :5] = 0
    found = gradients(model(residual).train(), attention_mask=mask)
    assert all(value.isfinite().all() for value in found.values())


class Rows(Dataset[dict[str, torch.Tensor]]):
    """Eight texts of twelve tokens, of which some are padding."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, place: int) -> dict[str, torch.Tensor]:
        ids = tokens(1, 12, seed=place)[0]
        mask = (torch.arange(12) >= place % 3).long()
        return {"input_ids": ids * mask, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


def trainer(path: Path, wrapped: Any, **options: Any) -> Trainer:
    arguments = TrainingArguments(
        **{"per_device_train_batch_size": 2, **options},
        output_dir=str(path),
        max_steps=4,
        save_steps=2,
        logging_steps=1,
        learning_rate=1e-2,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    return Trainer(model=wrapped, args=arguments, train_dataset=Rows(), eval_dataset=Rows())


def losses(done: Trainer) -> list[float]:
    return [float(line["loss"]) for line in done.state.log_history if "loss" in line]


def test_trainer_with_recomputed_steps_saves_and_resumes(tmp_path: Path) -> None:
    plain = trainer(tmp_path / "plain", model(), gradient_accumulation_steps=2)
    plain.train()
    whole = trainer(tmp_path / "whole", model(), gradient_accumulation_steps=2, gradient_checkpointing=True)
    whole.train()
    assert losses(whole) == losses(plain) and losses(plain)[-1] < losses(plain)[0]
    checkpoint = tmp_path / "whole" / "checkpoint-2"
    assert (checkpoint / "model.safetensors").exists() and not list(checkpoint.glob("pytorch_model*"))
    resumed = trainer(tmp_path / "again", model(), gradient_accumulation_steps=2, gradient_checkpointing=True)
    resumed.train(resume_from_checkpoint=str(checkpoint))
    assert losses(resumed)[-2:] == pytest.approx(losses(whole)[-2:], rel=1e-5)
    assert isinstance(resumed.model, AttnResForCausalLM)
    expected = whole.model.state_dict()  # pyright: ignore[reportOptionalMemberAccess]
    for name, value in resumed.model.state_dict().items():
        torch.testing.assert_close(value, expected[name])
    found = whole.evaluate()
    assert found["eval_loss"] < losses(whole)[0]


def test_accumulated_parts_of_unequal_length_are_one_batch(tmp_path: Path) -> None:
    whole = trainer(tmp_path / "whole", model(), per_device_train_batch_size=4)
    parts = trainer(tmp_path / "parts", model(), gradient_accumulation_steps=2)
    whole.train()
    parts.train()
    assert losses(parts) == pytest.approx(losses(whole), rel=2e-4)  # what is logged is rounded


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("targets", ["all-linear", ["query", "value", "output", "gate"]])
def test_lora_trains_what_it_adds(tmp_path: Path, targets: Any, recompute: bool) -> None:
    wrapped = get_peft_model(model(BLOCK), LoraConfig(r=2, target_modules=targets, task_type="CAUSAL_LM"))
    before = {name: value.clone() for name, value in wrapped.named_parameters()}
    with torch.no_grad():
        plain = wrapped(tokens()).logits
    trainer(tmp_path / "run", wrapped, gradient_checkpointing=recompute).train()
    moved = {name for name, value in wrapped.named_parameters() if not torch.equal(value, before[name])}
    assert moved and all("lora_" in name for name in moved)
    assert {name.split("lora_")[0] for name in moved if ".lora_B" in name} >= {
        f"base_model.model.model.sublayers.{i}.output." for i in range(6)
    }
    wrapped.eval()
    wrapped.save_pretrained(str(tmp_path / "adapter"))
    found = PeftModel.from_pretrained(model(BLOCK), tmp_path / "adapter").eval()
    with torch.no_grad():
        logits = wrapped(tokens()).logits
        torch.testing.assert_close(found(tokens()).logits, logits)
        assert (logits - plain).abs().max() > 1e-3
        merged = found.merge_and_unload()
        torch.testing.assert_close(merged(tokens()).logits, logits, rtol=1e-4, atol=1e-4)
    assert wrapped.generate(tokens(), attention_mask=torch.ones(2, 9), max_new_tokens=3).shape[0] == 2
