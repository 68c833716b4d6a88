"""What a run leaves behind: a model that loads, a card, the record; and what it reports on the way."""

from __future__ import annotations

import itertools
import json
import math
from importlib.metadata import version as installed
from typing import Any

import pytest
import torch
import transformers
import yaml
from huggingface_hub import HfApi, RepoUrl
from huggingface_hub.errors import HfHubHTTPError
from safetensors.torch import load_file

import decondense as dc
from decondense import cli
from decondense.models import Source, provenance
from decondense.records import read
from decondense.train import recipe_from, train
from decondense.train.blocks import Order
from decondense.train.prepare import prepare
from decondense.train.result import model_card, without_twins
from decondense.train.watch import Progress, milestones
from train.runs import content, result, saved, tiny, weights


@pytest.fixture(scope="module")
def finished(tmp_path_factory, cache):
    """A run with everything: uneven batches (99 tokens are three blocks of 32), the loss, snapshots, checkpoints."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    recipe = tiny(
        "name=all of it",
        "data.tokens=900",
        "train.batch_tokens=99",
        "train.checkpoints=5",
        "train.report_to=[tensorboard]",
        "loss={name: dispersion, weight: 0.5, options: {estimator: exact, tau: 0.5}}",
        "snapshots.count=2",
        architecture="gpt2",
    )
    seen: list[tuple[int, dict]] = []
    run = train(recipe, folder, cache=cache, command="decondense train x", show=lambda s, f: seen.append((s, dict(f))))
    return run, recipe, seen


def test_record(finished):
    run, recipe, _ = finished
    record = result(run.folder)
    assert record == run.record
    assert record["schema"] == "decondense.train/2"
    assert (record["steps"], record["tokens"]) == (10, 960)  # 900 tokens in steps of 96
    assert record["recipe"] == recipe.model_dump(mode="json")
    assert yaml.safe_load((run.folder / "recipe.yaml").read_text()) == record["recipe"]
    assert record["command"] == "decondense train x"
    for entries in (record["history"], record["held_out"], record["snapshots"]):
        assert all(e["tokens"] == 96 * e["step"] for e in entries)
    assert [e["step"] for e in record["history"]] == [1, 2, 4, 6, 8, 10]
    assert [e["step"] for e in record["held_out"]] == [0, 5, 10]
    assert run.held_out_loss == record["held_out"][-1]["loss"] < record["held_out"][0]["loss"]
    # GPT2 too, of which Trainer does not know that it shifts the labels: that of the untrained model
    assert record["history"][0]["task_loss"] == pytest.approx(math.log(384), rel=0.01)
    for entry in record["history"]:
        assert entry["loss"] == pytest.approx(entry["task_loss"] + 0.5 * entry["penalty"], rel=1e-5)
        assert -1 < entry["mean_cosine"] < 1
    assert record["skipped_steps"] == []
    assert record["tokens_per_second"] > 0
    assert (record["micro_batch"], record["processes"], record["bf16"]) == (3, 1, False)


def test_snapshots_are_measurements(finished, cache):
    run, recipe, _ = finished
    for entry in run.record["snapshots"]:
        found = dc.load(run.folder / entry["file"])
        assert found.layers == 2
        assert found.record.settings["windows"] == 2
        whole = json.loads((run.folder / entry["file"]).read_text())["states"][: found.layers + 1]
        assert entry["outlier_share"] == [state["top3_variance_share"] for state in whole]
    assert (run.folder / "snapshots" / "heatmaps.png").exists()
    last = dc.load(run.folder / run.record["snapshots"][-1]["file"])
    model = transformers.AutoModelForCausalLM.from_pretrained(run.folder / "model")
    tokenizer = transformers.AutoTokenizer.from_pretrained(run.folder / "model")
    text = prepare(recipe, run.folder, cache).window_text
    again = dc.measure((model, tokenizer), text=[text], windows=2, tokens=16, bootstrap=20)
    assert again.mean_cosine.tolist() == pytest.approx(last.mean_cosine.tolist(), abs=1e-6)


def test_the_model_folder_loads(finished):
    run, _, _ = finished
    folder = run.folder / "model"
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    assert type(model).__name__ == "GPT2LMHeadModel"
    assert model.config.use_cache
    ids = tokenizer("words", return_tensors="pt")["input_ids"]
    assert model.generate(ids, max_new_tokens=2, do_sample=False).shape[1] == ids.shape[1] + 2
    assert not list(folder.glob("*.bin"))  # no pickle
    assert {p.name for p in run.folder.iterdir()} == {
        "recipe.yaml", "result.json", "history.csv", "training.png", "model", "snapshots", "checkpoints",
    }  # fmt: skip
    assert len(list((run.folder / "checkpoints").glob("checkpoint-*"))) == 2


def test_the_held_out_loss_is_the_models(finished, cache):
    """The last held-out loss is the mean over tokens of the saved model's cross-entropy."""
    run, recipe, _ = finished
    held_out = prepare(recipe, run.folder, cache).held_out
    model = transformers.AutoModelForCausalLM.from_pretrained(run.folder / "model").eval()
    ids = torch.stack([torch.from_numpy(held_out.ids(b)) for b in range(len(held_out))])
    with torch.no_grad():
        logits = model(input_ids=ids).logits.double()
    expected = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    assert run.held_out_loss == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.parametrize("micro", [1, 4])
