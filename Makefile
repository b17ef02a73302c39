# Two commands for a newcomer: `make compare` and `make test`. Both set everything up in .venv first.
PYTHON ?= python3
VENV := .venv
READY := $(VENV)/.ready

.PHONY: compare test lint format clean

# Options go through ARGS: make compare ARGS="--seeds 0 1 2 --depth 18"
compare: $(READY)
	$(VENV)/bin/attnres compare $(ARGS)

test: lint
	$(VENV)/bin/python -m pytest $(ARGS)

lint: $(READY)
	$(VENV)/bin/ruff format --check src tests examples
	$(VENV)/bin/ruff check src tests examples
	$(VENV)/bin/pyright

format: $(READY)
	$(VENV)/bin/ruff format src tests examples
	$(VENV)/bin/ruff check --fix src tests examples

$(READY): pyproject.toml constraints/ci.txt
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/pip install --quiet --constraint constraints/ci.txt --editable '.[dev]'
	touch $(READY)

clean:
	rm -rf $(VENV)
