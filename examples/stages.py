"""What SFT and DPO (TRL) do to the geometry of a model, and whether the dispersion loss changes that.

    python examples/stages.py run --out DIR [--piece "none-seed-1,dispersion-1-seed-*"]   a file for every arm and seed
    python examples/stages.py conclude --out DIR                                          conclusion.json, table.csv

The model is trained on questions that a program makes (sums, order of words, counting, copying: nobody's text), first
on right answers (SFT), then from there on pairs of a right and a wrong answer (DPO); without a loss on the hidden
states, and with dispersion at λ = 0.1 and 1, in both stages, three seeds each. Seeds decide questions and their order.
Before, after SFT and after DPO: mean cosine of the blocks and Spearman on held-out text, the loss on the same text, and
the log-likelihood of the right answers of questions not trained on.

Written down before any run. Two questions, each with a 95 % interval over training seeds:
    1. without a loss, does the mean cosine change from before to after DPO, by 10 % of it or more?
    2. is the mean cosine after DPO with λ = 1 below that without, by 10 % or more? Beside it: the log-likelihood of the
       right answers, where 0.01 nats matter, and the loss on text, where 0.002 do.
"""

from __future__ import annotations

import argparse
import copy
import csv
import fnmatch
import json
import math
import random
from pathlib import Path
from typing import Any

import numpy as np

import decondense as dc
from decondense.files import versions
from decondense.records import Measurement, in_short
from decondense.stats.verdicts import Decision, decide, judged
from decondense.studies.runs import MATTERS_COSINE, MATTERS_NATS, MATTERS_SHARE

ARMS = {"none": 0.0, "dispersion-0.1": 0.1, "dispersion-1": 1.0}
SEEDS = (1, 2, 3)
STAGES = ("before", "SFT", "DPO")
WORDS = [
    "river", "stone", "lamp", "garden", "bridge", "winter", "candle", "basket", "window", "forest", "island", "harbour",
    "copper", "violin", "meadow", "saddle", "ladder", "pepper", "ribbon", "marble", "kettle", "anchor", "feather",
    "blanket", "compass", "thunder", "orchard", "lantern", "mirror", "pillow",
]  # fmt: skip
KEYS = ("mean_cosine", "spearman", "text_loss", "right", "log_share")


def question(rng: random.Random) -> dict[str, str]:
    """A question, the right answer and a wrong one of the same form."""
    kind = rng.randrange(4)
    words = rng.sample(WORDS, rng.randint(3, 6))
    if kind == 0:
        a, b = rng.randint(2, 60), rng.randint(2, 39)
        asked, right, wrong = f"What is {a} plus {b}?", str(a + b), str(a + b + rng.choice([-10, -1, 1, 10]))
    elif kind == 1:
        first, *others = sorted(words)
        asked = f"Which of these words comes first in a dictionary: {', '.join(words)}?"
        right, wrong = first, rng.choice(others)
    elif kind == 2:
        asked = f"How many words are in this list: {', '.join(words)}?"
        right, wrong = str(len(words)), str(len(words) + rng.choice([-1, 1]))
    else:
        place = rng.randrange(len(words))
        asked = f"What is word number {place + 1} of this list: {', '.join(words)}?"
        right, wrong = words[place], rng.choice([w for w in words if w != words[place]])
    return {"prompt": f"Question: {asked}\nAnswer:", "chosen": f" {right}.", "rejected": f" {wrong}."}


def questions(count: int, seed: int, *, without: frozenset[str] = frozenset()) -> list[dict[str, str]]:
    """`count` different questions, none of them with a prompt in `without`."""
    rng, found = random.Random(seed), dict[str, dict[str, str]]()
    while len(found) < count:
        one = question(rng)
        if one["prompt"] not in without:
            found.setdefault(one["prompt"], one)
    return list(found.values())


def answers(model: Any, tokenizer: Any, rows: list[dict[str, str]], *, batch: int = 64) -> dict[str, float]:
    """How often the right answer is likelier than the wrong one, and the log of its share, nats per item."""
    import torch

    likely: list[list[float]] = []
    for start in range(0, len(rows), batch):
        some = rows[start : start + batch]
        for answer in ("chosen", "rejected"):
            asked = [tokenizer(row["prompt"], add_special_tokens=False)["input_ids"] for row in some]
            said = [tokenizer(row[answer], add_special_tokens=False)["input_ids"] for row in some]
            longest = max(len(a) + len(b) for a, b in zip(asked, said))
            ids = torch.zeros(len(some), longest, dtype=torch.long)
            counted = torch.zeros(len(some), longest, dtype=torch.bool)
            for i, (a, b) in enumerate(zip(asked, said)):
                ids[i, : len(a) + len(b)] = torch.tensor([*a, *b])
                counted[i, len(a) : len(a) + len(b)] = True
            # padding is on the right, where a causal model does not see it: no mask is needed
            with torch.no_grad():
                logits = model(input_ids=ids.to(model.device), use_cache=False).logits[:, :-1].float().cpu()
            logs = logits.log_softmax(-1).gather(-1, ids[:, 1:, None]).squeeze(-1)
            likely.append((logs * counted[:, 1:]).sum(1).tolist())
    right = np.concatenate(likely[::2])
    wrong = np.concatenate(likely[1::2])
    return {"right": float((right > wrong).mean()), "log_share": float(-np.logaddexp(0, wrong - right).mean())}


