"""What can be known before the first step is said then, in one sentence, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import shutil
from types import SimpleNamespace

import pytest
import torch
import transformers

from decondense.train import run, train, trainer
from decondense.train.prepare import _check_keys, check
from decondense.train.trainer import Trainer
from train.runs import fail_in_step_five, saved, tiny, weights

BROKEN = {
    "context": (
        ["data.context=128", "train.batch_tokens=1024"],
        r"at most 64, the positions.*: lower it, --context 64\.",
    ),
    "text": (["data.text=no/such/file.txt"], r"no text at 'no/such/file.txt': the file does not exist"),
    "name": (["data.text=wikitext-9"], r"text must be a file or one of wikitext-2, .*, got 'wikitext-9'"),
    "held-out size": (["data.held_out_tokens=10M"], r"the text must fill 312501 blocks of 32 tokens, 312500 of them"),
    "windows": (["snapshots={count: 1, windows: 99, tokens: 16}"], r"must hold 99 windows of 16 tokens for the snap"),
    "micro": (["train.micro_batch=3"], r"train.micro_batch must divide the 8 blocks .*, got 3: choose a divisor"),
    "tokenizer": (
        ["model.config.vocab_size=100"],
        r"the tokenizer must match the model: it makes token \d+, the model",
    ),
    "bytes": (["model.tokenizer=byte"], r"model.tokenizer must be bytes, .*, got 'byte': did you mean 'bytes'\?$"),
    "no tokenizer": (["model.tokenizer=no-such-model"], r"model.tokenizer must be bytes, .* or a model whose tok"),
    "architecture": (
        ["model.architecture=lama"],
        r"^model.architecture must be a causal model type .*, got 'lama': did you mean 'llama'\?$",
    ),
    "no causal model": (
        ["model.architecture=vit"],
        r"^model.architecture must be a causal .{,80}, got 'vit'.{,40}$",
    ),
    "key of the configuration": (
        ["model.config.hiden_size=64"],
        r"^model.config must hold keys that llama has, got 'hiden_size': did you mean 'hidden_size'\?$",
    ),
    "key of another configuration": (
        ["model.config.n_layer=2"],
        r"^model.config must hold keys that llama has, got 'n_layer'",
    ),
    "config": (
        ["model.config.num_attention_heads=3"],
        r"with a fitting model.config, got 'llama': .*number of attention heads",
    ),
    "device": (["train.device=cuda:7"], r"device must be one that this machine has, got 'cuda:7'"),
    "layers": (["loss={name: dispersion, layers: [9]}"], r"layers must lie in 0 … 2"),
    "shares of a step": ([], r"every one of 3 processes as many blocks, got 8 blocks of 32"),
    "shares of the windows": (
        ["snapshots={count: 1, windows: 6, tokens: 16}"],
        r"snapshots.windows must be a multiple of the 4 processes .*, got 6",
    ),
    "report": (["train.report_to=[nothing]"], r"train.report_to must name what is installed \(.*\), got 'nothing'"),
}


LAUNCHED = {  # by a launcher of several processes, which says so in the environment
    "shares of a step": {"WORLD_SIZE": "3"},
    "shares of the windows": {"WORLD_SIZE": "4", "ACCELERATE_USE_FSDP": "true"},
}


@pytest.mark.parametrize("case", BROKEN)
def test_one_sentence_and_nothing_left_behind(case, tmp_path, cache, monkeypatch):
    settings, sentence = BROKEN[case]
    for name, value in LAUNCHED.get(case, {}).items():
        monkeypatch.setenv(name, value)
    with pytest.raises((ValueError, OSError), match=sentence):
        train(tiny(*settings), tmp_path / "deep" / "er" / "run", cache=cache)
    assert list(tmp_path.iterdir()) == []  # neither the run folder nor the folders made for it


TOLD = ("context", "text", "name", "micro", "no tokenizer", "architecture", "no causal model",
        "key of the configuration", "config", "layers", "shares of a step")  # fmt: skip


@pytest.fixture
def nothing_is_read(monkeypatch):
    """Neither weights nor texts."""

    def forbidden(*args, **options):
        raise AssertionError("read")

    for place in ("models.whole_model", "text.read_documents", "train.token_files.TokenFiles._tokenise"):
        monkeypatch.setattr(f"decondense.{place}", forbidden)


@pytest.mark.parametrize("case", TOLD)
@pytest.mark.usefixtures("nothing_is_read")
def test_the_same_sentence_without_weights_and_tokens(case, monkeypatch):
    settings, sentence = BROKEN[case]
    for name, value in LAUNCHED.get(case, {}).items():
        monkeypatch.setenv(name, value)
    with pytest.raises((ValueError, OSError), match=sentence):
        check(tiny(*settings))


@pytest.mark.usefixtures("nothing_is_read")
def test_a_model_with_trained_weights_is_checked_by_its_configuration(tmp_path):
    folder, text = saved(tmp_path / "model"), tmp_path / "text.txt"
    text.write_text("Some words.")
    named = [f"model={{name: {folder}}}", f"data.text=[{text}, pydoc]", f"data.held_out={text}"]
    check(tiny(*named, "loss={name: dispersion, layers: [0, -3]}", f"baselines.distillation={{teacher: {folder}}}"))
    check(tiny(*named, "model.lora={}"))
    check(tiny(*named, "model.init=true", "model.tokenizer={train: 300}", "model.config={num_hidden_layers: 4}"))
    two = "loss=[{name: dispersion}, {name: decorrelation, layers: [1, 3]}]"
    other = saved(tmp_path / "other", vocab_size=400)
    scan = tmp_path / "scan.pdf"
    scan.touch()
    (tmp_path / "empty").mkdir()
    for settings, sentence in {
        (two,): r"layers must lie in 0 … 2 \(or −3 … −1\), got 3",
        (f"model.name={tmp_path / 'absent'}",): "no model at '.*absent': the path does not exist",
        (f"data.held_out={tmp_path / 'absent.txt'}",): "no text at '.*absent.txt': the file does not exist",
        (f"data.held_out={scan}",): "a text file must be .txt, .* got 'scan.pdf': convert it",
        (f"data.text={tmp_path / 'empty'}",): "the folder '.*empty' must hold .txt",
        ("data.text=pydoc:trian",): "text 'pydoc' has no split 'trian'",
        (f"baselines.distillation={{teacher: {other}}}",): "a teacher must share the student's vocabulary of 384",
    }.items():
        with pytest.raises((ValueError, OSError), match=sentence):
            check(tiny(*named, *settings))


def test_a_text_that_was_tokenised_before_need_not_be_there(tmp_path, monkeypatch):
    """As a run on a machine without a network, whose cache was filled elsewhere."""
    monkeypatch.setattr("decondense.hub.hub_reachable", lambda: False)
    monkeypatch.setenv("DECONDENSE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("DECONDENSE_DATA", raising=False)
    recipe = tiny("data.text=c4")
    with pytest.raises(
        OSError, match=r"^text 'c4' \(split 'train'\) is in no local folder and the datasets hub did not"
    ):
        check(recipe)
    with monkeypatch.context() as reachable:
        reachable.setattr("decondense.hub.hub_reachable", lambda: True)
        reachable.setattr("decondense.text._hub_rows", lambda name, split: iter(["Some words, and more. " * 200] * 2))
        check(recipe)
        train(recipe, tmp_path / "run")
    check(recipe)
    assert train(recipe, tmp_path / "again").record["text"][0]["name"] == "c4"


def test_layers_by_the_names_of_their_modules(tmp_path, cache):
    """Hidden state 1 is what block 0 puts out, and a compiled block must not be asked for another's values."""
    ways = {"states": "layers: [1]", "modules": "layers: [0], modules: model.layers.*"}
    for name, way in ways.items():
        train(tiny(f"loss={{name: dispersion, weight: 1, {way}}}"), tmp_path / name, cache=cache)
    one, two = (weights(tmp_path / name) for name in ways)
    assert all(torch.equal(one[name], two[name]) for name in one)
    with pytest.raises(ValueError, match=r"modules must name layers of LlamaForCausalLM, but \['h.\*'\] matches none"):
        check(tiny("loss={name: dispersion, modules: h.*}"))


