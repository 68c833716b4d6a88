"""Images of a folder as batches for an image model, prepared by the model's own processor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from .files import AnyPath
from .inputs import Named
from .models import Source, load_image_processor
from .needs import need
from .words import several

SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp")


def image_batches(
    folder: AnyPath,
    source: Source,
    *,
    windows: int = 100,
    seed: int = 0,
    batch: int = 4,
    trust_remote_code: bool = False,
) -> Named:
    """Return batches of the images in and below ``folder``: at most ``windows`` images, drawn by ``seed``, in the order
    of their names, as the image processor of ``source`` prepares them (``pixel_values`` and the like)."""
    need("images", "measuring images")
    root = Path(folder)
    if not root.is_dir():
        raise FileNotFoundError(f"no folder of images at {str(folder)!r}: the path does not exist or is no folder.")
    files = sorted(path for path in root.rglob("*") if path.suffix.lower() in SUFFIXES)
    if not files:
        raise ValueError(f"{str(folder)!r} must hold images ({', '.join(SUFFIXES)}), it holds none.")
    chosen = np.sort(np.random.default_rng(seed).permutation(len(files))[:windows])
    processor = load_image_processor(source, trust_remote_code=trust_remote_code)
    groups = ([files[i] for i in chosen[at : at + batch]] for at in range(0, len(chosen), batch))
    batches = (dict(processor(images=[_open(path) for path in group], return_tensors="pt")) for group in groups)
    return Named(batches, root.resolve().name, f"{len(chosen)} of {several(len(files), 'image')}")


def _open(path: Path) -> Any:
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path) as image:
            return image.convert("RGB")
    except (UnidentifiedImageError, OSError, ValueError, Image.DecompressionBombError) as error:
        raise ValueError(f"{str(path)!r} must be an image, but cannot be read as one: take it out.") from error
