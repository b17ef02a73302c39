"""Converted models in trainers of others: as any model of `transformers`."""

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments

from attention_residuals import Sublayers
from attention_residuals.hf import fast_tokenizer
from attention_residuals.retrofit import add_lora, load_retrofitted, retrofit, trainable
from attention_residuals.train import ByteTokenizer

from .support import build

OPTIONS: dict[str, Any] = {
    "per_device_train_batch_size": 2,
    "max_steps": 5,
    "logging_steps": 1,
    "learning_rate": 0.03,
    "lr_scheduler_type": "constant",
    "weight_decay": 0.0,
    "gradient_checkpointing": True,
    "report_to": [],
    "use_cpu": True,
    "disable_tqdm": True,
    "dataloader_pin_memory": False,
}


class Ring(Dataset[dict[str, torch.Tensor]]):
    """Tokens that go round."""

    def __len__(self) -> int:
        return 16

    def __getitem__(self, place: int) -> dict[str, torch.Tensor]:
        ids = (torch.arange(16) + place) % 11 + 3
        return {"input_ids": ids, "labels": ids}


class Speaks(TrainerCallback):
    """Generates in the middle of training, when a model is in training mode and half of its layers are checkpointed."""

    def __init__(self) -> None:
        self.texts: list[torch.Tensor] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        if state.global_step == 3:
            model = others["model"]
            model.eval()
            self.texts.append(model.generate(torch.tensor([[3, 4, 5]]), max_new_tokens=5, do_sample=False))
            model.train()


def converted() -> Any:
    model = build("llama")
    model.config.use_cache = True
    retrofit(model, Sublayers(2), gradients=False)
    return model


@pytest.mark.parametrize("what", ["queries", "queries+lora"])
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_trainer(what: str, tmp_path: Path) -> None:
    model = converted()
    if "lora" in what:
        model = add_lora(model, 2)
    trainable(model, what)
    speaks = Speaks()
    arguments = TrainingArguments(output_dir=str(tmp_path / "runs"), save_strategy="no", **OPTIONS)
    trainer = Trainer(model=model, args=arguments, train_dataset=Ring(), callbacks=[speaks])
    trainer.train()
    losses = [float(line["loss"]) for line in trainer.state.log_history if "loss" in line]
    assert losses[-1] < losses[0] - 0.01
    assert speaks.texts[0].shape == (1, 8)
    inner = model.merge_and_unload() if "lora" in what else model
    assert any(value.abs().max() > 0 for name, value in inner.named_parameters() if ".queries." in name)
    inner.save_pretrained(tmp_path / "saved")
    loaded = load_retrofitted(tmp_path / "saved")
    ids = Ring()[0]["input_ids"][None]
    inner.eval()
    assert torch.equal(loaded(ids).logits, inner(ids).logits)


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning")
def test_sft_trainer(tmp_path: Path) -> None:
    trl = pytest.importorskip("trl")
    from datasets import Dataset as Table

    model = build("llama", vocab_size=256)
    retrofit(model, Sublayers(2), gradients=False)
    trainable(model, "queries")
    table = Table.from_dict({"text": ["abcabcabcabcabcabc", "bcabcabcabcabcabca"] * 8})
    arguments = trl.SFTConfig(
        output_dir=str(tmp_path), save_strategy="no", max_length=16, **{**OPTIONS, "bf16": False, "fp16": False}
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = trl.SFTTrainer(
            model=model,
            args=arguments,
            train_dataset=table,
            processing_class=fast_tokenizer(ByteTokenizer(), 64),
        )
        trainer.train()
    losses = [float(line["loss"]) for line in trainer.state.log_history if "loss" in line]
    assert losses[-1] < losses[0]
    moved = {name for name, value in model.named_parameters() if ".queries." in name and value.abs().max() > 0}
    assert len(moved) == 6
