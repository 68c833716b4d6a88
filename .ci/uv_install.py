"""uv_install.py ARGUMENTS: `uv pip install ARGUMENTS`, in a third of pip's time, from the sources that pip would use.

uv does not read pip's settings, so its sources are passed on as options. If this fails, the Makefile falls back to pip.
"""

import ast
import os
import subprocess
import sys

SOURCES = {"index-url": "--default-index", "extra-index-url": "--index", "find-links": "--find-links",
           "trusted-host": "--allow-insecure-host"}  # fmt: skip


def settings() -> dict[str, str]:
    """pip's settings from its files and the environment; a later section overrides an earlier one."""
    told = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True)
    found = {}
    for section in ("global.", "install.", ":env:."):
        lines = [line.removeprefix(section) for line in told.stdout.splitlines() if line.startswith(section)]
        found |= {name: ast.literal_eval(value) for name, _, value in (line.partition("=") for line in lines)}
    return found


def main(arguments: list[str]) -> int:
    pip = settings()
    # pip takes the best version that any source has; uv by default the best of the first source that has one.
    options = ["--python", sys.executable, "--index-strategy", "unsafe-best-match"]
    for name, option in SOURCES.items():
        for value in pip.get(name, "").split():
            options += [option, value]
    options += ["--no-index"] if pip.get("no-index", "").lower() in ("1", "true", "yes", "on") else []
    environment = os.environ | ({"SSL_CERT_FILE": pip["cert"]} if "cert" in pip else {})
    return subprocess.run(
        [sys.executable, "-m", "uv", "pip", "install", *options, *arguments], env=environment
    ).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
