"""What the site needs beyond the pages: links that leave docs/, and the list of losses.

On GitHub `../results/studies/width` is right as it stands. On the site an image out there is copied along, and any
other file or folder becomes its address in the repository. What does not exist is a warning, an error in strict mode.
"""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

LINK = re.compile(r"(!?)(\[[^\]]*\])\((\.\.?/[^)#\s]+)(#[^)\s]*)?\)")
LOSSES = "<!-- every registered loss -->"
LOG = logging.getLogger("mkdocs.hooks.hook")


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    docs = Path(config.docs_dir)
    root = docs.parent

    def rewritten(match: re.Match[str]) -> str:
        image, text, target, anchor = match.groups()
        path = Path(os.path.normpath((docs / page.file.src_uri).parent / target))
        if path.is_relative_to(docs):
            return match[0]
        name = path.relative_to(root).as_posix()
        if not path.exists():
            LOG.warning("%s links to %s, which does not exist", page.file.src_uri, name)
            return match[0]
        if image:
            copy = f"repository/{name}"
            if copy not in files.src_uris:
                files.append(File.generated(config, copy, abs_src_path=str(path)))
            here = os.path.relpath(copy, Path(page.file.src_uri).parent).replace(os.sep, "/")
            return f"!{text}({here})"
        kind = "tree" if path.is_dir() else "blob"
        return f"{text}({config.repo_url}/{kind}/main/{name}{anchor or ''})"

    return LINK.sub(rewritten, markdown.replace(LOSSES, losses(root / "src" / "decondense" / "losses")))


def losses(folder: Path) -> str:
    """A file that registers a loss holds a function of its name: the reference follows from the registration."""
    names = [file.stem for file in sorted(folder.glob("*.py")) if "\n@register(" in file.read_text(encoding="utf-8")]
    entry = "::: decondense.losses.{0}.{0}\n    options:\n      heading: decondense.losses.{0}\n      toc_label: {0}"
    return "\n\n".join(entry.format(name) for name in names)
