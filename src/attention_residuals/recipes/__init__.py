"""Whole training configs as functions. Take one by name, change it by `path=value`, or write one more."""

from attention_residuals.recipes.book import RECIPES, find_recipe

__all__ = ["RECIPES", "find_recipe"]
