"""Everything before the first step: model, text, teacher, disk. Refuses, in one sentence each, what cannot work."""

from __future__ import annotations

import contextlib
import inspect
import os
import re
import shutil
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub.errors import StrictDataclassError
from transformers.integrations import get_available_reporting_integrations
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from .. import models, text
from ..files import AnyPath
from ..hidden_states import reader_of, select
from ..insides.transformers import name_loss
from ..needs import need
from ..weights_cache import quiet_loading
from ..windows import draw_windows
from ..words import Tell, nobody, perhaps, quoted, warn
from . import fast
from .blocks import Blocks
from .controls import Centre, dropout_keys, logit_terms
from .distillation import check_teacher, same_tokens
from .folder import process_count, sharded
from .held_out import Document, documents_in
from .mixture import blocks_of, check_texts, contents
from .recipe import Recipe
from .sections import TrainedTokenizer
from .token_files import token_folder
from .tokenizer import open_tokenizer


@dataclass
class Prepared:
    """What a run works with. `window_text` is the held-out text decoded for the meter, `speed` says whether blocks were
    compiled and the head fused, and `contents` maps each text to a digest of its content."""

    recipe: Recipe
    folder: Path
    model: Any
    tokenizer: Any
    source: dict[str, Any]
    blocks: Blocks
    held_out: Blocks
    documents: list[Document]
    window_text: str
    teacher: Any
    centre: Centre | None
    device: torch.device
    bf16: bool
    micro_batch: int
    speed: dict[str, bool]
    contents: dict[str, str]
    begin: int | None = None  # the token that every block begins with


def check(recipe: Recipe) -> dict[str, Any]:
    """Refuse what `prepare` would refuse, with the same sentence, as far as the device, the model's configuration and
    the names of the texts tell; return the description of the model. No weights are read, nothing is tokenised."""
    _check_reports(recipe.train.report_to)
    _device(recipe)
    cache, meta_device = token_folder(None), torch.device("meta")
    with quiet_loading():
        model, tokenizer, source = _model(recipe, meta_device, cache)
        _check_context(recipe, model)
        _micro_batch(recipe, model, meta_device)
        if tokenizer is not None:
            _teacher(recipe, model, tokenizer, meta_device)
            _begin(recipe, tokenizer)
    _warn_of_vocabulary(recipe, model, tokenizer)
    for loss in recipe.losses:
        reader, states = reader_of(model, loss.modules)
        if states is not None:
            select(loss.layers, states, reader.first)
    check_texts(recipe, tokenizer, cache)
    return source


def prepare(recipe: Recipe, folder: Path, cache: AnyPath | None, progress: Tell = nobody) -> Prepared:
    _check_reports(recipe.train.report_to)
    if recipe.train.quantised and sharded():
        raise ValueError("train.quantised rounds whole weights, which FSDP splits: leave it out.")
    device, bf16 = _device(recipe)
    tokens_folder = token_folder(cache)
    text_digests = contents(recipe, tokens_folder)  # before anything else: a file may change meanwhile
    with quiet_loading():
        model, tokenizer, source = _model(recipe, device, tokens_folder)
    _check_context(recipe, model)
    micro = _micro_batch(recipe, model, device)
    _check_disk(folder, model, recipe)
    teacher = _teacher(recipe, model, tokenizer, device)
    blocks, held_out, texts = blocks_of(recipe, tokenizer, tokens_folder, progress)
    _check_tokenizer(model, tokenizer, blocks, held_out)
    window_text = _window_text(recipe, tokenizer, held_out)
    centre = Centre(model) if recipe.baselines.centre_last else None
    speed = _make_fast(recipe, model, device)
    begin = _begin(recipe, tokenizer)
    documents = documents_in(texts, recipe.data, begin)
    return Prepared(
        recipe, folder, model, tokenizer, source, blocks, held_out, documents, window_text, teacher, centre, device,
        bf16, micro, speed, text_digests, begin,
    )  # fmt: skip


def _check_context(recipe: Recipe, model: Any) -> None:
    limit = getattr(model.config, "max_position_embeddings", None)
    if limit is not None and recipe.data.context > limit:
        raise ValueError(
            f"data.context must be at most {limit}, the positions of this model, got {recipe.data.context}: lower it, "
            f"--context {limit}."
        )


def _begin(recipe: Recipe, tokenizer: Any) -> int | None:
    if recipe.data.begin == "text":
        return None
    if tokenizer.bos_token_id is None:
        raise ValueError("data.begin bos needs a tokenizer with a beginning-of-text token, got none: leave it at text.")
    return int(tokenizer.bos_token_id)


