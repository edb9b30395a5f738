# SPDX-License-Identifier: GPL-3.0-or-later

# Programs to use: make test EMACS=/path/to/emacs PYTHON=/path/to/python3
EMACS ?= emacs
PYTHON ?=
PEERS ?=
export EMACS PYTHON PEERS

BUILD := $(CURDIR)/.build
export PATH := $(BUILD)/bin:$(PATH)
export PYTHONNOUSERSITE := 1
# As users have it: else each of the hundreds of backends that the tests start compiles the package anew.
unexport PYTHONDONTWRITEBYTECODE
# Else pyright and npm put it into the temporary directory, and leave it there.
export NODE_COMPILE_CACHE := $(BUILD)/cache/node-compiled

VENV := $(BUILD)/venv/bin
CHECKOUT := $(EMACS) -Q --batch -l scripts/checkout.el
SOURCES := qwen-companion.el $(wildcard lisp/*/*.el)
CORES := $(shell getconf _NPROCESSORS_ONLN)
ALL_ELISP := $(SOURCES) $(wildcard tests/elisp/*.el tests/fuzz/*.el scripts/*.el scripts/startup/*.el demo/*.el tests/e2e/*.el bench/*.el)

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help build emacs doctor demo screenshots reports docs test test-busy test-bare test-ert test-python test-e2e test-interop test-there matrix package robust hostile conformance configurations servers figures fuzz bench lint lint-python lint-style lint-elisp format lock clean setup setup-tests

help: ## Show this
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: setup $(BUILD)/compiled ## Prepare what a checkout needs to run; opens nothing

setup:
	@scripts/setup

# Newcomers who want a look are not asked for what only these need.
test test-busy test-ert test-python test-e2e test-interop test-there matrix robust hostile conformance configurations servers figures fuzz bench lint lint-python lint-style lint-elisp screenshots reports docs: setup-tests
setup-tests:
	@scripts/setup tests

# All together: a macro of one file may be used in another.
$(BUILD)/compiled: $(SOURCES) scripts/compile.el scripts/checkout.el scripts/loaddefs.el | setup
	@$(EMACS) -Q --batch -l scripts/loaddefs.el -f loaddefs-write
	@$(CHECKOUT) -l scripts/compile.el -f compile-checkout $(SOURCES)
	@touch $@

emacs: build ## Open Emacs with this checkout loaded, the mode off; ARGS='...' go to it; REAL=1: with your own ~/.qwen
	@$(if $(REAL),,QWEN_HOME='$(BUILD)/qwen') EMACSLOADPATH="$(CURDIR)/scripts/startup:$$EMACSLOADPATH" \
	  $(EMACS) -Q -l scripts/checkout.el $(ARGS)

doctor: build ## Check what a CLI needs to connect to this checkout; ends with status 1 if something failed
	@$(CHECKOUT) -l qwen-companion-doctor -f qwen-companion-doctor-batch

demo: build ## Try it: Emacs, the real CLI and a scripted model; needs no key and no network
	@demo/run

screenshots: build ## Take the pictures of the README anew, and of reviews in all themes and sizes to look at
	@$(VENV)/python demo/contact_sheet.py
	@$(VENV)/python demo/screenshots.py
	@$(VENV)/python demo/moving_picture.py

reports: build ## Write anew what the tests of the chat are told, after a change of the daemon's client
	@PYTHONPATH=python $(VENV)/python tests/helpers/recorded_reports.py

PYTEST = $(VENV)/python -m pytest --durations=20 --durations-min=1
# Several workers: each starts programs and waits for them.  Tests that may share a stage, those of a file at least,
# share a worker; the slow ones come first, see tests/conftest.py.
PARALLEL = -n auto --dist loadfile --no-loadscope-reorder

docs: build ## Write anew the lists of messages, their accessors in Lisp, and the manual as Texinfo
	@PYTHONPATH=python $(VENV)/python scripts/document_messages.py
	@$(EMACS) -Q --batch docs/qwen-companion.org -l ox-texinfo -f org-texinfo-export-to-texinfo

test: build ## Everything: lint, the Emacs Lisp, Python and end-to-end tests
	@$(PYTEST) $(PARALLEL)

test-busy: build ## The tests with two busy loops for each core beside them
	@$(PYTEST) $(PARALLEL) --busy

test-bare: ## What CI runs, on a bare Debian made for it (root and mmdebstrap); SUITE=trixie for another release
	@scripts/test-bare

test-ert: build ## The Emacs Lisp tests; ARGS='-k follow' go to pytest, --ert '"regexp"' chooses in the files
	@$(PYTEST) -n $(CORES) --dist load tests/elisp $(ARGS)

test-python: build ## The Python tests; ARGS='-k name' go to pytest
	@$(PYTEST) tests/python $(ARGS)

test-e2e: build ## Emacs, terminal and the real CLI together; ARGS='-k name' go to pytest
	@$(PYTEST) tests/e2e $(ARGS)

test-interop: build ## All supported CLIs, old ones too, in Emacs; ARGS='-k qwen-0.5' go to pytest
	@scripts/setup interop
	@$(PYTEST) tests/e2e/interop --interop $(ARGS)

test-there: build ## The end-to-end tests with project and CLI at another place; AT=sudo, ARGS='--cli qwen-0.23.4'
	@scripts/setup interop
	@$(PYTEST) tests/e2e --ignore tests/e2e/interop --at $(or $(AT),ssh) $(ARGS)

matrix: build ## The tests with each release of Debian, Emacs and Python that can be had, written to docs/versions.org; SUITES=trixie, EMACSES='emacs emacs-30' or PYTHONS='3.14' choose
	@scripts/matrix

package: ## The tar file for an archive of packages, in dist/
	@scripts/package

configurations: build ## The main job in each configuration of tests/configurations, with packages of Debian that are unpacked into .build; writes docs/configurations.org; ARGS='evil helm' runs these only
	@$(VENV)/python tests/configurations/configurations.py $(ARGS)

servers: build ## Compare the tools with what pyright, basedpyright, pylsp and clangd say, by eglot, lsp-mode and etags; installs those it needs into .build
	@scripts/language-servers
	@failed=; for emacs in $(EMACS) $(BUILD)/other-emacs/emacs; do for way in eglot lsp-mode etags; do for server in pyright basedpyright pylsp clangd; do \
	  $$emacs -Q --fg-daemon=servers-$$$$ -l scripts/checkout.el -L tests/elisp -L bench -l servers \
	    --eval "(run-at-time 0.1 nil #'servers-bench \"$$way\" \"$$server\")" 2>&1 | grep '^|' | tee $(BUILD)/servers/row; \
	  ! grep -q DIFFERS $(BUILD)/servers/row || failed=1; done; done; done; test -z "$$failed"

robust: build ## Attack a backend, with kills, load, strangers, a full disk and a clock that is set, on this machine only; SHARE=0.01 for a short form
	@$(PYTEST) tests/python/test_robust.py tests/python/test_strangers.py tests/python/test_listening.py --rounds 20 $(ARGS)
	@$(VENV)/python bench/robust.py --share $(or $(SHARE),1) --seed $(or $(FROM),1)

# The tests do it for the commands that start programs.
hostile: build ## Call all commands in a project with traps, and list the programs started (strace tells them); ARGS=--verbose
	@$(VENV)/python bench/hostile.py $(ARGS)

# It knows no token, and is too large for the lock of the tests.
CONFORMANCE = @modelcontextprotocol/conformance@0.1.16

CONFORMANCE_PROGRAM = $(BUILD)/conformance/node_modules/.bin/conformance

$(CONFORMANCE_PROGRAM):
	@npm install --silent --no-fund --no-audit --prefix $(BUILD)/conformance $(CONFORMANCE)

conformance: build $(CONFORMANCE_PROGRAM) ## Run the official conformance scenarios of MCP that apply; installs them, and `robust' runs them then too
	@$(VENV)/python bench/conformance.py

figures: build ## Measure all of `robust' and `bench' and write docs/figures.org and the README's table, in some ten minutes; SHARE=1 for all of `robust'
	-@$(MAKE) --no-print-directory $(CONFORMANCE_PROGRAM)
	@$(VENV)/python bench/figures.py $(or $(SHARE),0.2)

MEASURE := $(CHECKOUT) -L bench

# The short run of each is part of `make test'.
fuzz: build ## Random reviews, texts and undos against oracles; FROM=n is the first seed, CASES=n and STEPS=n how many
	@$(CHECKOUT) -L tests/elisp -l tests/fuzz/hunks.el --eval "(hunks-fuzz-main $(or $(FROM),1) $(or $(CASES),2000))"
	@$(CHECKOUT) -L tests/elisp -l tests/fuzz/reviews-fuzz.el -f reviews-fuzz $(or $(STEPS),5000) $(or $(FROM),1)
	@FUZZ_SEED=$(or $(FROM),1) $(PYTEST) tests/python/texts tests/python/wire/test_spool.py tests/python/journal/test_random.py \
	  tests/python/journal/test_random_turns.py tests/python/journal/test_two_hands.py tests/python/journal/test_origins.py \
	  tests/python/journal/test_random_rewinds.py tests/python/journal/test_staging.py tests/python/journal/test_model_news.py \
	  tests/python/doors/test_reviews.py tests/python/daemon/test_hostile_events.py tests/elisp/test_markdown.py \
	  --hypothesis-profile=fuzz --hypothesis-seed=$(or $(FROM),1)

bench: build ## What commands, reviews, following a file, sessions, the journal here and at a place, worktrees, an undo and a start cost; PEERS=~/src has checkouts of other packages to compare with
	@$(MEASURE) -l bench/command.el
	@$(VENV)/python bench/speed.py
	@$(VENV)/python bench/hooks.py
	@$(MEASURE) -l bench/review.el
	@$(MEASURE) -l bench/unified.el
	@$(MEASURE) -l bench/follow.el
	@$(MEASURE) -l bench/burst.el
	@$(MEASURE) -l bench/changes.el
	@$(MEASURE) -l bench/chat.el
	@$(VENV)/python bench/keys.py
	@$(VENV)/python bench/sessions.py
	@$(VENV)/python bench/journal.py
	@$(VENV)/python bench/worktrees.py
	@$(VENV)/python bench/undo.py
	@$(VENV)/python bench/blame.py
	@$(MEASURE) -l bench/blame.el
	@$(VENV)/python bench/remote.py
	@$(VENV)/python bench/start.py
	@$(VENV)/python bench/peers.py

lint: lint-python lint-elisp ## Check style, types, warnings and doc strings; changes nothing

lint-python: build lint-style $(BUILD)/typed

# A marker left of a merge is no error in a doc string.
lint-style: build
	@! git grep -nE '^(<{7}|>{7}) '
	@PYTHONPATH=python $(VENV)/python scripts/document_messages.py --check
	@$(VENV)/ruff check --quiet
	@$(VENV)/ruff format --check --quiet || { echo "lint: not formatted (make format):"; $(VENV)/ruff format --diff; exit 1; }

# A directory is newer when a file in it is new or gone; by its whole name, since `demo' and `bench' are targets.
$(BUILD)/typed: pyproject.toml scripts/requirements-dev.lock $(shell find $(addprefix $(CURDIR)/,python tests bench demo typings) -name __pycache__ -prune -o -type d -print -o -name '*.py*' -print)
	@$(VENV)/pyright --warnings
	@touch $@

lint-elisp: build
	@$(EMACS) -Q --batch -l scripts/structure.el -f structure-check
	@$(EMACS) -Q --batch -l scripts/loaddefs.el -f loaddefs-check
	@$(CHECKOUT) -L tests/elisp -l scripts/lint.el -f lint-files $(ALL_ELISP)

format: build ## Format the Python files
	@$(VENV)/ruff check --quiet --fix --select I
	@$(VENV)/ruff format --quiet

lock: ## Compute the locks of the Python packages and the CLIs anew
	@scripts/lock

clean: ## Remove all that was generated, downloads too
	@rm -rf .build *.elc lisp/*.elc lisp/*/*.elc tests/elisp/*.elc qwen-companion-autoloads.el
	@find python tests bench demo -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true
