"""What decondense needs of lm-eval's insides is where it was, and what is gone is named."""

from __future__ import annotations

import contextlib
import functools
import threading
from types import SimpleNamespace

import pytest

from decondense.evaluate.task_names import PAPER
from decondense.insides import Moved
from decondense.insides import lm_eval as inside


def test_names_and_definitions():
    homes = inside.homes()
    assert {*PAPER, "gpqa", "mgsm_direct", "darijammlu_mmlu_tasks", "egymmlu_arabic_language_(general)"} <= set(homes)
    assert homes["piqa"] == {inside.tasks_folder() / "piqa"}
    index = inside.index([inside.tasks_folder() / "piqa"])
    assert index["piqa"].kind.name == "TASK"
    assert inside.definition(index["piqa"])["doc_to_text"].startswith("Question: {{goal}}")


def test_the_whole_index_is_lm_evals_though_included_files_are_read_once(monkeypatch):
    from lm_eval.tasks import TaskManager, _yaml_loader

    folder, plain, read = inside.tasks_folder() / "anli", _yaml_loader.load_yaml, []
    monkeypatch.setattr(_yaml_loader, "load_yaml", lambda path, **how: read.append(path) or plain(path, **how))
    manager = functools.partial(TaskManager, include_path=[str(folder)], include_defaults=False)
    expected, included = manager().task_index, read[:]
    read.clear()
    assert inside._whole_index(manager) == expected
    assert sorted(read) == sorted(set(included))
    assert len(set(included)) < len(included), "a file that two others include"


def test_where_examples_come_from():
    config = SimpleNamespace(training_split="train", validation_split="dev", test_split=None)
    task = SimpleNamespace(config=config, fewshot_cfg=SimpleNamespace(split=None, samples=None), _instances=[1])
    task.sampler = SimpleNamespace(df=iter("abc"))
    assert (inside.few_shot_split(task), inside.example_count(task)) == ("train", 3)
    inside.leave_item_out(task, "dev")
    assert inside.few_shot_split(task) == config.test_split == "dev"
    inside.forget_prompts(task)
    assert task._instances is None


def test_a_real_task_has_what_is_needed():
    from datasets import Dataset
    from lm_eval.api.task import ConfigurableTask
    from lm_eval.models.huggingface import HFLM

    rows = [{"goal": f"g{i}", "sol1": "a", "sol2": "b", "label": 0} for i in range(4)]
    config = inside.definition(inside.index([inside.tasks_folder() / "piqa"])["piqa"])
    config |= {"training_split": None, "custom_dataset": lambda **_: {"validation": Dataset.from_list(rows)}}
    task = ConfigurableTask(config=config | {"dataset_kwargs": None})
    assert (inside.few_shot_split(task), inside.example_count(task)) == ("validation", 4)
    inside.leave_item_out(task, "validation")
    with inside.quiet():
        task.build_all_requests(limit=2)
    assert len(task.instances) == 4
    inside.forget_prompts(task)
    inside.check_model_class(HFLM)


GONE = {
    "sampler": lambda: inside.example_count(SimpleNamespace()),
    "df": lambda: inside.example_count(SimpleNamespace(sampler=SimpleNamespace())),
    "fewshot_cfg": lambda: inside.few_shot_split(SimpleNamespace()),
    "_instances": lambda: inside.forget_prompts(SimpleNamespace()),
    "_loglikelihood_tokens": lambda: inside.check_model_class(SimpleNamespace()),
}


@pytest.mark.parametrize("name", GONE)
def test_what_is_gone_is_named(name):
    with pytest.raises(Moved, match=rf"{name} must exist in lm_eval, because .*: install a release of lm_eval"):
        GONE[name]()


@pytest.mark.parametrize(
    ("place", "call"),
    [
        ("lm_eval.tasks._yaml_loader.load_yaml", lambda: inside.definition(None)),
        ("lm_eval.api.task.tqdm", lambda: inside.quiet().__enter__()),
        ("lm_eval.utils.env", lambda: inside.templates_compiled_once().__enter__()),
    ],
)
def test_a_module_member_that_is_gone_is_named(monkeypatch, place, call):
    monkeypatch.delattr(place)
    with pytest.raises(Moved, match=rf"{place.rpartition('.')[2]} must exist in lm_eval"):
        call()


def test_nothing_stays_replaced():
    """Not after an error, and not when two threads overlap."""
    import lm_eval.api.task
    import lm_eval.utils

    bar, inner = lm_eval.api.task.tqdm, threading.Event()

    def other():
        with inside.quiet():
            inner.set()

    second = threading.Thread(target=other)
    with contextlib.suppress(KeyError), inside.quiet(), inside.templates_compiled_once():
        second.start()
        assert not inner.wait(0.1), "one call at a time"
        assert lm_eval.api.task.tqdm is not bar
        raise KeyError
    second.join(10)
    assert inner.is_set()
    assert lm_eval.api.task.tqdm is bar
    assert "from_string" not in vars(lm_eval.utils.env)


def test_a_template_is_compiled_once(monkeypatch):
    import jinja2
    from lm_eval.utils import apply_template

    compiled = []
    own = jinja2.Environment.from_string

    def counted(self, source, *args, **kwargs):
        compiled.append(source)
        return own(self, source, *args, **kwargs)

    monkeypatch.setattr(jinja2.Environment, "from_string", counted)
    with inside.templates_compiled_once():
        rendered = [apply_template("{{a}}: {{b}}", {"a": i, "b": "ä"}) for i in range(3)]
        assert apply_template("{{a}}", {"a": 1}) == "1"
    assert rendered == ["0: ä", "1: ä", "2: ä"]
    assert compiled == ["{{a}}: {{b}}", "{{a}}"]
    apply_template("{{a}}", {"a": 1})
    assert len(compiled) == 3, "outside, lm-eval is as it was"