def looked_at(model: Any, tokenizer: Any, rows: list[dict[str, str]], o: argparse.Namespace) -> dict[str, float]:
    import torch

    from decondense.text import open_text
    from decondense.windows import draw_windows

    model.eval()
    measured = dc.measure(
        (model, tokenizer), text=o.text, data=o.data, windows=o.windows, tokens=o.tokens, bootstrap=20
    )
    ids = draw_windows(open_text(o.text, data=o.data), tokenizer, windows=o.windows, tokens=o.tokens).ids
    losses = []
    for row in torch.from_numpy(ids).split(8):
        given = row.to(model.device)
        with torch.no_grad():
            losses.append(float(model(input_ids=given, labels=given, use_cache=False).loss) * len(row))
    short = in_short(Measurement.model_validate(measured.record))
    shape = {"mean_cosine": short.blocks, "spearman": math.nan if short.spearman is None else short.spearman}
    return shape | {"text_loss": sum(losses) / len(ids)} | answers(model, tokenizer, rows)


def trained(arm: str, seed: int, o: argparse.Namespace) -> dict[str, Any]:
    """The stages of one arm and seed."""
    import torch
    from datasets import Dataset
    from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

    from decondense.models import hardware, load, pick_device

    device = pick_device(o.device)
    model, tokenizer = load(o.model, dtype="float32", device=device)
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    asked = questions(o.items, 0)  # the same for all arms and seeds
    rows = questions(o.examples, seed, without=frozenset(row["prompt"] for row in asked))
    stages = {"before": looked_at(model, tokenizer, asked, o)}
    common: dict[str, Any] = {
        "output_dir": str(Path(o.out) / f".{arm}-seed-{seed}"), "per_device_train_batch_size": o.batch, "seed": seed,
        "max_length": 128, "num_train_epochs": 1, "lr_scheduler_type": "cosine", "warmup_steps": 10,
        "logging_steps": 10, "save_strategy": "no", "report_to": "none", "disable_tqdm": True,
        "bf16": device.type == "cuda", "use_cpu": device.type == "cpu", "gradient_checkpointing": False,
    }  # fmt: skip
    for stage in STAGES[1:]:
        torch.manual_seed(seed)
        model.train()
        if stage == "SFT":
            data = Dataset.from_list([{"prompt": row["prompt"], "completion": row["chosen"]} for row in rows])
            taught = SFTConfig(learning_rate=o.sft_rate, **common)
            trainer: Any = SFTTrainer(model=model, args=taught, train_dataset=data, processing_class=tokenizer)
        else:
            trainer = DPOTrainer(
                model=model, ref_model=copy.deepcopy(model).eval(), processing_class=tokenizer,
                args=DPOConfig(learning_rate=o.dpo_rate, beta=0.1, **common), train_dataset=Dataset.from_list(rows),
            )  # fmt: skip
        handle = dc.regularize(trainer, "dispersion", weight=ARMS[arm]) if ARMS[arm] else None
        trainer.train()
        if handle is not None:
            handle.remove()
        model = trainer.model
        stages[stage] = looked_at(model, tokenizer, asked, o) | {"steps": trainer.state.global_step}
        print(f"{arm}, seed {seed}, {stage}: {stages[stage]}", flush=True)
    packages = versions("decondense", "torch", "transformers", "trl")
    settings = {key: getattr(o, key) for key in SETTINGS}
    return {"arm": arm, "seed": seed, "stages": stages, "settings": settings, "versions": packages,
            "hardware": hardware(device)}  # fmt: skip


