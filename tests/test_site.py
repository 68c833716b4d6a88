"""The documentation site builds, with no link that leads nowhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mkdocs", reason="SKIPPED WITHOUT THE SITE'S PACKAGES: pip install 'decondense[docs]'")

from decondense.losses import registered

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    build = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert build.returncode == 0, build.stdout + build.stderr
    return folder


def test_gallery_shows_the_figure_of_every_study(site):
    page = (site / "gallery" / "index.html").read_text(encoding="utf-8")
    shown = [(site / "gallery" / source).resolve() for source in re.findall(r'<img [^>]*src="([^"]+)"', page)]
    assert all(file.is_file() for file in shown)
    figures = [*(ROOT / "docs" / "figures").glob("*.png"), *(ROOT / "results" / "studies").glob("*/figure.png")]
    content = {file.read_bytes() for file in shown}
    assert not [str(file) for file in figures if file.read_bytes() not in content], "add them to docs/gallery.md"


def test_links_out_of_the_documents_lead_to_the_repository(site):
    page = (site / "results" / "index.html").read_text(encoding="utf-8")
    assert 'href="https://github.com/decondense/decondense/tree/main/results/studies/width"' in page
    assert 'href="../results' not in page


def test_reference_has_every_registered_loss(site):
    page = (site / "api" / "losses" / "index.html").read_text(encoding="utf-8")
    missing = [name for name in registered() if f'id="decondense.losses.{name}.{name}"' not in page]
    assert not missing
