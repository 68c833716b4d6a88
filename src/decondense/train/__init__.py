"""Training from a recipe: `train(load_recipe("recipes/smoke.yaml"), "runs/smoke")`."""

from .recipe import Recipe, load_recipe, recipe_from, with_settings
from .run import Run, train

__all__ = ["Recipe", "Run", "load_recipe", "recipe_from", "train", "with_settings"]
