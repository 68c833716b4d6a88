"""Every way to name a model: a hub id, a folder, a GGUF file, or a bundled name.

A *bundled name* is a model that travels inside a package of the Python package index, so that it can be had
where the model hub cannot be reached. GGUF weights are dequantised once: ``weights_cache``.

Only safetensors and GGUF are read, never pickle, and code that comes with a model runs only when the caller
says ``trust_remote_code=True``.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import hub
from .checks import check_choice
from .files import AnyPath, flat, mapping_in, own_trace, read_json
from .needs import MissingExtra, need
from .weights_cache import BUNDLED, bundled_folder, convert_gguf, quiet_loading, whole_model
from .words import near, perhaps_beside, quoted, several

if TYPE_CHECKING:
    import torch

LARGEST = {"layers$|^n_layer$": 10_000, "size$|embd$|^d_": 10_000_000}  # by pattern of a configuration's key


@dataclass(frozen=True)
class Source:
    """Where a model comes from. ``kind`` is "hub", "folder", "gguf" or "bundled"; ``location`` is what
    transformers is given; ``description`` is what tables and reports print."""

    name: str
    kind: str
    location: str
    description: str
    revision: str | None = None


def resolve(name: AnyPath, *, revision: str | None = None) -> Source:
    """Find out what ``name`` means, converting GGUF weights on the first visit.

    The order is: bundled name, GGUF file, folder, hub id. Nothing is downloaded here.
    """
    text = os.fspath(name)
    path = Path(text).expanduser()
    if revision is not None and (text.lower() in BUNDLED or os.path.exists(path)):
        raise ValueError(f"revision belongs to hub ids, got revision={revision!r} for {text!r}: leave it out.")
    if text.lower() in BUNDLED:
        name = text.lower()
        return Source(name, "bundled", str(bundled_folder(name)), BUNDLED[name].description)
    if os.path.isfile(path):  # unlike Path.is_file, False for a name that is too long
        if path.suffix.lower() != ".gguf":
            raise ValueError(
                f"a model file must be GGUF, got {text!r}: give the folder that holds config.json and "
                "*.safetensors instead."
            )
        return Source(text, "gguf", str(convert_gguf([path], path.stem)), f"{path.stem}, dequantised GGUF")
    if text and os.path.isdir(path):
        folder = path if (path / "config.json").exists() or not (path / "model").is_dir() else path / "model"
        _check_folder(folder)
        # In every run folder the model is called "model": the run's own name tells them apart.
        run_folder = folder.resolve().parent if folder.name == "model" else folder.resolve()
        return Source(text, "folder", str(folder), run_folder.name)
    if path.is_absolute() or text.startswith((".", "~")) or text.lower().endswith(".gguf") or text.count("/") > 1:
        raise FileNotFoundError(f"no model at {quoted(text, 200)}: the path does not exist{perhaps_beside(path)}")
    if not text.isprintable() or not text.strip() or any(c.isspace() for c in text) or len(text) > 200:
        raise ValueError(
            f"a model must be a hub id, a folder, a GGUF file or one of {', '.join(BUNDLED)}, got {quoted(text)}."
        )
    if "/" not in text and (close := near(text.lower(), BUNDLED, cutoff=0.8)):
        raise ValueError(f"no model {text!r}: did you mean {close[0]!r}?")
    return Source(text, "hub", text, text if revision is None else f"{text}@{revision}", revision)


def load(
    name: AnyPath | Source,
    *,
    revision: str | None = None,
    dtype: str | torch.dtype | None = None,
    device: str | torch.device | None = None,
    init: bool = False,
    seed: int = 0,
    head: bool = True,
    tokenizer: bool = True,
    trust_remote_code: bool = False,
    config_changes: dict[str, Any] | None = None,
    **options: Any,
) -> tuple[Any, Any]:
    """Load ``(model, tokenizer)``, the model in ``eval()`` mode.

    Args:
        name: hub id, folder, GGUF file, bundled name (see ``BUNDLED``), or what ``resolve`` returned.
        revision: branch, tag or commit; hub ids only.
        dtype: a torch dtype or its name; default float32 on a CPU, the checkpoint's own on an accelerator.
        device: a torch device; default the accelerator if there is one, else the CPU. ``"auto"`` lets
            accelerate spread a model that is too large for one device (``device_map="auto"``); ``"meta"`` reads
            no weights: the model has its modules and shapes and no numbers.
        init: the same architecture, freshly initialised from ``seed``, instead of the trained weights.
        head: with the language-model head where the checkpoint has one; ``False`` loads the bare stack.
        tokenizer: ``False`` for a model that reads no text: ``None`` is returned instead.
        trust_remote_code: run code that comes with the model, which is never run otherwise.
        config_changes: values of the model's configuration to change; with ``init`` only.
        options: passed on to transformers' ``from_pretrained`` (``from_config`` when ``init``).
    """
    import torch

    source = name if isinstance(name, Source) else resolve(name, revision=revision)
    over_devices = device == "auto"
    if over_devices:
        need("train", 'device="auto"')
    target = None if over_devices else pick_device(device)
    precision = _dtype(dtype, "cpu" if target is None else target.type)
    with _one_sentence(source):
        config = configuration(source, trust_remote_code)
        if config_changes:
            if not init:
                raise ValueError("config_changes need init=True: trained weights do not fit another architecture.")
            config.update(config_changes)
        check_config(config)
        auto = _auto_class(config, head)
        loaded_tokenizer = load_tokenizer(source, trust_remote_code=trust_remote_code) if tokenizer else None
        without_weights = target is not None and target.type == "meta"
        if init or without_weights:
            # A fork keeps the caller's random stream as it was.
            with torch.random.fork_rng(), torch.device("meta") if without_weights else contextlib.nullcontext():
                torch.manual_seed(seed)
                new_dtype = torch.float32 if precision == "auto" else precision
                model = auto.from_config(config, dtype=new_dtype, trust_remote_code=trust_remote_code, **options)
        else:
            if over_devices:
                options = {"device_map": "auto", **options}
            options = _hub_options(source, trust_remote_code) | options
            model = whole_model(auto, source.location, dtype=precision, use_safetensors=True, **options)
    if target is not None and not options.get("device_map"):
        model = model.to(target)
    return model.eval(), loaded_tokenizer


def check(name: AnyPath, *, revision: str | None = None, dtype: Any = None, trust_remote_code: bool = False) -> None:
    """Refuse a model that cannot be found, going by its configuration alone, before any text is read."""
    _dtype(dtype, "cpu")
    source = resolve(name, revision=revision)
    with _one_sentence(source):
        configuration(source, trust_remote_code)


def configuration(source: Source, trust_remote_code: bool) -> Any:
    from transformers import AutoConfig

    return AutoConfig.from_pretrained(source.location, **_hub_options(source, trust_remote_code))


def load_tokenizer(source: Source, *, trust_remote_code: bool = False) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(source.location, **_hub_options(source, trust_remote_code))
    except ValueError as error:
        if "backend tokenizer" not in str(error):  # how transformers says that there is none
            raise
        raise ValueError(
            "it has no tokenizer: save one beside it with tokenizer.save_pretrained(folder); measure a model that "
            "reads no text with measure(model, inputs=…), or a model of images with --images FOLDER"
        ) from error


def fingerprint(network: Any) -> str:
    """Hash a few numbers of every parameter: a copy of the model has the same hash, another training seed or step has
    not. Parameters whose numbers are elsewhere, as accelerate leaves those that it offloads, count by name and shape;
    of those that are split over processes, what this process has: to ask the others they would have to wait for it."""
    digest = hashlib.sha256()
    for name, parameter in network.named_parameters():
        digest.update(name.encode())
        if parameter.is_meta:
            digest.update(str(tuple(parameter.shape)).encode())
            continue
        own_part = parameter.detach().to_local() if hasattr(parameter, "to_local") else parameter.detach()
        values = own_part.flatten()
        few = values[:: max(1, len(values) // 64)]
        digest.update(few.clone().float().cpu().numpy().tobytes())  # numpy fixes the size of a storage: of a copy's
    return digest.hexdigest()[:16]


def files_state(source: Source) -> str:
    """Return what changes when the files of a model are replaced, without reading them: the commit of a hub id, else a
    hash of the names, sizes, times of change and inodes; "" for what is not there yet."""
    if source.kind == "hub":
        from huggingface_hub import try_to_load_from_cache

        found = try_to_load_from_cache(source.location, "config.json", revision=source.revision)
        return Path(found).parent.name if isinstance(found, str) else ""
    endings = (".safetensors", ".json", ".model", ".txt", ".py")
    files = sorted(path for path in Path(source.location).iterdir() if path.suffix in endings)
    states = [(path.name, s.st_size, s.st_mtime_ns, s.st_ino) for path in files for s in [path.stat()]]
    return hashlib.sha256(repr(states).encode()).hexdigest()[:16]


def provenance(source: Source) -> dict[str, str]:
    """Return ``base_model`` (the hub id of the weights) and ``licence``, each only if known: from the name, the bundled
    model's entry, or the card (README.md) beside the weights."""
    if source.kind == "bundled":
        return {"licence": BUNDLED[source.name].licence}
    facts = {"base_model": source.name} if source.kind == "hub" else {}
    card = Path(source.location) / "README.md"
    if source.kind == "folder" and card.is_file():
        from huggingface_hub import metadata_load

        with contextlib.suppress(Exception):  # a card that cannot be read says nothing
            header = metadata_load(card) or {}
            for ours, theirs in (("licence", "license"), ("base_model", "base_model")):
                if isinstance(header.get(theirs), str):
                    facts[ours] = header[theirs]
    return facts


