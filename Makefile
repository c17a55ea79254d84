# Every target makes the virtual environment when it is missing or older than what defines it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
EXTRAS := train,retrieval,swe,parquet,report,dev

# One thread: results on the CPU do not depend on the machine's load, and two threads on busy cores are slower.
export OMP_NUM_THREADS ?= 1
export TOKENIZERS_PARALLELISM ?= false
export HF_HUB_OFFLINE ?= 1

.PHONY: help venv demo test test-fast test-slow test-wheel test-text test-programs check format bench coverage clean

help: ## List the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

venv: $(STAMP) ## Make .venv with everything the tests and the demo need

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("forkgym needs Python 3.11 or newer, $(PYTHON) is " + sys.version.split()[0]) if sys.version_info < (3, 11) else None'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[$(EXTRAS)]'
	@touch $@

demo: $(STAMP) ## Train six methods side by side on real questions and print one table
	$(BIN)/forkgym demo

test: $(STAMP) ## Run all tests, fast ones first
	$(BIN)/python -m pytest -m "not slow"
	$(BIN)/python -m pytest -m slow

test-fast: $(STAMP) ## Run the tests that take under three minutes together
	$(BIN)/python -m pytest -m "not slow"

test-slow: $(STAMP) ## Run the slow tests
	$(BIN)/python -m pytest -m slow

test-wheel: $(STAMP) ## Build the wheel and use it in an environment of its own, without extras
	tests/wheel.sh $(BIN)/python

test-text: ## Test the text games with their engines (TextWorld, ALFWorld's planner), in an environment of their own
	@test -x .venv-text/bin/python || $(PYTHON) -m venv .venv-text
	.venv-text/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[text,alfworld,express,dev]'
	.venv-text/bin/python -m pytest tests/envs/text

test-programs: $(STAMP) ## Run all random programs on repositories, real ones as far as they were fetched (ten minutes)
	FORKGYM_ALL_PROGRAMS=1 $(BIN)/python -m pytest -m slow tests/envs/swe/test_programs.py

check: $(STAMP) ## Lint, types, import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy forkgym envs/forkgym_retrieval envs/forkgym_swe envs/forkgym_text envs/forkgym_toy algos/forkgym_algos
	$(BIN)/python -m pytest -q tests/test_architecture.py

format: $(STAMP) ## Format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(STAMP) ## Run a benchmark: make bench NAME=fork_latency
	$(BIN)/python -m bench $(NAME)

coverage: $(STAMP) ## Line coverage of forkgym/ by the fast tests
	$(BIN)/python -m pytest -q -m "not slow" --cov --cov-report=term-missing:skip-covered

clean: ## Remove the virtual environment, caches and runs made by the demo
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis htmlcov .coverage dist build runs
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
