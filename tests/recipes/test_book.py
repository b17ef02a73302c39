"""Every recipe builds, fits its text, and says what it is."""

import re

import pytest
import torch

from attention_residuals import Decoder, InputError
from attention_residuals.configs import from_plain, override, paths, to_plain
from attention_residuals.recipes import RECIPES, find_recipe
from attention_residuals.train import TrainConfig, build_optimizers

SIZES = {"k": 1e3, "M": 1e6, "B": 1e9}


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_builds_on_the_meta_device(name: str) -> None:
    config = find_recipe(name)
    with torch.device("meta"):
        model = Decoder(config.model)
    build_optimizers(model, config.optimizer)
    assert config.name == name
    assert from_plain(TrainConfig, to_plain(config)) == config


@pytest.mark.parametrize("name", RECIPES)
def test_its_words_give_its_true_size(name: str) -> None:
    words = RECIPES[name].__doc__ or ""
    layers, size = re.search(r"(\d+) layers", words), re.search(r"([\d.]+) ([kMB]) parameters", words)
    config = find_recipe(name)
    if layers and size:
        with torch.device("meta"):
            parameters = sum(parameter.numel() for parameter in Decoder(config.model).parameters())
        assert config.model.sublayers == 2 * int(layers[1])
        digits = len(size[1].partition(".")[2])
        assert round(parameters / SIZES[size[2]], digits) == float(size[1])
    else:
        assert words.startswith("As `"), "a recipe says its size, or what it is a variant of"


def test_an_unknown_recipe_names_near_ones() -> None:
    with pytest.raises(InputError, match="no recipe 'blok'; did you mean block"):
        find_recipe("blok")


def test_every_path_of_a_recipe_can_be_named() -> None:
    config = find_recipe("block")
    assert {"steps", "model.residual.block.count", "optimizer.learning_rate", "text.tokenizer"} <= set(paths(config))
    changed = override(config, ["model.residual.block.count=6", "optimizer=Muon", "schedule=WSD", "precision=bfloat16"])
    assert to_plain(changed)["model"]["residual"]["block"]["count"] == 6
    assert type(changed.optimizer).__name__ == "Muon"
