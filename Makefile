# Every job of CI is one of these targets. `make demo` and `make test` do all their own set-up.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.tools

.PHONY: build demo soak test lint bench bench-log bench-smoke figures rivals clean
.DEFAULT_GOAL := test

# The tools, in an environment of the checkout's own.
$(STAMP): pyproject.toml Makefile
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --group dev
	touch $(STAMP)

# The extension module, built into that environment with the one profile that demo and test share.
build: $(STAMP)
	. $(BIN)/activate && maturin develop --release --quiet

# The main job: a fleet of agents on one file, with plain sqlite3 and with writelane.
demo: build
	$(BIN)/writelane stress --compare

# The long form of what tests/test_stress.py shows in short.
soak: build
	$(BIN)/writelane stress --processes 9 --turns 60 --size 330 --hold 7 --holds 2
	WRITELANE_SOAK=1 $(BIN)/python -m pytest tests/test_repair.py tests/test_backup.py tests/test_retention.py \
	  tests/test_sequences.py tests/test_migrations.py tests/test_kill.py tests/test_face_model.py tests/test_log_promises.py

# The whole suite: the core's tests, then the installed package under pytest.
test: build
	cargo test --release --quiet
	cargo test --release --quiet --package writelane-core --features model --test queue_model
	$(BIN)/python -m pytest

# Formatting, lints, types, and that the stubs say what the module has.
lint: build
	cargo fmt --check
	cargo clippy --release --workspace --all-targets --quiet -- -D warnings
	$(BIN)/ruff format --check python tests benches
	$(BIN)/ruff check python tests benches
	$(BIN)/mypy
	$(BIN)/python -m mypy.stubtest writelane._native

# What the benches compare with: the rivals, and the limit, which is a program of the core.
rivals: build
	$(BIN)/python -m pip install --quiet --group bench
	cargo build --release --quiet --example limit

# Every driver with every workload, by turns: the table with ratios and goals, the trials as JSON, the plots.
# `make bench K=threads ROUNDS=5 SECONDS=4` runs those whose name has that (an expression of pytest's -k).
K       ?=
ROUNDS  ?= 3
SECONDS ?= 2
MEASURED := .benchmarks/bench.json
bench: rivals
	mkdir -p .benchmarks
	$(BIN)/python -m pytest benches -q -k "$(K)" --rounds=$(ROUNDS) --seconds=$(SECONDS) \
	  --benchmark-json=$(MEASURED) --table=.benchmarks/bench.txt --benchmark-columns=mean
	$(BIN)/python benches/plots.py $(MEASURED) .benchmarks/plots

# What becomes of the log in half a minute of writing, and of those who write, beside SQLite's own automatic checkpoints.
bench-log: K = (single-normal or processes-8-normal) and (sqlite3 or writelane)
bench-log: SECONDS = 30
bench-log: bench

# What the documents show of the last run: their tables, and the plots.
figures: rivals
	$(BIN)/python benches/plots.py $(MEASURED) docs/plots
	$(BIN)/python benches/figures.py $(MEASURED)

# Every bench once, small and unmeasured, so that none rots.
bench-smoke: rivals
	$(BIN)/python -m pytest benches -q --smoke --benchmark-disable

clean:
	rm -rf target $(VENV) dist