def trained_context(folder: Path) -> int | None:
    """Return the block length in tokens with which `decondense train` trained fresh weights, from the recipe beside
    model/ or above checkpoints/: such a model has seen no longer text, however many positions it has. None where the
    run started from trained weights, which may have, and where there is no recipe."""
    model_folder = folder.resolve()
    if model_folder.name != "model" and not model_folder.name.startswith("checkpoint-"):
        return None
    run = model_folder.parent.parent if model_folder.parent.name == "checkpoints" else model_folder.parent
    recipe = flat(mapping_in(run / "recipe.yaml"))
    fresh = recipe.get("model.architecture") or recipe.get("model.init")
    context = recipe.get("data.context")
    return context if fresh and isinstance(context, int) else None


def load_image_processor(source: Source, *, trust_remote_code: bool) -> Any:
    """Return the processor that turns images into the pixel values that an image model reads."""
    from transformers import AutoImageProcessor

    try:
        with quiet_loading():
            return AutoImageProcessor.from_pretrained(source.location, **_hub_options(source, trust_remote_code))
    except ImportError as error:  # transformers 5.17 reads images with torchvision, later ones without
        raise MissingExtra(
            f"this release of transformers ({metadata.version('transformers')}) reads the images of "
            f"{source.description!r} with a library that is not installed: pip install torchvision, or a newer "
            "transformers."
        ) from error
    except (ValueError, OSError) as error:
        raise ValueError(
            f"model {source.description!r} must come with an image processor (preprocessor_config.json) to be measured "
            f"on images, got none: {hub.first_line(error)}."
        ) from error


