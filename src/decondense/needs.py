"""The extras of this package: the modules that each brings, their purpose, and the error when one is missing."""

from __future__ import annotations

from importlib.util import find_spec

# Extra of pyproject.toml -> (the modules to import, what needs them).
EXTRAS = {
    "train": (("accelerate",), "`decondense train` and `study`"),
    "evaluate": (("lm_eval", "accelerate", "peft"), "`decondense evaluate` and benchmarks in studies"),
    "page": (("plotly", "jinja2"), "`decondense report`"),
    "gguf": (("gguf",), "models in GGUF files"),
    "peft": (("peft",), "adapters (LoRA) in `regularize`"),
    "pandas": (("pandas",), "results as data frames"),
    "images": (("PIL",), "models of images"),
}

PACKAGES = {"PIL": "pillow"}  # module -> package, where the names differ


class MissingExtra(ImportError):
    """A feature was asked for whose packages are not installed; the message says which to install."""


def missing(extra: str) -> list[str]:
    """Return the packages of `extra` that are not installed."""
    return [PACKAGES.get(name, name).replace("_", "-") for name in EXTRAS[extra][0] if find_spec(name) is None]


def need(extra: str, purpose: str) -> None:
    """Raise `MissingExtra` unless all packages of `extra` are installed; `purpose` begins the sentence."""
    lacking = missing(extra)
    if lacking:
        raise MissingExtra(f"{purpose} needs {' and '.join(lacking)}: pip install 'decondense[{extra}]'")
