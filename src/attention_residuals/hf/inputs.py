"""What a forward is given: defaults, and one sentence for what it cannot take."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attention_residuals.errors import InputError


def default_positions(
    embedding: Float[Tensor, "batch time width"], attention_mask: Tensor | None, past: int | Tensor
) -> Int[Tensor, "_ time"]:
    """Positions of new tokens after `past` others: by the tokens before each that are no padding, on either side."""
    tokens = embedding.shape[1]
    if attention_mask is not None and attention_mask.ndim == 2:
        return (attention_mask.long().cumsum(-1) - 1).clamp(min=0)[:, -tokens:]
    return (torch.arange(tokens, device=embedding.device) + past).unsqueeze(0)


def require_tokens(tokens: Int[Tensor, "batch time"], vocab_size: int) -> None:
    """Refuse a token that the model does not have; on other devices than the CPU to look would be to wait.

    Raises:
        InputError: it names the first one.
    """
    if torch.compiler.is_compiling() or tokens.device.type != "cpu" or tokens.numel() == 0:
        return
    low, high = (int(value) for value in torch.aminmax(tokens))
    if low < 0 or high >= vocab_size:
        raise InputError(
            f"input_ids has token {low if low < 0 else high}; the model's tokens run from 0 to {vocab_size - 1}, so "
            "use the tokenizer it was trained with, or resize_token_embeddings"
        )


def require_length(tokens: int, most: int) -> None:
    """Refuse a prompt longer than the model was made for.

    Raises:
        InputError: it names both lengths.
    """
    if not torch.compiler.is_compiling() and tokens > most:
        raise InputError(
            f"{tokens} tokens are given, and max_position_embeddings is {most}; shorten the prompt, or raise "
            "config.max_position_embeddings to use longer ones than it was trained with"
        )