def _hub_options(source: Source, trust_remote_code: bool) -> dict[str, Any]:
    """Return options of ``from_pretrained``. If the hub cannot be reached only an earlier download is read."""
    local = source.kind != "hub" or not hub.hub_reachable()
    return {"revision": source.revision, "local_files_only": local, "trust_remote_code": trust_remote_code}


def pick_device(device: str | torch.device | None = None) -> torch.device:
    """The device asked for, or the accelerator (CUDA, then MPS) if there is one, else the CPU."""
    import torch

    if device is None:
        accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        return torch.device(accelerator.type if accelerator is not None else "cpu")
    reason = "devices are called cpu, cuda, cuda:0, mps and the like"  # torch would list twenty
    try:
        chosen = torch.device(device)
        reason = ""
        torch.empty(0, device=chosen)
    except (RuntimeError, AssertionError, TypeError) as error:
        raise ValueError(
            f"device must be one that this machine has, got {str(device)!r}: "
            f"{reason or str(error).splitlines()[0]}; leave it out to take the best there is."
        ) from error
    return chosen


def hardware(device: torch.device) -> str:
    """Describe a device in words, for records."""
    import torch

    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    cores, threads = several(os.cpu_count() or 1, "core"), several(torch.get_num_threads(), "thread")
    return f"{platform.machine()} CPU, {cores}, {threads}"


def _dtype(dtype: str | torch.dtype | None, device_type: str) -> torch.dtype | str:
    import torch

    if dtype is None:
        return torch.float32 if device_type == "cpu" else "auto"
    if isinstance(dtype, torch.dtype) or dtype == "auto":
        return dtype
    names = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "fp64": "float64"}
    full_name = names.get(dtype, dtype)
    check_choice("dtype", full_name, [*names.values(), "auto"])
    return getattr(torch, full_name)


