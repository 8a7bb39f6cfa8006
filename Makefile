# Every target sets itself up: the first run makes .venv from constraints.txt, later runs reuse it.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
EXTRAS := spark,connect,jdk,duckdb,s3
UV     := $(BIN)/uv pip --quiet
# Three processes: one has Spark, one starts Sparks of its own, one does the rest.
PARALLEL := --numprocesses 3 --dist loadgroup
UV_PIN := $(shell sed -n 's/^uv==\([^ ;]*\).*/uv==\1/p' constraints.txt)

.DEFAULT_GOAL := help
.PHONY: help demo test test-all lint format bench docs constraints clean

help:  ## show what there is
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(UV_PIN)
	$(UV) install --python $(BIN)/python --constraints constraints.txt --group dev --editable ".[$(EXTRAS)]"
	@touch $@

demo: $(READY)  ## market data on Spark: ingest, upsert, delete, compact, cluster, survive a crash
	$(BIN)/python examples/demo.py

test: lint  ## lint, types and the test suite (what CI runs)
	$(BIN)/python -m pytest $(PARALLEL)

test-all: lint  ## the test suite with its large sweeps
	$(BIN)/python -m pytest $(PARALLEL) -m "sweep or not sweep"

lint: $(READY)  ## ruff and mypy, both strict
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)  ## let ruff format and fix
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(READY)  ## measure a compaction's memory, upserts with DuckDB, and Spark against jobs written by hand
	$(BIN)/python benchmarks/compaction.py
	$(BIN)/python benchmarks/upserts.py
	$(BIN)/python benchmarks/upserts.py --large
	$(BIN)/python benchmarks/spark.py

docs: $(READY)  ## build the documentation into site/
	$(UV) install --python $(BIN)/python --constraints constraints.txt --group docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

constraints: $(READY)  ## compile constraints.txt anew
	$(UV) compile pyproject.toml --all-extras --group dev --group docs --universal --python-version 3.11 \
	  --no-header --no-emit-index-url --upgrade --output-file constraints.txt

clean:  ## remove what make made
	rm -rf $(VENV) site .pytest_cache .mypy_cache .ruff_cache .hypothesis