def test_a_snapshot_that_cannot_be_taken_says_how_to_do_without(tmp_path, cache, monkeypatch):
    def snapshot(*args, **options):
        raise ValueError("a model must return hidden states, Odd does not: it cannot be measured.")

    monkeypatch.setattr("decondense.train.watch.snapshot", snapshot)
    with pytest.raises(
        ValueError, match=r"Odd does not: it cannot be measured; set snapshots.count=0 for a run without snapshots\.$"
    ):
        train(tiny("snapshots.count=1"), tmp_path / "run", cache=cache)


def test_a_configuration_without_defaults():
    """As that of a model's own code may be: also where the recipe changes nothing of it."""

    class Own(transformers.PretrainedConfig):
        def __init__(self, hidden_size, **rest):
            self.hidden_size = hidden_size
            super().__init__(**rest)

    for changes in ({}, {"hidden_size": 8}):
        _check_keys(Own(8), changes)


def test_a_full_disk(tmp_path, cache, monkeypatch):
    asked = []

    def usage(path):
        asked.append(os.fspath(path))
        return SimpleNamespace(free=100_000)

    monkeypatch.setattr(shutil, "disk_usage", usage)
    with pytest.raises(
        OSError, match=r"the disk must hold 0\.[1-9] MiB of checkpoints, it has 0\.1 MiB free: free some"
    ):
        train(tiny(), tmp_path / "run", cache=cache)
    assert asked == [str(tmp_path / "run")]
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_becomes_full(tmp_path, cache, monkeypatch):
    """Whoever writes then has words of their own for it; the run can be resumed."""

    def full(folder, **content):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(trainer, "mark", full)
        with pytest.raises(OSError, match=r"the disk became full while writing into .*: free some space and repeat"):
            train(tiny("train.checkpoints=2"), tmp_path / "run", cache=cache)

    def torn(*args, **kwargs):
        patched.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=4096))
        raise RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 5312 vs 5204")

    with monkeypatch.context() as patched:
        patched.setattr(torch, "save", torn)
        with pytest.raises(OSError, match="the disk became full"):
            train(tiny("train.checkpoints=2"), tmp_path / "run", cache=cache, resume=True)
    assert train(tiny("train.checkpoints=2"), tmp_path / "run", cache=cache, resume=True).record["finished"]


