"""The callback `decondense` of ms-swift, from a plugin file of two lines:

from decondense.integrations.swift import register
register(weight=0.1)

swift sft … --external_plugins plugin.py --callbacks decondense
"""

from __future__ import annotations

from typing import Any

from .callback import DecondenseCallback


def register(loss: Any = "dispersion", **options: Any) -> None:
    """Make `--callbacks decondense` known to ms-swift; the options are those of `regularize`."""
    try:
        from swift.callbacks import callbacks_map
    except ImportError as error:
        raise ImportError(f"register needs ms-swift, and importing it failed ({error}).") from error
    callbacks_map["decondense"] = lambda args, trainer: DecondenseCallback(loss, trainer=trainer, **options)
    DecondenseCallback(loss, **options)  # wrong options are refused here