def _check_reports(wanted: list[str]) -> None:
    installed = get_available_reporting_integrations()
    for name in wanted:
        if name not in (*installed, "all", "none"):
            raise ValueError(
                f"train.report_to must name what is installed ({', '.join(installed) or 'nothing'}), got {name!r}: "
                "install it, or leave it out."
            )


def _device(recipe: Recipe) -> tuple[torch.device, bool]:
    """Return (device, whether to train in bf16). The recipe decides; Trainer alone would follow `accelerate launch`
    wherever the recipe does not say bf16. A launcher's "no" is its default and contradicts nothing."""
    device, wanted = models.pick_device(recipe.train.device), recipe.train.precision
    if device.type == "cuda":
        if device.index is not None:  # Trainer always takes the first GPU it sees
            raise ValueError(
                f"train.device must be cpu or cuda, got {recipe.train.device!r}: choose the GPU with "
                f"CUDA_VISIBLE_DEVICES={device.index}."
            )
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    bf16 = wanted == "bf16" or (wanted == "auto" and device.type == "cuda" and torch.cuda.is_bf16_supported())
    launched = os.environ.get("ACCELERATE_MIXED_PRECISION", "no").lower()
    if launched not in ("no", "bf16" if bf16 else "no"):
        raise ValueError(
            f"train.precision = {wanted} ({'bf16' if bf16 else 'fp32'} here) and the launcher's mixed_precision must "
            f"agree, got {launched}: leave mixed_precision out of the launch, or change train.precision."
        )
    return device, bf16


def _model(recipe: Recipe, device: torch.device, cache: Path) -> tuple[Any, Any, dict[str, Any]]:
    """Return (model in train mode on the device, tokenizer, description of the model). On the meta device the model has
    no weights, and a tokenizer still to be learnt is None: its vocabulary is taken at the largest size it may have."""
    section, seed = recipe.model, recipe.train.seed
    options: dict[str, Any] = {} if section.attention is None else {"attn_implementation": section.attention}
    on_meta = device.type == "meta"
    learnt = section.tokenizer if isinstance(section.tokenizer, TrainedTokenizer) else None
    tokenizer_choice = None if on_meta and learnt else section.tokenizer
    own_tokenizer: Any = None if tokenizer_choice is None else open_tokenizer(tokenizer_choice, recipe.data, cache)
    changes = dict(section.config)
    if section.fresh and (own_tokenizer is not None or learnt):
        # The defaults are another tokenizer's ids, and the embedding of a padding token never learns.
        ends = {key: getattr(own_tokenizer, key, 0) for key in ("bos_token_id", "eos_token_id")}  # both 0 where learnt
        size = {"vocab_size": learnt.train if own_tokenizer is None else len(own_tokenizer)} if learnt else {}
        changes = ends | {"pad_token_id": None} | size | changes
    dropout = recipe.baselines.dropout
    if section.architecture is not None:
        tokenizer = own_tokenizer
        configurations, causal = transformers.CONFIG_MAPPING, transformers.MODEL_FOR_CAUSAL_LM_MAPPING
        if section.architecture not in configurations or configurations[section.architecture] not in causal:
            raise ValueError(
                "model.architecture must be a causal model type of transformers, such as gpt2, llama or qwen3, got "
                f"{quoted(section.architecture)}{perhaps(section.architecture, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)}"
            )
        with _fitting(section.architecture):
            config = transformers.AutoConfig.for_model(section.architecture, **changes)
            models.check_config(config)
        _check_keys(config, section.config)
        if dropout is not None:
            config.update(dict.fromkeys(dropout_keys(config), dropout))
        torch.manual_seed(seed)
        with _fitting(section.architecture), device if on_meta else contextlib.nullcontext():
            model = transformers.AutoModelForCausalLM.from_config(config, **options)
        source = {"name": section.architecture, "source": "from scratch"}
    else:
        assert section.name is not None
        resolved = models.resolve(section.name, revision=section.revision)
        if dropout is not None:
            config = models.configuration(resolved, section.trust_remote_code)
            changes |= dict.fromkeys(dropout_keys(config), dropout)
        model, tokenizer = models.load(
            resolved, dtype="float32", device="meta" if on_meta else "cpu", init=section.init, seed=seed,
            trust_remote_code=section.trust_remote_code, config_changes=changes or None, **options,
        )  # fmt: skip
        _check_keys(model.config, section.config)
        if own_tokenizer is not None:
            if not section.init and not same_tokens(own_tokenizer, tokenizer):
                raise ValueError(
                    f"model.tokenizer must split text as the trained weights of {resolved.name!r} know it, got "
                    f"{section.tokenizer!r}, which splits it differently: leave it out, or set model.init to true for "
                    "fresh weights."
                )
            tokenizer = own_tokenizer
        elif on_meta and learnt:
            tokenizer = None
        source = {"name": resolved.name, "source": resolved.description + (", fresh weights" if section.init else "")}
        source |= {} if section.init else models.provenance(resolved)
    if not hasattr(model, "lm_head") and model.get_output_embeddings() is None:
        raise ValueError(f"train needs a causal language model, got {type(model).__name__}: choose another model.")
    name_loss(model)
    model = model.to(device)
    source["parameters"] = sum(p.numel() for p in model.parameters())
    if section.lora is not None:
        need("peft", "a recipe with LoRA")
        from peft import LoraConfig, get_peft_model

        lora = section.lora
        adapters = LoraConfig(
            r=lora.r, lora_alpha=lora.alpha, lora_dropout=lora.dropout, target_modules=lora.target_modules,
            task_type="CAUSAL_LM",
        )  # fmt: skip
        torch.manual_seed(seed)
        with device if on_meta else contextlib.nullcontext():
            model = get_peft_model(model, adapters)
    model.config.use_cache = False
    return model.train(), tokenizer, source


