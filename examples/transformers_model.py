"""A model for transformers: trained by its Trainer, saved, loaded by its Auto classes, and asked to go on with a text.

Nothing here is particular to Attention Residuals but the config. Needs the extra `hf`.
"""

import tempfile

import torch
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

from attention_residuals import AttnRes, Layers
from attention_residuals.hf import AttnResConfig, AttnResForCausalLM, fast_tokenizer
from attention_residuals.train import ByteTokenizer

TEXT = "softmax attention over depth replaces the residual sum. "
LENGTH = 48


def windows(text: str, count: int) -> list[dict[str, torch.Tensor]]:
    """Stretches of the text over and over; the model shifts the labels itself."""
    tokens = torch.tensor(tokenizer(text * 3)["input_ids"])
    cuts = [tokens[start : start + LENGTH] for start in (n * 7 % len(text) for n in range(count))]
    return [{"input_ids": cut, "labels": cut} for cut in cuts]


tokenizer = fast_tokenizer(ByteTokenizer(), max_tokens=2 * LENGTH)

if __name__ == "__main__":
    config = AttnResConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=176,
        max_position_embeddings=2 * LENGTH,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        residual=AttnRes(Layers(2)),
    )
    torch.manual_seed(0)
    model = AttnResForCausalLM(config)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            max_steps=60,
            per_device_train_batch_size=8,
            learning_rate=3e-3,
            gradient_checkpointing=True,
            logging_steps=60,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
        )
        trained = Trainer(model, arguments, train_dataset=windows(TEXT, 480)).train()
        model.save_pretrained(folder)
        loaded = AutoModelForCausalLM.from_pretrained(folder)
    prompt = tokenizer(TEXT[:20], return_tensors="pt")
    found = loaded.generate(**prompt, max_new_tokens=len(TEXT) - 20, do_sample=False)
    print(f"loss {trained.training_loss:.4f}")
    print(tokenizer.decode(found[0]))
