"""Sampling text from a decoder, without a cache: every token runs the whole context again."""

import torch
from jaxtyping import Int, Integer
from torch import Tensor

from attention_residuals.errors import InputError
from attention_residuals.models import Decoder


@torch.no_grad()
def sample(
    model: Decoder,
    prompt: Integer[Tensor, "time"],
    *,
    tokens: int,
    context_tokens: int,
    temperature: float = 0.8,
    seed: int = 0,
) -> Int[Tensor, "tokens"]:
    """Draw `tokens` tokens after `prompt [T]`, T >= 1, each given the last `context_tokens` ones.

    Raises:
        InputError: an empty prompt, or a temperature that is not positive.
    """
    if prompt.numel() == 0:
        raise InputError("the prompt is empty; give at least one token")
    if not temperature > 0:
        raise InputError(f"temperature is {temperature}; it must be positive")
    generator = torch.Generator().manual_seed(seed)
    device = next(model.parameters()).device
    text = prompt.long().cpu()
    for _ in range(tokens):
        logits = model(text[-context_tokens:].unsqueeze(0).to(device))[0, -1].float().cpu()
        drawn = torch.multinomial((logits / temperature).softmax(-1), 1, generator=generator)
        text = torch.cat((text, drawn))
    return text[prompt.numel() :]