def test_memory_that_is_not_enough(tmp_path, cache, monkeypatch):
    with monkeypatch.context() as patched:
        fail_in_step_five(patched, torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB."))
        with pytest.raises(
            ValueError, match=r"must hold train.micro_batch = 8 blocks of 32 tokens, .* which continues"
        ):
            train(tiny("train.checkpoints=2"), tmp_path / "run", cache=cache)
    # the remedy works
    resumed = train(tiny("train.checkpoints=2", "train.micro_batch=4"), tmp_path / "run", cache=cache, resume=True)
    assert resumed.record["micro_batch"] == 4


def test_a_connection_that_breaks(tmp_path, cache, monkeypatch):
    """What is left of a process that died, for one that waits for it."""
    broken = RuntimeError("[pair.cc:553] Connection closed by peer [127.0.0.1]:30382. More of it.")
    fail_in_step_five(monkeypatch, broken)
    with pytest.raises(RuntimeError, match=r"^\[pair.cc"):  # alone: not ours to explain
        train(tiny(), tmp_path / "alone", cache=cache)
    arguments = run._arguments

    def of_two(*args, **kwargs):
        made = arguments(*args, **kwargs)
        monkeypatch.setattr(run.run_folder, "process_count", lambda: 2)
        return made

    monkeypatch.setattr(run, "_arguments", of_two)
    with pytest.raises(
        OSError, match=r"another process of this run has died .*Connection closed .* from checkpoint-4\."
    ):
        train(tiny("train.checkpoints=2"), tmp_path / "run", cache=cache)


def test_a_folder_that_cannot_be_written(tmp_path, cache):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=r"the run folder .* must be writable: not a directory; choose another"):
        train(tiny(), tmp_path / "file" / "run", cache=cache)
    if os.geteuid():  # root may write everywhere
        (tmp_path / "closed").mkdir(mode=0o500)
        with pytest.raises(OSError, match=r"must be writable: permission denied"):
            train(tiny(), tmp_path / "closed" / "run", cache=cache)


def test_a_folder_that_was_there_stays(tmp_path, cache):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="positions"):
        train(tiny("data.context=128", "train.batch_tokens=1024"), tmp_path / "run", cache=cache)
    assert [p.name for p in (tmp_path / "run").iterdir()] == ["notes.txt"]


def test_a_model_that_is_no_language_model(tmp_path, cache):
    folder = tmp_path / "bert"
    config = transformers.BertConfig(vocab_size=384, hidden_size=16, num_hidden_layers=1, num_attention_heads=2)
    transformers.BertModel(config).save_pretrained(folder)
    transformers.ByT5Tokenizer().save_pretrained(folder)
    with pytest.raises(ValueError, match="train needs a causal language model, got BertModel: choose another"):
        train(tiny(f"model={{name: {folder}}}"), tmp_path / "run", cache=cache)


