"""The command that makes a result again, derived from what the result recorded."""

from __future__ import annotations

import shlex
from typing import Any

from ..records import Evaluation, Measurement, Significance


def measure_command(record: Measurement, config: dict[str, Any]) -> str:
    """Return the command, from config.yaml if it is there, else from the settings inside the result."""
    if config.get("command") == "measure" and "model" in config:
        return _line("measure", config["model"], _options(config))
    model = record.model
    if "inputs" in record.settings:
        return f"dc.measure({model.name!r}, inputs=…)  # {record.text.source}"
    options = {"text": record.text.name, **record.settings, "init": model.init, "revision": model.revision}
    return _line("measure", model.name, options | {"dtype": model.dtype})


def evaluate_command(record: Evaluation, config: dict[str, Any]) -> str:
    if config.get("command") == "evaluate" and "model" in config:
        options = _options(config)
        options["tasks"] = options.get("tasks") or "none"
        return _line("evaluate", config["model"], options)
    settings, model = record.settings, record.model
    options = {"tasks": settings.get("tasks") or "none", "shots": settings.get("shots"), "limit": settings.get("limit")}
    options |= {"text": settings.get("texts") or None, "seed": settings.get("seed"), "dtype": model.dtype}
    return _line("evaluate", model.name, options)


def significance_command(record: Significance) -> str:
    base, treated = ([shlex.quote(str(run.get("run"))) for run in arm] for arm in (record.base, record.treated))
    flags = [*(["--paired"] if record.paired else []), "--alpha", str(record.alpha), "--power", str(record.power)]
    flags += ["--common"] if record.settings.get("common") else []
    for key in ("metric", "filter", "cluster", "matters", "bootstrap", "permutations", "seed"):
        if key in record.settings:  # recorded only if given
            flags += [f"--{key}", shlex.quote(str(record.settings[key]))]
    return " ".join(["decondense significance", *flags, *base, "--", *treated])


def _options(config: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key not in ("command", "model")}


def _line(command: str, model: Any, options: dict[str, Any]) -> str:
    """Return a command line with every option that was set, even to its default: defaults may change."""
    words = ["decondense", command, shlex.quote(str(model))]
    for key, value in options.items():
        flag = "--" + str(key).replace("_", "-")
        if value is None or value is False:
            continue
        if value is True:
            words.append(flag)
        else:
            text = ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
            words += [flag, shlex.quote(text)]
    return " ".join(words)
