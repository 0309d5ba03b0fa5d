# Everything here needs Python 3.11 or newer and make; the rest is installed into .venv.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
ARCHIVE := .venv/spark.jsa
PROCESSES ?= 4
NO_PACKAGES := pip could not install the packages; the reason is above. They are downloaded once: connect to a network (pip uses HTTPS_PROXY and PIP_INDEX_URL), then run make again.

.DEFAULT_GOAL := help
.PHONY: help setup browser tools run demo check test test-all lint types quick unit soak bench fuzz clean constraints

help:            ## List the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP)  ## Create .venv with the pinned versions

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Himalia needs Python 3.11 or newer; this is " + sys.version.split()[0] + ". Try: make PYTHON=python3.12 " + "setup")'
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv || { echo "Python cannot create virtual environments here: install its venv package (Debian: apt-get install python3-venv)"; exit 1; }
	@echo "Installing into .venv (about two minutes the first time)"
	@PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/python -m pip install --quiet --constraint constraints.txt pip || { echo "$(NO_PACKAGES)"; exit 1; }
	@PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt $(BIN)/python -m pip install --quiet --editable '.[arrow,notebooks,page,spark,tables,tracing]' --group dev || { echo "$(NO_PACKAGES)"; exit 1; }
	@touch $(STAMP)

run: setup       ## Start the server on its embedded log, and the pipeline
	@$(BIN)/himalia up

demo: setup      ## The same with a demo workload
	@$(BIN)/himalia up --demo

check: lint types quick  ## Lint, check types, run the quick tests: about a minute

test: lint types unit  ## Lint, check types, run all tests but the long ones

test-all: test soak     ## The same, and the long and repeated tests: about an hour

lint: setup
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/python -m tests.shape

types: setup
	@$(BIN)/mypy

browser:         ## Install Chromium for the tests of the page, where that is allowed
	@command -v chromium >/dev/null || { test "$$(id -u)" = 0 && command -v apt-get >/dev/null && \
		apt-get install --yes --quiet --no-install-recommends chromium fonts-dejavu-core >/dev/null; } || \
		echo "There is no Chromium, so the tests of the page are skipped. To run them: apt-get install chromium"

# Not part of unit: on Debian both start serving as soon as they are installed.
tools:           ## Install nginx and Prometheus for the tests of the guides, where that is allowed
	@{ command -v promtool && PATH="$$PATH:/usr/sbin" command -v nginx; } >/dev/null || { test "$$(id -u)" = 0 && command -v apt-get >/dev/null && \
		apt-get install --yes --quiet --no-install-recommends nginx-light prometheus >/dev/null; } || \
		echo "There is no nginx or no Prometheus, so the tests of these guides are skipped. To run them: apt-get install nginx-light prometheus"

# Drivers of Spark start in half the time with it; tests do without where it cannot be had.
$(ARCHIVE): $(STAMP)
	@$(BIN)/python -m tests.spark.class_archive $(ARCHIVE) >/dev/null 2>&1 || touch $(ARCHIVE)

# Most tests wait for something, so four processes share two cores well; those of Spark compute. -rs lists what is skipped.
unit: setup browser $(ARCHIVE)
	@$(BIN)/pytest -rfEs -m 'not alone and not soak' --ignore tests/spark --numprocesses $(PROCESSES) --dist loadfile --no-loadscope-reorder
	@$(BIN)/pytest -rfEs tests/spark -m 'not soak' --numprocesses 2 --dist loadfile --no-loadscope-reorder
	@$(BIN)/pytest -rfEs -m 'alone and not soak'

quick: setup
	@$(BIN)/pytest -rfE -m 'not slow and not alone and not soak' --numprocesses 2 --dist loadfile \
		tests/log tests/pubsub tests/jupyter tests/iopub tests/server/http tests/server/websocket tests/docs tests/test_*.py

soak: setup browser $(ARCHIVE)
	@$(BIN)/pytest -rfEs -m soak

bench: setup     ## Compare Himalia with other servers
	@$(BIN)/python -m benchmarks

fuzz: setup      ## Compare ten million random WebSocket frames with plain websockets
	@$(BIN)/python -m tests.server.websocket.websocket_fuzz --frames 10000000 --seed 13 --processes 2

constraints: setup  ## Pin what is installed now
	@$(BIN)/python -m pip freeze --exclude-editable --all | grep -v '@' | grep -E '^[A-Za-z0-9_.-]+==' > constraints.txt

clean:           ## Remove .venv and caches
	@rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis dist benchmarks/.build
