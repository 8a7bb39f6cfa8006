# Every target sets itself up: the first run makes .venv from constraints.txt, later runs reuse it.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
RESULTS := benchmarks/results
EXTRAS := spark,connect,pipelines,jdk,duckdb,s3,maintenance,report
UV     := $(BIN)/uv pip --quiet
# Four processes: one has Spark, one starts Sparks of its own, one uses S3, one does the rest. The first three often wait.
PARALLEL := --numprocesses 4 --dist loadgroup
UV_PIN := $(shell sed -n 's/^uv==\([^ ;]*\).*/uv==\1/p' constraints.txt)

# An S3 server that is not moto: its Go module, built once.
GATEWAY_VERSION := v1.8.0
GATEWAY := $(VENV)/versitygw-$(GATEWAY_VERSION)/versitygw

# Tests start many processes: without cached bytecode, each of them compiles all modules that it imports.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test test-fast test-all coverage test-s3 test-browser lint format bench bench-targets bench-clustering bench-quick bench-spark bench-driver bench-gate docs cli-reference release-check constraints clean

help:  ## show what there is
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(UV_PIN)
	$(UV) install --python $(BIN)/python --constraints constraints.txt --group dev --editable ".[$(EXTRAS)]"
	@touch $@

demo: $(READY)  ## a Spark pipeline of JSON events: ingest, merge, total, maintain, survive a kill -9 (DIR=… keeps it)
	$(BIN)/python examples/demo.py $(DIR)

test-fast: lint  ## lint, types, unit tests, and conformance without Spark (5 minutes)
	$(BIN)/python -m pytest --numprocesses auto -m "not (sweep or spark or own_spark or s3)" src tests/unit tests/conformance

test: lint  ## lint, types and the test suite (what CI runs)
	$(BIN)/python -m pytest $(PARALLEL)

test-all: lint  ## the test suite with its large sweeps
	$(BIN)/python -m pytest $(PARALLEL) -m "sweep or not sweep" --share 1

coverage: $(READY)  ## which lines the tests execute, Spark's workers aside
	$(BIN)/python -m pytest $(PARALLEL) --cov --cov-report term:skip-covered --cov-report html:$(RESULTS)/coverage

test-s3: $(READY)  ## the tests on S3 again, against another server than moto (needs Go, which builds it)
	@if [ -x $(GATEWAY) ] || command -v go >/dev/null; then \
	  $(MAKE) --no-print-directory $(GATEWAY) && $(BIN)/python tests/remote/real_s3.py $(GATEWAY); \
	else \
	  echo "test-s3 was skipped: versitygw, the S3 server that it needs, is built by Go, and there is no go command here"; \
	fi

$(GATEWAY): | $(READY)
	GOBIN=$(abspath $(dir $@)) GOFLAGS=-mod=mod go install github.com/versity/versitygw/cmd/versitygw@$(GATEWAY_VERSION)

test-browser: $(READY)  ## the health report in the Chromium of this machine (skipped where there is none)
	$(UV) install --python $(BIN)/python --constraints constraints.txt --group browser
	$(BIN)/python -m pytest -m browser tests/browser

lint: $(READY)  ## ruff and mypy, both strict
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)  ## let ruff format and fix
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(READY)  ## every operation beside its peers, growth and targets; tables and plots go into the docs (hours)
	$(BIN)/python benchmarks/run.py --json $(RESULTS)/run.json --docs

bench-targets: $(READY)  ## only what the targets need (an hour)
	$(BIN)/python benchmarks/run.py --targets --json $(RESULTS)/targets.json

bench-clustering: $(READY)  ## what clustering is worth to queries (an hour)
	$(BIN)/python benchmarks/clustering.py --json $(RESULTS)/clustering.json

bench-quick: $(READY)  ## all of that on little data (minutes)
	$(BIN)/python benchmarks/run.py --quick --json $(RESULTS)/quick.json
	$(BIN)/python benchmarks/clustering.py --quick --json $(RESULTS)/quick-clustering.json

bench-spark: $(READY)  ## Parketto on Spark beside hand-written Spark jobs (half an hour)
	$(BIN)/python benchmarks/spark.py --json $(RESULTS)/spark.json

bench-driver: $(READY)  ## what Spark's driver needs for 100,000 files and for 10,000 partitions (a quarter of an hour)
	$(BIN)/python benchmarks/spark.py --driver --json $(RESULTS)/driver.json

bench-gate: $(READY)  ## three quick rounds beside the baseline: ratios only, on a machine with nothing else to do
	$(BIN)/python benchmarks/run.py --quick --rounds 3 --json $(RESULTS)/gate.json
	$(BIN)/python benchmarks/compare.py $(RESULTS)/gate.json

docs: $(READY)  ## build the documentation into site/; a dead link or any other warning fails
	$(UV) install --python $(BIN)/python --constraints constraints.txt --group docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	$(BIN)/python -m pytest --quiet tests/unit/test_site.py

release-check: $(READY)  ## build the distributions, check them, and try the wheel in a fresh environment
	$(UV) install --python $(BIN)/python --constraints constraints.txt --group release
	$(BIN)/python .ci/release_check.py

cli-reference: $(READY)  ## write the JSON Schemas of the command line, and its reference in docs/cli.md
	PYTHONPATH=tests $(BIN)/python -m helpers.cli_documents

constraints: $(READY)  ## compile constraints.txt anew
	$(UV) compile pyproject.toml --all-extras --group dev --group docs --group browser --group release --universal --python-version 3.11 \
	  --no-header --no-emit-index-url --upgrade --output-file constraints.txt

clean:  ## remove what make made
	rm -rf $(VENV) .venv-bench .venv-bench-old $(RESULTS) site .pytest_cache .mypy_cache .ruff_cache .hypothesis