def test_held_out_loss_of_isolated_documents_is_a_mean_over_tokens(micro, tmp_path):
    """Blocks of few long and many short documents; whatever the batch, every predicted token counts once."""
    path = tmp_path / "a.jsonl"
    documents = ["word " * 12, "ab", "cd", "e" * 40, "fgh", "i", "jk"] * 20
    path.write_text("".join(json.dumps({"text": d}) + "\n" for d in documents))
    recipe = tiny(
        f"data={{text: {path}, tokens: 512, held_out_tokens: 256, context: 32, boundaries: isolated}}",
        f"train.micro_batch={micro}",
        "loss={name: dispersion, weight: 0.1}",
        config={"initializer_range": 1.0},  # tokens with very unlike losses
    )
    run = train(recipe, tmp_path / "run", cache=tmp_path / "c")
    held_out = prepare(recipe, run.folder, tmp_path / "c").held_out
    order = Order(held_out, len(held_out), seed=None, isolated=True)
    model = transformers.AutoModelForCausalLM.from_pretrained(run.folder / "model").eval()
    total, count = 0.0, 0
    for item in (order[i] for i in range(len(order))):
        starts = [*(item["position_ids"] == 0).nonzero().flatten().tolist(), 32]
        for low, high in itertools.pairwise(starts):
            if high - low > 1:
                ids = item["input_ids"][low:high].unsqueeze(0)
                with torch.no_grad():
                    logits = model(input_ids=ids, use_cache=False).logits[0, :-1].double()
                total += float(torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="sum"))
                count += high - low - 1
    assert order.labels_per_block == pytest.approx(count / len(order))
    assert run.held_out_loss == pytest.approx(total / count, rel=1e-4)


