"""The recipes by name."""

import difflib
from collections.abc import Callable

from attention_residuals.errors import InputError
from attention_residuals.recipes import bytes_on_cpu, english, kimi
from attention_residuals.train import TrainConfig

RECIPES: dict[str, Callable[[], TrainConfig]] = {
    "tiny": bytes_on_cpu.tiny,
    "standard": bytes_on_cpu.standard,
    "block": bytes_on_cpu.block,
    "full": bytes_on_cpu.full,
    "block-muon": bytes_on_cpu.block_muon,
    "kimi-standard": kimi.standard,
    "kimi-block": kimi.block,
    "kimi-linear-48b-a3b": kimi.whole,
    "english-standard": english.standard,
    "english-block": english.block,
    "english-block-large": english.block_large,
}


def find_recipe(name: str) -> TrainConfig:
    """The config of a recipe.

    Raises:
        InputError: there is none of that name; it names the near ones.
    """
    if name not in RECIPES:
        near = difflib.get_close_matches(name, RECIPES, n=3, cutoff=0.4) or sorted(RECIPES)
        raise InputError(f"there is no recipe '{name}'; did you mean {', '.join(near)}?")
    return RECIPES[name]()