def conclude(folder: Path) -> dict[str, Any]:
    """Answer both questions from the runs in a folder, and write conclusion.json and table.csv into it."""
    runs = [json.loads(file.read_text()) for file in sorted((folder / "runs").glob("*.json"))]
    if not runs:
        raise SystemExit(f"there must be runs in {str(folder / 'runs')!r}, got none: run some first.")
    if len({json.dumps(run["settings"], sort_keys=True) for run in runs}) > 1:
        raise SystemExit("all runs must have the same settings, but they differ: give each set a folder of its own.")
    table = {(run["arm"], run["seed"], stage): run["stages"][stage] for run in runs for stage in STAGES}
    seeds = sorted({seed for _, seed, _ in table})

    def gaps(key: str, one: tuple[str, str], other: tuple[str, str]) -> list[float]:
        """(arm, stage) minus (arm, stage), seed by seed."""
        both = [((one[0], s, one[1]), (other[0], s, other[1])) for s in seeds]
        return [table[a][key] - table[b][key] for a, b in both if a in table and b in table]

    result: dict[str, Any] = {"stages": {}, "arms": {}}
    for arm in ARMS:
        for stage in STAGES[1:]:
            changes = {key: decide(gaps(key, (arm, stage), (arm, "before")), claim="less") for key in KEYS}
            result["stages"][f"{arm}, {stage} minus before"] = changes
            if arm != "none":
                apart = {key: decide(gaps(key, (arm, stage), ("none", stage)), claim="less") for key in KEYS}
                result["arms"][f"{arm} minus none, after {stage}"] = apart
    level = np.mean(
        [table["none", s, "before"]["mean_cosine"] for s in seeds if ("none", s, "before") in table] or [math.nan]
    )
    first, second = (
        gaps("mean_cosine", ("none", "DPO"), ("none", "before")),
        gaps("mean_cosine", ("dispersion-1", "DPO"), ("none", "DPO")),
    )
    result["sentence"] = (
        f"mean cosine of the blocks {level:.3f} before; SFT and DPO without a loss change it by "
        f"{_words(first)}: {judged(first, MATTERS_COSINE * level)} (of {100 * MATTERS_COSINE:g} % or more). With "
        f"dispersion at 1 minus without, after DPO, {_words(second)}: {judged(second, MATTERS_COSINE * level)}; "
        + "; ".join(
            f"{words} {_words(values, digits)}: {judged(values, matters)} (of {matters:g} or more)"
            for words, key, digits, matters in (
                ("log-likelihood of the right answers", "log_share", 4, MATTERS_SHARE),
                ("loss on text", "text_loss", 4, MATTERS_NATS),
            )
            for values in [gaps(key, ("dispersion-1", "DPO"), ("none", "DPO"))]
        )
        + "."
    )
    result["settings"], result["runs"] = runs[0]["settings"], len(runs)
    (folder / "conclusion.json").write_text(json.dumps(result, indent=1, default=_plain, ensure_ascii=False) + "\n")
    with (folder / "table.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["arm", "seed", "stage", *KEYS])
        writer.writerows(
            [arm, seed, stage, *(f"{values[key]:.6g}" for key in KEYS)] for (arm, seed, stage), values in table.items()
        )
    return result


def _words(values: list[float], digits: int = 3) -> str:
    return decide(values, claim="less").words(digits)


def _plain(value: Any) -> Any:
    if isinstance(value, Decision):  # without its verdict, which is about a direction that is not claimed here
        return {key: getattr(value, key) for key in ("estimate", "low", "high", "n", "reason", "resolution")}
    raise TypeError(f"{type(value).__name__} cannot be written")


SETTINGS = ("model", "text", "windows", "tokens", "items", "examples", "batch", "sft_rate", "dpo_rate")


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("what", choices=["run", "plan", "conclude"])
    parser.add_argument("--out", default="stages")
    parser.add_argument("--piece", default="*", help="names of runs, with * for any letters, separated by commas")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--text", default="wikitext-2")
    parser.add_argument("--data")
    parser.add_argument("--device")
    parser.add_argument("--windows", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--items", type=int, default=1024, help="questions that are asked and not trained on")
    parser.add_argument("--examples", type=int, default=8192, help="questions that are trained on")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--sft-rate", type=float, default=5e-5)
    parser.add_argument("--dpo-rate", type=float, default=5e-6)
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    o = parsed(arguments)
    folder = Path(o.out)
    if o.what == "conclude":
        print(conclude(folder)["sentence"])
        return 0
    wanted = [name.strip() for name in o.piece.split(",")]
    names = {f"{arm}-seed-{seed}": (arm, seed) for seed in SEEDS for arm in ARMS}
    chosen = {name: of for name, of in names.items() if any(fnmatch.fnmatchcase(name, one) for one in wanted)}
    if not chosen:
        raise SystemExit(f"--piece must name runs, got {o.piece!r}: they are {', '.join(names)}.")
    for name, (arm, seed) in chosen.items():
        file = folder / "runs" / f"{name}.json"
        if o.what == "plan" or file.exists():
            print(f"{name}{': done before' if file.exists() else ''}")
            continue
        file.parent.mkdir(parents=True, exist_ok=True)
        record = trained(arm, seed, o)
        file.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