def test_the_card_says_how_it_was_made(finished):
    run, _, _ = finished
    card = (run.folder / "model" / "README.md").read_text()
    record = read(run.folder)
    assert card == model_card(record)
    front, body = card.removeprefix("---\n").split("---\n", 1)
    before, after = run.record["held_out"][0]["loss"], run.record["held_out"][-1]["loss"]
    metadata = yaml.safe_load(front)
    assert metadata.keys() == {"library_name", "pipeline_tag", "tags", "model-index"}  # nothing is known of the rest
    (entry,) = metadata["model-index"]
    assert entry["results"][0]["metrics"][0]["value"] == round(after, 4)
    assert recipe_from(yaml.safe_load(body.partition("```yaml\n")[2].partition("```")[0]), "card") == recipe_from(
        run.record["recipe"], "record"
    )
    assert "AutoModelForCausalLM.from_pretrained(" in body
    for words in (
        "# all of it",
        "| tokens | 960 in 10 steps |",
        "| started from | from scratch (",
        "pydoc (pydoc_data.topics of Python",
        "| loss on the hidden states | dispersion, weight 0.5, all, estimator = exact, tau = 0.5 |",
        "| other methods | none |",
        f"| held-out loss | {before:.4f} before, {after:.4f} after |",
        "| seed | 1 |",
        f"torch {installed('torch')}",
    ):
        assert words in body, words
    other = record.model_copy(update={"recipe": tiny("baselines.noisy_embedding=1.0").model_dump(mode="json")})
    assert "| loss on the hidden states | no regulariser |" in model_card(other)
    assert "| other methods | noisy embedding: 1.0 |" in model_card(other)
    assert "Its weights were drawn at random and bring no licence; the texts" in card
    trained = record.recipe | {"model": record.recipe["model"] | {"architecture": None, "name": "gpt2"}}
    assert "(not known here); the texts" in model_card(record.model_copy(update={"recipe": trained}))
    model = record.model.model_copy(update={"base_model": "someone/small", "licence": "Apache-2.0"})
    text = [record.text[0].model_copy(update={"name": "wikitext-2:train"})]
    known = model_card(record.model_copy(update={"model": model, "text": text})).split("---\n")[1]
    wanted = {"base_model": "someone/small", "license": "apache-2.0", "datasets": ["Salesforce/wikitext"]}
    assert yaml.safe_load(known) | wanted == yaml.safe_load(known)
    own = model.model_copy(update={"licence": "Gemma terms of use"})
    front = yaml.safe_load(model_card(record.model_copy(update={"model": own})).split("---\n")[1])
    assert (front["license"], front["license_name"]) == ("other", "Gemma terms of use")


def test_the_card_names_every_method_in_words(finished, tmp_path):
    run, _, _ = finished
    record = read(run.folder)

    def card(*settings: str, model: dict[str, Any] | None = None) -> str:
        recipe = recipe_from(content(*settings) | ({} if model is None else {"model": model}))
        return model_card(record.model_copy(update={"recipe": recipe.model_dump(mode="json")}))

    adapted = card(model={"name": "gpt2", "lora": {"r": 4}})
    assert "| other methods | LoRA: r 4, alpha 32, dropout 0.05, target modules all-linear |" in adapted
    released = card("loss={name: koleo, schedule: release, release_at: 0.25}")
    assert "| koleo, weight 0.1, all, released from 0.25 to 1 of the run |" in released
    rising = card("loss={name: koleo, schedule: linear, ramp_steps: 2000}")
    assert "| koleo, weight 0.1, all, linear rise over 2,000 steps |" in rising
    for teacher, name in ((str(tmp_path), tmp_path.name), ("someone/large", "someone/large")):
        taught = card(f"baselines.distillation.teacher={teacher}")
        assert f"| other methods | distillation: teacher {name}, temperature 2.0, share 0.5 |" in taught
    forgets = card("baselines={active_forgetting: {}, dropout: 0.0, centre_last: true}")
    every = "active forgetting: every 1000, learning rate 5e-05, warmup 0.08, std 0.02"
    assert f"| other methods | {every}; dropout: 0.0; centre last |" in forgets


def test_the_card_says_how_to_generate_with_a_tokenizer_of_bytes(finished):
    """It ends every text with a token that says that nothing follows."""
    run, _, _ = finished
    tokenizer = transformers.AutoTokenizer.from_pretrained(run.folder / "model")
    assert tokenizer("a")["input_ids"][-1] == tokenizer.eos_token_id
    assert tokenizer("a", add_special_tokens=False)["input_ids"][-1] != tokenizer.eos_token_id
    said = "The tokenizer ends a text with `</s>`: where the model is to continue it, pass `add_special_tokens=False`."
    record = read(run.folder)
    assert said in model_card(record).partition("## How to load it")[2].partition("## The recipe")[0]
    other = record.recipe | {"model": record.recipe["model"] | {"tokenizer": "gpt2"}}
    assert "</s>" not in model_card(record.model_copy(update={"recipe": other}))


