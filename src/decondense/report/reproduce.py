"""The command that makes a result again, from what the result recorded."""

from __future__ import annotations

import inspect
import shlex
from typing import Any

__all__ = ["evaluate_command", "measure_command", "significance_command"]


def measure_command(record: dict[str, Any], config: dict[str, Any] | None) -> str:
    """From ``config.yaml`` where it is, else from the settings inside the result."""
    if config is not None and config.get("command") == "measure" and "model" in config:
        return _line("measure", config["model"], _options(config))
    model, settings = record["model"], dict(record["settings"])
    options = {"text": record["text"]["name"], **settings}
    options |= {"init": model.get("init"), "revision": model.get("revision"), "dtype": model.get("dtype")}
    return _line("measure", model["name"], options)


def evaluate_command(record: dict[str, Any], config: dict[str, Any] | None) -> str:
    if config is not None and config.get("command") == "evaluate" and "model" in config:
        options = _options(config)
        options["tasks"] = options.get("tasks") or "none"
        return _line("evaluate", config["model"], options)
    settings = record["settings"]
    options = {"tasks": settings["tasks"] or "none", "shots": settings["shots"], "limit": settings["limit"]}
    options |= {"text": settings.get("texts") or None, "seed": settings["seed"], "dtype": record["model"].get("dtype")}
    return _line("evaluate", record["model"]["name"], options)


def significance_command(record: dict[str, Any]) -> str:
    base, treated = ([shlex.quote(str(run["run"])) for run in record[arm]] for arm in ("base", "treated"))
    flags = [*(["--paired"] if record.get("paired") else []), "--alpha", str(record["alpha"])]
    flags += ["--power", str(record["power"]), *_comparison_flags(record.get("settings", {}))]
    return " ".join(["decondense significance", *flags, *base, "--", *treated])


def _comparison_flags(settings: dict[str, Any]) -> list[str]:
    """What differs from the defaults; older results did not record these settings."""
    from ..stats.significance import significance

    defaults = {key: option.default for key, option in inspect.signature(significance).parameters.items()}
    flags = ["--common"] if settings.get("common") else []
    for key in ("bootstrap", "permutations", "seed"):
        if settings.get(key, defaults[key]) != defaults[key]:
            flags += [f"--{key}", str(settings[key])]
    return flags


def _options(config: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key not in ("command", "model")}


def _line(command: str, model: Any, options: dict[str, Any]) -> str:
    """Every option that was set, also where it is the default: defaults may change."""
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