def _auto_class(config: Any, head: bool) -> Any:
    """The Auto class that matches what the checkpoint was saved as."""
    import transformers

    if not head:
        return transformers.AutoModel
    names = config.architectures or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"architectures in config.json must be a list of names, got {names!r}")
    if any(n.endswith(("ForCausalLM", "LMHeadModel")) for n in names):
        return transformers.AutoModelForCausalLM
    if config.is_encoder_decoder:
        return transformers.AutoModelForSeq2SeqLM
    if any(n.endswith("ForMaskedLM") for n in names):
        return transformers.AutoModelForMaskedLM
    return transformers.AutoModel


def check_config(config: Any) -> None:
    """Refuse a configuration that no machine could build: a damaged number would fill the memory, or take for ever."""
    if getattr(config, "num_hidden_layers", 1) < 1:  # transformers silently builds a model without layers
        raise ValueError(f"num_hidden_layers must be at least 1, its configuration says {config.num_hidden_layers}")
    for key, value in flat(config.to_dict()).items():
        for pattern, largest in LARGEST.items():
            if isinstance(value, int) and not 0 <= value <= largest and re.search(pattern, key.rpartition(".")[2]):
                raise ValueError(f"the configuration's {key} must lie in 0 … {largest:,}, got {value:,}: correct it")


def _check_folder(path: Path) -> None:
    adapter = path / "adapter_config.json"
    if adapter.exists():
        content = read_json(adapter)
        base = content.get("base_model_name_or_path") if isinstance(content, dict) else None
        raise ValueError(
            f"{str(path)!r} holds a LoRA adapter of {base!r} and no model: merge them with peft, "
            "AutoPeftModelForCausalLM.from_pretrained(folder).merge_and_unload().save_pretrained(other), and give the "
            "other folder."
        )
    if not (path / "config.json").exists():
        inside = sorted(str(p.parent) for p in path.glob("*/config.json")) or sorted(
            str(p.parent) for p in path.glob("*/*/config.json")
        )
        remedy = f"give one of those inside it, {', '.join(inside[:3])}." if inside else "give another folder."
        raise FileNotFoundError(f"a model folder must hold config.json, {str(path)!r} does not: {remedy}")
    if not list(path.glob("*.safetensors")):
        pickles = [p.name for p in (*path.glob("*.bin"), *path.glob("*.pt"))]
        why = f", only {pickles[0]} (pickle, which is never read)" if pickles else ""
        raise FileNotFoundError(
            f"a model folder must hold *.safetensors, {str(path)!r} holds none{why}: save the model with "
            "save_pretrained."
        )


@contextlib.contextmanager
def _one_sentence(source: Source) -> Iterator[None]:
    """Turn the many errors by which transformers says "not found" or "does not fit", and those that a damaged file or a
    wrong value in config.json causes deep inside it, into one sentence."""
    from huggingface_hub import errors

    try:
        yield
    except Exception as error:
        if not isinstance(error, (ValueError, OSError)) and own_trace(error):
            raise  # a bug of this package, not a damaged model
        reason = hub.first_line(error)
        if isinstance(error, errors.StrictDataclassError):
            reason = str(error).splitlines()[-1].strip()
        elif "ignore_mismatched_sizes" in reason:
            reason = "the sizes of its weights are not those of its config.json"
        own_code = "contains custom code" in reason
        if own_code:
            options = "--trust-remote-code, trust_remote_code=True, in a recipe model.trust_remote_code"
            reason = f"it comes with code of its own, which runs only when you say that you trust it ({options})"
        if source.kind == "hub" and not own_code:
            path = Path(source.name)
            cause = error.__cause__
            absent = isinstance(cause, (errors.LocalEntryNotFoundError, errors.RepositoryNotFoundError))
            absent = absent and not isinstance(cause, errors.GatedRepoError)
            if absent and path.parent.name and os.path.isdir(path.parent):
                raise FileNotFoundError(
                    f"no model at {source.name!r}: the folder {str(path.parent)!r} has none of that name, and the hub "
                    f"did not provide it{perhaps_beside(path)}"
                ) from error
            raise OSError(
                f"model {source.description!r} is no folder, no GGUF file and no bundled name "
                f"({', '.join(BUNDLED)}), and the hub did not provide it: {reason}."
            ) from error
        raise ValueError(f"model {source.name!r} could not be loaded: {reason}.") from error
