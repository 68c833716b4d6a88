"""Tables as CSV, and as text with a small bar per layer."""

from __future__ import annotations

import csv
import io
import os
import tempfile
from pathlib import Path
from typing import Any

__all__ = ["bar", "write_csv"]


def write_csv(target: Path, rows: list[dict[str, Any]]) -> Path:
    """Rows with the same keys; floats are written in full. To a temporary name first, then renamed."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, fieldnames=list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    handle, name = tempfile.mkstemp(prefix=f".{target.name}-", dir=target.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(buffer.getvalue())
        os.chmod(name, 0o644)
        os.replace(name, target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return target


def bar(value: float, *, width: int = 24) -> str:
    """A bar of eighth blocks for a cosine: from 0 to 1; a negative one is drawn as ◂."""
    if value < 0:
        return "◂"
    eighths = round(min(1.0, value) * width * 8)
    return "█" * (eighths // 8) + ("" if eighths % 8 == 0 else " ▏▎▍▌▋▊▉"[eighths % 8])