def test_where_the_weights_come_from(tmp_path):
    assert provenance(Source("a/b", "hub", "a/b", "a/b")) == {"base_model": "a/b"}
    assert provenance(Source("smollm2-135m", "bundled", "", "")) == {"licence": "Apache-2.0"}
    folder = Source("x", "folder", str(tmp_path), "x")
    assert provenance(folder) == {}
    (tmp_path / "README.md").write_text("---\nlicense: mit\nbase_model: a/b\n---\n# a model\n")
    assert provenance(folder) == {"licence": "mit", "base_model": "a/b"}
    (tmp_path / "README.md").write_text("---\nlicense: [\n---\n")
    assert provenance(folder) == {}


def test_push_to_hub(finished, monkeypatch, capsys, cache):
    """The folder of the model as it lies there, once it is trained; a hub that refuses leaves the model where it is."""
    run, _, _ = finished
    calls = []
    monkeypatch.setenv("DECONDENSE_CACHE", str(cache))
    monkeypatch.setattr(
        HfApi, "create_repo", lambda api, repo, **o: calls.append((repo, o)) or RepoUrl(f"{api.endpoint}/{repo}")
    )
    monkeypatch.setattr(HfApi, "upload_folder", lambda api, **o: calls.append(o))
    recipe = run.folder / "recipe.yaml"
    command = ["train", str(recipe), "--out", str(run.folder), "--resume", "--push-to-hub"]

    def end(*more):
        with pytest.raises(SystemExit) as caught:
            cli.main([*command, *more])
        return caught.value.code or 0, capsys.readouterr().err

    code, err = end("someone/small")
    assert code == 0, err
    assert "uploaded: https://huggingface.co/someone/small" in err
    (repo, options), upload = calls
    assert (repo, options) == ("someone/small", {"exist_ok": True})
    assert (upload["repo_id"], upload["folder_path"]) == ("someone/small", run.folder / "model")

    # the second is what the client's HTTP library raises where there is no network: no OSError
    for refused in (OSError("401 Client Error"), HfHubHTTPError.__bases__[0]("Name or service not known")):

        def refuse(*a, error=refused, **k):
            raise error

        monkeypatch.setattr(HfApi, "upload_folder", refuse)
        code, err = end("someone/small")
        assert code == 2, err
        assert f"but the hub did not take it as 'someone/small': {refused}; log in" in err
    assert (run.folder / "model" / "README.md").is_file()
    code, err = end("a b")
    assert code == 2
    assert "--push-to-hub must be a hub id, OWNER/NAME, got 'a b'" in err


def test_what_is_shown_on_the_way(finished):
    _, _, seen = finished
    steps = [step for step, _ in seen]
    assert steps == sorted(steps)
    assert set(steps) == set(range(11))
    last = seen[-1][1]
    expected = {"loss", "task_loss", "penalty", "mean_cosine", "eval_loss", "tokens_per_second", "snapshot_cosine"}
    assert last.keys() == expected


def test_tensorboard_has_both_terms(finished):
    event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    run, _, _ = finished
    (file,) = run.folder.rglob("events.out.tfevents.*")
    events = event_accumulator.EventAccumulator(str(file))
    events.Reload()
    for name in ("task_loss", "penalty", "mean_cosine"):
        logged = {e.step: e.value for e in events.Scalars(f"train/{name}")}
        assert logged == pytest.approx({e["step"]: e[name] for e in run.record["history"]}, rel=1e-5)
    assert {e.step for e in events.Scalars("eval/loss")} == {0, 5, 10}