def words_tokenizer():
    """A tokenizer that is not bytes, with numbers that the tiny models have."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    inner = Tokenizer(models.WordLevel({"<unk>": 0, "a": 1, "test": 2, "tokens": 3, "<end>": 4}, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="<unk>", eos_token="<end>")


def test_trained_weights_know_their_own_tokenizer(tmp_path, cache):
    """Every token has an embedding, and yet it is the wrong one. Fresh weights know none."""
    folder = saved(tmp_path / "model")
    words_tokenizer().save_pretrained(folder)
    with pytest.raises(ValueError, match=r"must split text as the trained weights of .* got 'bytes', .*: leave it out"):
        train(tiny(f"model={{name: {folder}, tokenizer: bytes}}"), tmp_path / "run", cache=cache)
    assert not (tmp_path / "run").exists()
    fresh = tiny(f"model={{name: {folder}, tokenizer: bytes, init: true}}", "data.tokens=256")
    assert train(fresh, tmp_path / "fresh", cache=cache).record["finished"]
    own = tiny(f"model={{name: {tmp_path / 'fresh' / 'model'}, tokenizer: bytes}}", "data.tokens=256")
    assert train(own, tmp_path / "own", cache=cache).record["finished"]


def test_a_vocabulary_may_be_larger_than_what_the_text_uses(tmp_path, cache):
    """259 embeddings are enough for bytes, though the tokenizer has 125 more names."""
    assert train(tiny("model.config.vocab_size=259"), tmp_path / "run", cache=cache).record["finished"]


def test_a_named_text_is_trained_on_in_its_train_split(tmp_path, cache, monkeypatch):
    (tmp_path / "wikitext-2").mkdir()
    words = " = Title = \n \n" + "some words and more of them \n" * 400
    (tmp_path / "wikitext-2" / "test.raw").write_text(words)
    (tmp_path / "none").mkdir()
    settings = ["data.text=wikitext-2", "data.tokens=512"]
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("decondense.train.mixture.hub_reachable", lambda: False)
    monkeypatch.setattr("decondense.text._packaged_file", lambda entry, split: None)
    with pytest.raises(ValueError, match=r"'wikitext-2' has no train split here: .* like wikitext-2:test"):
        train(tiny(*settings, f"data.folder={tmp_path}"), tmp_path / "run", cache=cache)
    (tmp_path / "wikitext-2" / "train.raw").write_text(words)
    record = train(tiny(*settings, f"data.folder={tmp_path}"), tmp_path / "run", cache=cache).record
    assert [t["name"] for t in record["text"]] == ["wikitext-2:train"]
    assert record["text"][0]["documents"] == 1


def test_the_remedy_for_a_text_that_is_not_here_works(tmp_path, cache, monkeypatch):
    """It named another split, which was as absent."""
    monkeypatch.delenv("DECONDENSE_DATA", raising=False)
    monkeypatch.setattr("decondense.train.mixture.hub_reachable", lambda: False)
    monkeypatch.setattr("decondense.text._packaged_file", lambda entry, split: None)
    settings = ["data.text=novels", "data.tokens=512"]
    with pytest.raises(ValueError, match="novels") as refused:
        train(tiny(*settings), tmp_path / "run", cache=cache)
    assert str(refused.value) == (
        "text 'novels' has no train split here: set DECONDENSE_DATA to a folder that holds novels/train.jsonl (.gz or "
        ".xz), or give a file of your own."
    )
    (tmp_path / "novels").mkdir()
    (tmp_path / "novels" / "train.jsonl").write_text(json.dumps({"text": "some words and more of them \n" * 400}))
    monkeypatch.setenv("DECONDENSE_DATA", str(tmp_path))
    assert train(tiny(*settings), tmp_path / "run", cache=cache).record["finished"]
    with pytest.raises(ValueError, match=r"train split here: set DECONDENSE_DATA .* text/tweets|tweets/train.jsonl"):
        train(tiny("data.text=tweets", "data.tokens=512"), tmp_path / "other", cache=cache)


@pytest.mark.parametrize(
    ("launched", "precision", "bf16"),
    [("no", "fp32", False), ("no", "bf16", True), ("bf16", "bf16", True), ("bf16", "fp32", None),
     ("bf16", "auto", None), ("fp16", "bf16", None)],
)  # fmt: skip
def test_the_launcher_and_the_recipe_agree_on_the_precision(launched, precision, bf16, tmp_path, cache, monkeypatch):
    """`accelerate launch` names a precision in the environment, and Trainer follows it where the recipe says fp32."""
    seen: set[str] = set()
    own = Trainer.training_step

    def training_step(self, *args, **kwargs):
        seen.add(self.accelerator.mixed_precision)
        return own(self, *args, **kwargs)

    monkeypatch.setattr(Trainer, "training_step", training_step)
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", launched)
    recipe = tiny(f"train.precision={precision}", "data.tokens=256")
    if bf16 is None:
        with pytest.raises(ValueError, match=rf"train.precision = {precision} .* must agree, got {launched}: leave"):
            train(recipe, tmp_path / "run", cache=cache)
        assert list(tmp_path.iterdir()) == []
        return
    assert train(recipe, tmp_path / "run", cache=cache).record["bf16"] is bf16
    assert seen == {"bf16" if bf16 else "no"}


def test_blocks_that_begin_with_a_token_need_one(tmp_path, cache):
    with pytest.raises(ValueError, match=r"data\.begin bos needs a tokenizer with a beginning-of-text token, got none"):
        train(tiny("data.begin=bos"), tmp_path / "run", cache=cache)
    learnt = ["model.tokenizer={train: 300, characters: 20000}", "data.begin=bos", "data.tokens=256"]
    assert train(tiny(*learnt), tmp_path / "run", cache=cache).record["finished"]
