"""The commands in the shell blocks of the documents, as the tests of the documents read them."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"```(\w*)\n(.*?)```", re.DOTALL)
SHELL = ("", "sh")


def text_of(document: Path) -> str:
    return document.read_text(encoding="utf-8")


def shell_blocks(text: str) -> list[str]:
    """Blocks without a language, or with `sh`. One that begins with a folder of the repository is a list of files."""
    blocks = [body for language, body in FENCE.findall(text) if language in SHELL]
    return [body for body in blocks if body.split() and not (ROOT / body.split()[0]).is_dir()]


def lines_of(block: str) -> list[str]:
    """One entry per command: continued lines joined, a prompt like `machine A$ ` taken off, comments still there."""
    lines = re.sub(r"\s*\\\n\s*", " ", block).splitlines()
    return [re.sub(r"^[\w ]*\$ +", "", line) for line in lines if line.strip() and not line.startswith("#")]


def without_comment(line: str) -> str:
    """What follows three spaces or a # is a comment."""
    return re.split(r"\s{3,}|\s#", line)[0].strip()


def make_targets() -> set[str]:
    return set(re.findall(r"^([\w-]+):", text_of(ROOT / "Makefile"), re.MULTILINE))
