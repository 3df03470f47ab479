# All happens in a virtual environment in .venv beside this file. `make` alone lists the targets.
# Another Python: make PYTHON=python3.12 test

PYTHON ?= python3
PIP := .venv/bin/python -m pip --disable-pip-version-check install --quiet -c constraints.txt
# Where NVIDIA's tools are, the CUDA kernels of Numba are wanted too.
EXTRAS := lessons$(shell command -v nvidia-smi >/dev/null 2>&1 && echo ',gpu')
# The GPU check installs nothing: an environment that has torch, triton, numba-cuda and pytest will do.
GPU_PYTHON := $(or $(wildcard .venv/bin/python),$(PYTHON))

# Shared by all prompts of the demo: its blocks are computed once.
SYSTEM := "You are a patient teacher of computer systems. Answer in one or two short sentences, in the language \
of the question. Use plain words, no lists, and one small example where it helps the reader to see what is meant. \
If you do not know the answer, say so."

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
SWITCHED = parity matrix swap beam_search parallel_sampling smollm2

.PHONY: help demo bench bench-peers bench-kernels gpu-check test-switches lockstep soak fuzz test lessons mutants docs docs-serve docs-picture docs-check lint clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' Makefile

demo: .venv/installed ## generate text with a small model and show its blocks
	@.venv/bin/minipaged generate --show-blocks --dtype float32 --num-blocks 64 --max-tokens 48 --system $(SYSTEM) \
	  "안녕하세요 반갑습니다" "What is a page table?" "Why is the sky blue?" "Name three uses of paper."
	@echo 'To the tokenizer of SmolLM2, "안녕하세요 반갑습니다" is 27 tokens; the walk-through in the docs counts 6.'

bench: .venv/installed ## compare with Hugging Face generate, side by side
	.venv/bin/minipaged bench

bench-peers: .venv/installed ## compare with vLLM, llama.cpp (installed into .peers/, some 25 minutes) and Hugging Face
	@benchmarks/peers/install.sh
	.venv/bin/minipaged bench peers

bench-kernels: .venv/installed-dev ## time each concept, reference and twin, and attention against torch's
	OMP_NUM_THREADS=$$(.venv/bin/python -c 'import torch; print(torch.get_num_threads())') \
	  .venv/bin/pytest -q benchmarks/kernels --benchmark-enable --benchmark-json=bench-kernels.json \
	  --benchmark-max-time=0.5 --benchmark-columns=min,median,rounds --benchmark-sort=name

gpu-check: ## on a CUDA machine: test the compiled kernels, and time them against torch's
	@$(GPU_PYTHON) benchmarks/gpu/gpu_check.py

test: lint ## lint, then run every test
	.venv/bin/pytest -n 2 tests benchmarks

test-switches: .venv/installed-dev ## run the parity tests with every switch for a CPU that a model takes
	MINIPAGED_SWITCHES=1 .venv/bin/pytest -n 2 $(addprefix tests/engine/test_, $(addsuffix .py, $(SWITCHED)))

lockstep: .venv/installed-dev ## drive reference and kernels through twenty times as many random lives
	MINIPAGED_LOCKSTEP_TIMES=20 .venv/bin/pytest -n 2 tests/equivalence/test_lockstep.py

soak: .venv/installed-dev ## 20,000 random requests through scheduler, block manager and caches, without a model
	MINIPAGED_SOAK_REQUESTS=20000 .venv/bin/pytest -n 2 tests/engine/test_soak.py

fuzz: .venv/installed-dev ## hostile use: interrupts and other threads at any line, broken models and templates
	MINIPAGED_FUZZ=1 .venv/bin/pytest -q tests/fuzz

lessons: .venv/installed ## grade the lessons: which is next, what is wrong, where a hint is
	@.venv/bin/pytest lessons

mutants: .venv/installed-dev ## break the answer keys of lessons 2 to 9, and see that their tests notice (some 10 minutes)
	@$(PIP) cosmic-ray==8.7.0
	.venv/bin/python tests/lessons/mutants.py

docs: .venv/installed-docs docs/_build/node_modules/.installed ## build the documentation site into site/
	@.venv/bin/python docs/_build/record.py
	@.venv/bin/python docs/_build/card.py
	@NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --strict --quiet
	@echo "The site is in site/. To read it: make docs-serve"

docs-serve: docs ## build the site, and serve it on http://localhost:8000
	@echo "Serving http://localhost:8000 until Ctrl+C ..."
	@.venv/bin/python -m http.server --bind localhost --directory site 8000

docs-picture: docs ## draw the README's moving picture of the block view in Chromium
	@.venv/bin/python docs/_build/picture.py

docs-check: docs .venv/installed-dev ## test the site in Chromium, and run what its pages tell readers to type
	MINIPAGED_DOCS_SLOW=1 .venv/bin/pytest tests/docs

lint: .venv/installed-dev ## ruff and mypy
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy

clean: ## remove .venv, caches and build output
	rm -rf .venv build dist site *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks
	rm -rf docs/_build/made docs/_build/node_modules
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A stamp is renewed only when what it installs from has changed.
.venv/installed: .venv/bin/python pyproject.toml constraints.txt
	@echo "Installing torch into .venv (the largest part: a few minutes the first time) ..."
	@$(PIP) torch
	@echo "Installing minipaged, transformers, numba and the rest ..."
	@$(PIP) -e '.[$(EXTRAS)]'
	@touch $@

.venv/installed-dev: .venv/installed
	@echo "Installing the test tools ..."
	@$(PIP) -e '.[dev]'
	@touch $@

.venv/installed-docs: .venv/installed
	@echo "Installing the site's tools ..."
	@$(PIP) -e '.[docs]'
	@touch $@

# What browsers get: Python for the cells, and formulas.
docs/_build/node_modules/.installed: docs/_build/package.json docs/_build/package-lock.json
	@command -v npm >/dev/null || { echo \
	  "The site needs npm, which comes with Node.js. On Debian and Ubuntu: apt-get install npm"; exit 1; }
	@echo "Installing the site's browser packages with npm ..."
	@cd docs/_build && npm ci --no-audit --no-fund --loglevel=error
	@touch $@

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo \
	  "minipaged needs Python 3.11 or newer, and $(PYTHON) is not. Name another: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo \
	  "$(PYTHON) lacks the venv module. On Debian and Ubuntu: apt-get install python3-venv"; exit 1; }
	@echo "Creating .venv with $$($(PYTHON) -V) ..."
	@$(PYTHON) -m venv --clear .venv
