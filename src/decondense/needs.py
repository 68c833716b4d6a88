"""The extras of this package: which modules each brings, what for, and the sentence for one that is missing."""

from __future__ import annotations

from importlib.util import find_spec

# Extra of pyproject.toml -> what it is asked for, as it is imported, and the purpose.
EXTRAS = {
    "train": (("accelerate",), "`decondense train` and `study`"),
    "evaluate": (("lm_eval", "accelerate", "peft"), "`decondense evaluate` and benchmarks in studies"),
    "page": (("plotly", "jinja2"), "`decondense report`"),
    "gguf": (("gguf",), "models in GGUF files"),
    "peft": (("peft",), "adapters (LoRA) in `regularize`"),
    "pandas": (("pandas",), "results as data frames"),
    "images": (("PIL",), "models of images"),
}

PACKAGES = {"PIL": "pillow"}  # where the module has another name


class MissingExtra(ImportError):
    """Something was asked for whose packages are not installed; the message is the sentence for the user."""


def missing(extra: str) -> list[str]:
    """The packages of `extra` that are not installed."""
    return [PACKAGES.get(name, name).replace("_", "-") for name in EXTRAS[extra][0] if find_spec(name) is None]


def need(extra: str, purpose: str) -> None:
    """Raise `MissingExtra` unless all packages of `extra` are installed; `purpose` begins the sentence."""
    lacking = missing(extra)
    if lacking:
        raise MissingExtra(f"{purpose} needs {' and '.join(lacking)}: pip install 'decondense[{extra}]'")