@contextlib.contextmanager
def _fitting(architecture: str) -> Iterator[None]:
    """Turn errors about values that do not fit a configuration, of transformers' class or Python's, into a sentence."""
    try:
        yield
    except (ValueError, TypeError, KeyError, ArithmeticError, RuntimeError, StrictDataclassError) as error:
        raise ValueError(
            "model.architecture must be a causal model type of transformers with a fitting model.config, got "
            f"{architecture!r}: {' '.join(str(error).split())}"
        ) from error


def _check_keys(config: Any, keys: Collection[str]) -> None:
    """Refuse keys that nothing reads: transformers accepts any, so a misspelt key would silently leave the default.
    A few keys are read by a model's code but not declared by its configuration, such as Qwen2's `head_dim`."""
    if not keys:
        return
    try:
        default_config = type(config)()
    except Exception:  # a class from a model's own code may have no defaults to compare with
        return
    config_file = Path(inspect.getfile(type(config)))
    sources = (config_file, config_file.with_name(config_file.name.replace("configuration_", "modeling_")))
    names = {word for file in sources if file.exists() for word in re.findall(r"\w+", file.read_text(encoding="utf-8"))}
    for key in keys:
        if hasattr(config, key) and not hasattr(default_config, key) and key not in names:
            close = perhaps(key, default_config.to_dict(), cutoff=0.55)
            raise ValueError(f"model.config must hold keys that {config.model_type} has, got {key!r}{close}")


def _teacher(recipe: Recipe, model: Any, tokenizer: Any, device: torch.device) -> Any:
    wanted = recipe.baselines.distillation
    if wanted is None:
        return None
    teacher, its_tokenizer = models.load(wanted.teacher, revision=wanted.revision, device=device, dtype="float32")
    check_teacher(model, teacher, (tokenizer, its_tokenizer), recipe.data.context)
    return teacher.requires_grad_(False)


def _check_tokenizer(model: Any, tokenizer: Any, *texts: Blocks) -> None:
    """Refuse texts with a token that has no embedding. The vocabulary may be larger than the embeddings, as long as the
    texts do not use the excess."""
    rows = model.get_input_embeddings().weight.shape[0]
    if max(tokenizer.get_vocab().values(), default=0) < rows:
        return
    largest = max(int(text.tokens.max()) for text in texts)
    if largest >= rows:
        raise ValueError(
            f"the tokenizer must match the model: it makes token {largest}, the model has {rows} embeddings; choose "
            "the model's own tokenizer."
        )


def _warn_of_vocabulary(recipe: Recipe, model: Any, tokenizer: Any) -> None:
    """Warn of tokens without an embedding: only tokenising tells whether the text uses any (`_check_tokenizer`)."""
    tokenizer_choice, rows = recipe.model.tokenizer, model.get_input_embeddings().weight.shape[0]
    if tokenizer_choice is None:  # the model's own tokenizer
        return
    if isinstance(tokenizer_choice, TrainedTokenizer):
        size = tokenizer_choice.train
    else:
        size = 1 + max(tokenizer.get_vocab().values(), default=-1)
    if size > rows:
        warn(
            f"the tokenizer has {size} tokens, the model {rows} embeddings: a text that uses a token without "
            "an embedding is refused; raise model.config.vocab_size, or choose another tokenizer."
        )


