"""Training from a recipe: `train(load_recipe("recipes/smoke.yaml"), "runs/smoke")`."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .recipe import Recipe, load_recipe, recipe_from, with_settings

if TYPE_CHECKING:
    from .run import Run, train

__all__ = ["Recipe", "Run", "load_recipe", "recipe_from", "train", "with_settings"]


def __getattr__(name: str) -> Any:
    """Import `Run` and `train` when they are first asked for: importing Trainer takes seconds, and checking or printing
    a recipe does not need it."""
    if name in ("Run", "train"):
        return getattr(import_module(".run", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
