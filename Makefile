# The commands of the project; each makes .venv first if it is missing or older than its inputs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Networks in worker processes: one thread each, or they fight over the cores.
TEST_ENV := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
WORKERS ?= 2
ARGS ?=

.PHONY: figures quick test bench notebooks lint format docs clean
.DEFAULT_GOAL := figures

figures: $(READY)
	$(BIN)/python -m paper_figures --jobs $(WORKERS) $(ARGS)

quick: $(READY)
	$(BIN)/python -m paper_figures --jobs $(WORKERS) --quick $(ARGS)

test: $(READY)
	$(TEST_ENV) $(BIN)/python -m pytest -q -n $(WORKERS) $(ARGS)

bench: $(READY)
	$(BIN)/python -m tests.bench $(ARGS)

notebooks: $(READY)
	$(BIN)/jupytext --quiet --to ipynb --execute notebooks/*.py

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(READY)
	$(BIN)/python -m sphinx -q -W --keep-going -b html docs docs/build

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "relaxsd needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $(READY)

clean:
	rm -rf $(VENV) figures notebooks/*.ipynb docs/build docs/reference .mypy_cache .ruff_cache .pytest_cache .hypothesis