def test_lora_is_merged_into_the_architecture_it_came_from(tmp_path, cache):
    pytest.importorskip("peft")
    torch.manual_seed(0)
    base = saved(tmp_path / "base")
    recipe = content("loss={name: dispersion, weight: 0.5}", "train.learning_rate=0.05", "train.checkpoints=2")
    recipe["model"] = {"name": str(base), "lora": {"r": 4, "alpha": 8, "dropout": 0.0}}
    run = train(recipe_from(recipe), tmp_path / "run", cache=cache)
    found = transformers.AutoModelForCausalLM.from_pretrained(run.folder / "model")
    assert type(found).__name__ == "LlamaForCausalLM"
    before, after = load_file(base / "model.safetensors"), weights(run.folder)
    assert before.keys() == after.keys()
    changed = {n for n in before if not torch.equal(before[n], after[n])}
    assert changed == {n for n in before if "_proj" in n}  # every linear layer but the head, and nothing else
    assert run.held_out_loss < run.record["held_out"][0]["loss"]
    checkpoint = run.folder / "checkpoints" / "checkpoint-8"
    assert (checkpoint / "adapter_model.safetensors").exists()


def test_several_passes_over_a_short_text_are_mentioned_and_progress_is_kept(tmp_path, monkeypatch):
    path = tmp_path / "a.txt"
    path.write_text("a few words " * 60)
    said: list[str] = []
    seen = []
    file = tmp_path / "run" / "progress.json"
    monkeypatch.setattr(Progress, "EVERY", 0.0)
    recipe = tiny(f"data={{text: {path}, tokens: 1024, held_out_tokens: 96, context: 32}}")
    see = lambda step, figures: seen.append(json.loads(file.read_text())) if file.exists() else None  # noqa: E731
    run = train(recipe, tmp_path / "run", cache=tmp_path, say=said.append, show=see)
    assert run.record["blocks"] == 19
    assert said == ["the text has 19 blocks: the run goes over it 1.68 times"]
    assert len({len(one["history"]) for one in seen}) > 2
    for one in seen:
        assert (one["schema"], one["finished"], one["steps"]) == ("decondense.train/2", False, run.record["steps"])
        for name in ("history", "held_out"):
            assert one[name] == run.record[name][: len(one[name])]
    assert not file.exists()


def test_a_text_that_is_held_out_and_trained_on_is_mentioned(tmp_path):
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text(f"a few words of {name} " * 400)
    a, b = (str(tmp_path / f"{name}.txt") for name in "ab")
    one = "is one document, and the loss by document uses 512 tokens of it: a .jsonl may have more"
    for held_out, said in (
        (b, [f"{b} {one}"]),
        ([a, b], [f"not all held-out text is unseen: the run also trains on {a}", f"{a} {one}", f"{b} {one}"]),
    ):
        told: list[str] = []
        data = f"data={{text: {a}, held_out: {held_out}, tokens: 512, held_out_tokens: 96, context: 32}}"
        train(tiny(data), tmp_path / f"run{len(said)}", cache=tmp_path, say=told.append)
        assert told == said


@pytest.mark.parametrize(("steps", "number", "at"), [(10, 2, [5, 10]), (3, 5, [1, 2, 3]), (1, 4, [1]), (1526, 5,
    [305, 610, 916, 1221, 1526]), (7, 0, [])])  # fmt: skip
def test_milestones(steps, number, at):
    assert milestones(steps, number) == at


def test_gathered_weights_keep_a_tied_one_once(tmp_path):
    """Sharded weights come back as copies, one for each name."""
    config = transformers.LlamaConfig(
        vocab_size=32, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8,
        tie_word_embeddings=True,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config)
    gathered = {name: weight.clone() for name, weight in model.state_dict().items()}
    assert {"lm_head.weight", "model.embed_tokens.weight"} <= set(gathered)
    kept = without_twins(model, gathered)
    assert set(gathered) - set(kept) == {"lm_head.weight"}
    model.save_pretrained(tmp_path, state_dict=kept)
    again = transformers.LlamaForCausalLM.from_pretrained(tmp_path)
    assert torch.equal(again.lm_head.weight, model.lm_head.weight)
    config.tie_word_embeddings = False
    untied = transformers.LlamaForCausalLM(config)
    gathered = {name: weight.clone() for name, weight in untied.state_dict().items()}
    assert set(without_twins(untied, gathered)) == set(gathered)
