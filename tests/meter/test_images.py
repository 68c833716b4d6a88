"""`decondense measure MODEL --images FOLDER`."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import transformers
import yaml
from by_hand import cli as run
from by_hand import refused
from PIL import Image

import decondense as dc
from decondense.images import image_batches
from decondense.models import Source
from decondense.needs import MissingExtra
from decondense.report.reproduce import measure_command


@pytest.mark.usefixtures("unpainted")
def test_images_of_a_folder(tmp_path, monkeypatch):
    """Drawn by seed, prepared by the model's own processor; the numbers are those of the pixel values."""
    model = transformers.ViTModel(transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, image_size=16, patch_size=4
    ))  # fmt: skip
    processor = transformers.ViTImageProcessor(size={"height": 16, "width": 16})
    for part in (model, processor):
        part.save_pretrained(tmp_path / "vit")
    (tmp_path / "photos" / "cats").mkdir(parents=True)
    pixels = np.random.default_rng(0).integers(0, 255, (5, 20, 24, 3), dtype=np.uint8)
    for i, image in enumerate(pixels):
        Image.fromarray(image).save(tmp_path / "photos" / "cats" / f"{i}.png")
    where = (tmp_path / "vit", "--images", tmp_path / "photos", "--bootstrap", "20")
    code, stdout, _ = run("measure", *where, "--out", tmp_path / "o")
    assert code == 0
    assert "on photos (5 of 5 images), 5 sequences × 17 tokens" in stdout
    c = dc.load(tmp_path / "o")
    direct = dc.measure(model, inputs=processor(images=list(pixels), return_tensors="pt"), bootstrap=20)
    assert c.mean_cosine == pytest.approx(direct.mean_cosine, abs=1e-6)
    assert "--images" in measure_command(c.record, yaml.safe_load((tmp_path / "o" / "config.yaml").read_text()))
    assert run("measure", *where, "--windows", "2", "--out", tmp_path / "two")[0] == 0
    assert dc.load(tmp_path / "two").record.text.source == "2 of 5 images"
    for beside in (["--text", "imdb"], ["--tokens", 64]):
        assert "takes the place of a text" in refused("measure", *where, *beside)
    assert "must hold images" in refused("measure", tmp_path / "vit", "--images", tmp_path / "vit")
    before = (tmp_path / "o" / "result.json").read_bytes()
    assert "already holds a result: choose another folder" in refused("measure", *where, "--out", tmp_path / "o")
    assert (tmp_path / "o" / "result.json").read_bytes() == before
    assert run("measure", *where, "--out", tmp_path / "o", "--force")[0] == 0
    (tmp_path / "photos" / "broken.jpg").write_bytes(b"no image")
    assert "broken.jpg' must be an image, but cannot be read" in refused("measure", *where, "--out", tmp_path / "p")
    (tmp_path / "vit" / "preprocessor_config.json").unlink()
    assert "must come with an image processor" in refused("measure", *where, "--out", tmp_path / "p")
    monkeypatch.setitem(sys.modules, "PIL", None)
    assert "needs pillow: pip install 'decondense[images]'" in refused("measure", *where, "--out", tmp_path / "p")


def test_an_image_library_that_transformers_lacks_is_named(tmp_path, monkeypatch):
    (tmp_path / "a.png").write_bytes(b"")
    lacking = classmethod(lambda *_, **__: (_ for _ in ()).throw(ImportError("\nrequires the Torchvision library\n")))
    monkeypatch.setattr(transformers.AutoImageProcessor, "from_pretrained", lacking)
    with pytest.raises(MissingExtra, match=r"reads the images of .a/b. with a library that is not installed"):
        image_batches(tmp_path, Source("a/b", "folder", "a/b", "a/b"))
