# `make demo` and `make test` set themselves up: they create .venv and install the pinned versions into it.
SHELL := /bin/bash
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
# PyTorch and torchsan, which is all that the demo needs.
USABLE := .venv/.usable
# Two workers, and one thread each: compiled tests are many small programs. A worker that dies ends the run: xdist
# would start another, and may then wait for ever for tests that the dead one was to run.
WORKERS := -n 2 --dist loadgroup --max-worker-restart 0
INSTALL = $(BIN)/python -u -m pip install --progress-bar off --disable-pip-version-check -c constraints.txt
# A line for each package that is fetched, and no others.
PROGRESS := sed -u -n -E 's/^ *(Downloading|Using cached|Installing collected) (.{0,80}).*/   \1 \2/p'
PYTEST := $(BIN)/python -m pytest $(WORKERS)
# Real bugs, planted faults, healthy programs, the grammar of wrappers and the table of seams.
SMOKE := tests/test_cases.py tests/test_canary.py tests/torch_internals tests/programs/test_values.py \
	tests/programs/test_memory.py tests/programs/test_drift.py tests/programs/test_newer_releases.py

.PHONY: help demo test test-all test-torch smoke test-matrix test-triton coverage lint house pictures found-bugs goldens bench bench-quick release-check docs clean

help:  ## show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

$(USABLE): pyproject.toml constraints.txt
	@echo "== creating .venv (once)"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "== installing PyTorch and torchsan (once; a minute or some, most of it PyTorch)"
	@set -o pipefail; $(INSTALL) torch | $(PROGRESS)
	@set -o pipefail; $(INSTALL) -e . | $(PROGRESS)
	@touch $@

$(STAMP): $(USABLE)
	@echo "== installing what the tests, the linters and the documentation need (once; some minutes)"
	@set -o pipefail; $(INSTALL) -e '.[lint,test,docs,release,s3,safetensors,triton]' | $(PROGRESS)
	@touch $@

demo: $(USABLE)  ## look inside a compiled model; with another PyTorch: TORCH=2.15.0
	@python=$(if $(TORCH),$$($(BIN)/python -m tools.torch_env $(TORCH)),$(BIN)/python) && $$python examples/demo.py

test: $(STAMP)  ## the tests, except the long ones
	@echo "== running the tests"
	@$(PYTEST)

# The page of `--html` is tested in a real browser: the system's Chromium, or else Playwright's.
test-all: $(STAMP)  ## all tests, also those marked slow
	@test -n "$$TORCHSAN_CHROMIUM" || command -v chromium chromium-browser google-chrome google-chrome-stable >/dev/null \
		|| $(BIN)/playwright install chromium \
		|| echo "== no browser, so its tests are skipped: install Chromium, or set TORCHSAN_CHROMIUM to the path of one"
	@echo "== running all tests"
	@$(PYTEST) -m ""

# TORCH is a release of PyTorch; P=tests/planted runs a part. tools/torch_env.py says what an environment has of its own.
test-torch: $(STAMP)  ## the tests with another PyTorch: TORCH=2.15.0
	@test -n "$(TORCH)" || { echo "which PyTorch? make test-torch TORCH=2.15.0"; exit 2; }
	@python=$$($(BIN)/python -m tools.torch_env $(TORCH)) && echo "== running the tests with PyTorch $(TORCH)" \
		&& $$python -m pytest $(WORKERS) $(P)

smoke: $(STAMP)  ## a few minutes of tests with the newest PyTorch that is supported
	@python=$$($(BIN)/python -m tools.torch_env) && echo "== running some tests with the newest PyTorch" \
		&& $$python -m pytest $(WORKERS) $(SMOKE)

test-matrix: $(STAMP)  ## the tests with each PyTorch that is supported
	@for torch in $$($(BIN)/python -c 'from tools.torch_env import MATRIX; print(*MATRIX)'); do \
		$(MAKE) --no-print-directory test-torch TORCH=$$torch || failed="$$failed $$torch"; \
	done; test -z "$$failed" || { echo "== failed with PyTorch$$failed"; exit 1; }

# What PyTorch pins, or another release, which comes before it on the path: `make test-triton TRITON=3.9.0`.
TRITON ?= 3.7.1
TRITON_HOME := .venv/triton-$(TRITON)
TRITON_TESTS := $(shell grep -rl 'importorskip("triton")' tests)

test-triton: $(STAMP)  ## all tests of Triton, also those marked slow, with one release of it
	@test -d $(TRITON_HOME)/triton || $(BIN)/python -m pip install -qq --disable-pip-version-check --no-deps \
		--target $(TRITON_HOME) triton==$(TRITON)
	@echo "== running the tests of Triton $(TRITON)"
	@PYTHONPATH=$(CURDIR)/$(TRITON_HOME) $(PYTEST) -m "" $(TRITON_TESTS)

# Coverage makes everything slower, so that this is not what `make test` runs. P=tests/records measures a part.
coverage: $(STAMP)  ## how much of the code the tests run, processes that they start included
	@$(PYTEST) --cov --cov-report=term --cov-report=html:docs/_build/coverage $(P)

lint: $(STAMP)  ## ruff, mypy, import-linter
	@echo "== ruff"; $(BIN)/ruff check . && $(BIN)/ruff format --check .
	@echo "== mypy"; $(BIN)/mypy
	@echo "== import-linter"; $(BIN)/lint-imports

house: $(STAMP)  ## how the code is laid out, in figures beside their goals (V=-v lists what they count)
	@$(BIN)/python -m tools.house $(V)

bench: $(STAMP)  ## torchsan beside what PyTorch offers, into docs/benchmarks.md (about an hour)
	@$(BIN)/python -m benchmarks --page docs/benchmarks.md && echo "== wrote docs/benchmarks.md and docs/benchmarks.svg"
	@$(BIN)/python -m benchmarks.sensitivity --page docs/explanation/sensitivity.md

bench-quick: $(STAMP)  ## the same with smaller sizes, printed only (about four minutes)
	@$(BIN)/python -m benchmarks --quick

release-check: $(STAMP)  ## build sdist and wheel, install the wheel in a fresh environment, and use it there
	@$(BIN)/python tools/release_check.py

pictures: $(STAMP)  ## the pictures of the documentation, in Chromium
	@$(BIN)/python -m tools.pictures

found-bugs: $(STAMP)  ## which PyTorch has which bug, into docs/found-bugs.md; of one: TORCH=2.15.0
	@$(BIN)/python -m tools.found_bugs $(TORCH) && echo "== wrote docs/found-bugs.md"

goldens: $(STAMP)  ## the programs that each PyTorch generates, into tests/data/wrappers
	@for torch in $$($(BIN)/python -c 'from tools.torch_env import MATRIX; print(*MATRIX)'); do \
		python=$$($(BIN)/python -m tools.torch_env $$torch) && $$python -m tools.golden_wrappers || exit 1; done

docs: $(STAMP)  ## the documentation, into docs/_build
	@$(BIN)/sphinx-build -W --keep-going -q -b html docs docs/_build && echo "== open docs/_build/index.html"

clean:  ## remove what the above made
	rm -rf .venv .venvs dist docs/_build .coverage .coverage.* .pytest_cache .mypy_cache .ruff_cache .hypothesis
