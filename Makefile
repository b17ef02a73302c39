# Two commands for a newcomer: `make compare` and `make test`. Both set up what they need in .venv first.
PYTHON ?= python3
VENV := .venv
INSTALL := $(VENV)/bin/pip install --quiet --constraint constraints/ci.txt --editable
CODE := src tests examples
# A process a core, each with one thread: two threads of torch wait for each other longer than they compute.
TEST := OMP_NUM_THREADS=1 $(VENV)/bin/python -m pytest --numprocesses auto --maxprocesses 8 --dist worksteal

.PHONY: compare test lint format clean

# Options go through ARGS: make compare ARGS="--seeds 0 1 2 --depth 18"
compare: $(VENV)/.report
	$(VENV)/bin/attnres compare $(ARGS)

test: lint
	$(TEST) $(ARGS)
	TRITON_INTERPRET=1 $(TEST) tests/ops/gpu

lint: $(VENV)/.dev
	$(VENV)/bin/ruff format --check $(CODE)
	$(VENV)/bin/ruff check $(CODE)
	$(VENV)/bin/pyright

format: $(VENV)/.dev
	$(VENV)/bin/ruff format $(CODE)
	$(VENV)/bin/ruff check --fix $(CODE)

# A stamp for each set of packages, made anew when what they are made from changes.
$(VENV)/.report: pyproject.toml constraints/ci.txt
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) '.[report]'
	touch $@

$(VENV)/.dev: $(VENV)/.report
	$(INSTALL) '.[dev]'
	touch $@

clean:
	rm -rf $(VENV)