def _window_text(recipe: Recipe, tokenizer: Any, held_out: Blocks) -> str:
    """Decode the held-out text; refuse one that is too short for the windows of the snapshots."""
    wanted = recipe.snapshots
    decoded = tokenizer.decode(held_out.tokens.tolist())
    if wanted.count:
        try:
            draw_windows(text.open_text([decoded]), tokenizer, windows=wanted.windows, tokens=wanted.tokens)
        except ValueError:
            raise ValueError(
                f"the held-out text must hold {wanted.windows} windows of {wanted.tokens} tokens for the snapshots, it "
                f"has {len(held_out.tokens)} tokens: raise data.held_out_tokens or lower snapshots.windows."
            ) from None
    return decoded


def _check_disk(folder: Path, model: Any, recipe: Recipe) -> None:
    """Refuse a disk too small for the checkpoints kept, one being written, and the final model. A checkpoint has the
    weights in float32, and two moments of every trained parameter."""
    weights = sum(p.numel() for p in model.parameters()) * 4
    moments = sum(p.numel() for p in model.parameters() if p.requires_grad) * 8
    checkpoints = min(recipe.train.keep, recipe.train.checkpoints) + 1 if recipe.train.checkpoints else 0
    needed = (weights + moments) * checkpoints + weights
    written = sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())  # a resumed run has some of it already
    free = shutil.disk_usage(next(p for p in (folder, *folder.absolute().parents) if p.exists())).free
    if free + written < needed:
        raise OSError(
            f"the disk must hold {needed / 2**20:,.1f} MiB of checkpoints, it has {free / 2**20:,.1f} MiB free: free "
            "some space or choose another folder with --out."
        )


def _micro_batch(recipe: Recipe, model: Any, device: torch.device) -> int:
    """Blocks per forward pass: what the recipe says, else the largest divisor of a process's share that should fit.
    All processes gather sharded weights together, so each must also measure the same number of windows."""
    world, snapshots = process_count(), recipe.snapshots
    if sharded() and snapshots.count and snapshots.windows % world:
        raise ValueError(
            f"snapshots.windows must be a multiple of the {world} processes when the weights are sharded (FSDP), got "
            f"{snapshots.windows}: change it, or set snapshots.count to 0."
        )
    if recipe.batch_blocks % world:
        raise ValueError(
            f"train.batch_tokens must give every one of {world} processes as many blocks, got {recipe.batch_blocks} "
            f"blocks of {recipe.data.context}: change train.batch_tokens or the number of processes."
        )
    share = recipe.batch_blocks // world
    if recipe.train.micro_batch is not None:
        if share % recipe.train.micro_batch:
            raise ValueError(
                f"train.micro_batch must divide the {share} blocks of a process, got {recipe.train.micro_batch}: "
                "choose a divisor, or leave it out for what fits."
            )
        return recipe.train.micro_batch
    tokens = 4096.0
    if device.type == "cuda":
        # benchmarks/results/throughput.csv: 131,072 tokens of a 135M-parameter model (30 layers × width 576, 49k words)
        # take 81 GiB of an H200's 139 when compiled, with the fused head; 32,768 without either take 48.
        config = model.config
        work = config.num_hidden_layers * config.hidden_size / 17280 + config.vocab_size / 49152
        lean = recipe.train.fused_loss is not False and recipe.train.compile is not False and not recipe.own_head
        memory = torch.cuda.get_device_properties(device).total_memory / (139 * 2**30)
        tokens = (131072 if lean else 32768) * memory * 2 / max(work, 2 / 3)
    fits = max(1, int(tokens / recipe.data.context))
    return max(d for d in range(1, min(fits, share) + 1) if share % d == 0)


def _make_fast(recipe: Recipe, model: Any, device: torch.device) -> dict[str, bool]:
    """Compile the blocks and fuse the head, on a GPU unless the recipe says otherwise; return what was done."""
    cuda, train = device.type == "cuda", recipe.train
    compiled = cuda if train.compile == "auto" else train.compile
    fused = (cuda if train.fused_loss == "auto" else train.fused_loss) and not recipe.own_head
    if fused:
        fused = fast.fuse_head(model, compiled=compiled, terms=logit_terms if recipe.baselines.on_logits else None)
        if not fused and train.fused_loss is True:
            raise ValueError(f"train.fused_loss does not reproduce the loss of {type(model).__name__}: set it to auto.")
    if compiled:
        fast.compile_blocks(model)
    return {"compiled": compiled, "fused_loss": fused}
