# SPDX-License-Identifier: GPL-3.0-or-later

# Programs to use: make test EMACS=/path/to/emacs PYTHON=/path/to/python3
EMACS ?= emacs
PYTHON ?=
export EMACS PYTHON

BUILD := $(CURDIR)/.build
export PATH := $(BUILD)/bin:$(PATH)
export PYTHONNOUSERSITE := 1
# Else pyright and npm put it into the temporary directory, and leave it there.
export NODE_COMPILE_CACHE := $(BUILD)/cache/node-compiled

VENV := $(BUILD)/venv/bin
CHECKOUT := $(EMACS) -Q --batch -l scripts/checkout.el
SOURCES := $(filter-out %-autoloads.el,$(wildcard *.el))
ERT := $(wildcard tests/elisp/*-test.el)
ALL_ELISP := $(SOURCES) $(wildcard tests/elisp/*.el scripts/*.el scripts/startup/*.el demo/*.el tests/e2e/*.el tests/bench/*.el)

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help build emacs demo screenshots reports test test-bare test-ert test-python test-e2e test-interop bench lint lint-python lint-elisp format lock clean setup setup-tests

help: ## Show this
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: setup $(BUILD)/compiled ## Prepare what a checkout needs to run; opens nothing

setup:
	@scripts/setup

# Newcomers who want a look are not asked for what only these need.
test test-ert test-python test-e2e test-interop bench lint lint-python lint-elisp screenshots: setup-tests
setup-tests:
	@scripts/setup tests

# All together: a macro of one file may be used in another.
$(BUILD)/compiled: $(SOURCES) scripts/compile.el scripts/checkout.el | setup
	@$(CHECKOUT) -l scripts/compile.el -f compile-checkout $(SOURCES)
	@touch $@

emacs: build ## Open Emacs with this checkout loaded, the mode off; ARGS='...' go to it; REAL=1: with your own ~/.qwen
	@$(if $(REAL),,QWEN_HOME='$(BUILD)/qwen') EMACSLOADPATH="$(CURDIR)/scripts/startup:$$EMACSLOADPATH" \
	  $(EMACS) -Q -l scripts/checkout.el $(ARGS)

demo: build ## Try it: Emacs, the real CLI and a scripted model; needs no key and no network
	@demo/run

screenshots: build ## Take the pictures of the README anew from the running demo
	@$(VENV)/python demo/screenshots.py

reports: build ## Write anew what the tests of the chat are told, after a change of the daemon's client
	@PYTHONPATH=python $(VENV)/python tests/python/recorded_reports.py

# One pytest run for both folders, last: its closing line counts them all.
test: build lint test-ert ## Everything: lint, the Emacs Lisp, Python and end-to-end tests
	@$(VENV)/python -m pytest tests/python tests/e2e

test-bare: ## `make test` on a bare Debian made for it (root and mmdebstrap); SUITE=trixie for another release
	@scripts/test-bare

test-ert: build ## The Emacs Lisp tests; ARGS="--eval '(setq ...)'" go to Emacs
	@$(CHECKOUT) -L tests/elisp $(ERT:%=-l %) $(ARGS) -f ert-run-tests-batch-and-exit

test-python: build ## The Python tests; ARGS='-k name' go to pytest
	@$(VENV)/python -m pytest tests/python $(ARGS)

test-e2e: build ## Emacs, terminal and the real CLI together; ARGS='-k name' go to pytest
	@$(VENV)/python -m pytest tests/e2e $(ARGS)

test-interop: build ## All supported CLIs, old ones too, in Emacs; ARGS='-k qwen-0.5' go to pytest
	@scripts/setup interop
	@$(VENV)/python -m pytest tests/e2e/interop --interop $(ARGS)

bench: build ## What a review and following a file cost, beside what Emacs has for it; asserts nothing
	@$(CHECKOUT) -l tests/bench/review.el
	@$(CHECKOUT) -l tests/bench/unified.el
	@$(CHECKOUT) -l tests/bench/follow.el
	@$(CHECKOUT) -l tests/bench/burst.el
	@$(CHECKOUT) -l tests/bench/chat.el

lint: lint-python lint-elisp ## Check style, types, warnings and doc strings; changes nothing

lint-python: build
	@$(VENV)/ruff check --quiet
	@$(VENV)/ruff format --check --quiet || { echo "lint: not formatted (make format):"; $(VENV)/ruff format --diff; exit 1; }
	@$(VENV)/pyright --warnings

lint-elisp: build
	@status=0; for file in $(ALL_ELISP); do \
	  $(CHECKOUT) -L tests/elisp -l scripts/lint.el -f lint-file $$file || status=1; \
	done; exit $$status

format: build ## Format the Python files
	@$(VENV)/ruff check --quiet --fix --select I
	@$(VENV)/ruff format --quiet

lock: ## Compute the locks of the Python packages and the CLIs anew
	@scripts/lock

clean: ## Remove all that was generated, downloads too
	@rm -rf .build *.elc tests/elisp/*.elc qwen-companion-autoloads.el
	@find python tests demo -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true
