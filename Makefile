# Needs Python, pip, make and npm (for the tests' ClickHouse server). Each target makes what it needs in .venv first;
# `make clean` before another interpreter: `make clean test PYTHON=python3.13`.
PYTHON ?= python3
BIN := .venv/bin

# A user's own pip settings (a mirror, a certificate) stay in force, but for one that a virtual environment refuses.
export PIP_USER := 0
export PIP_NO_INPUT := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: demo test zookeeper lint docs dist lowest bench soak clean
.DELETE_ON_ERROR:

demo: .venv/installed ## a Meltano pipeline, run twice, that keeps its bookmark in the embedded engine
	@$(BIN)/python examples/demo/demo.py

test: .venv/installed ## the whole suite; its closing line is the last
	@$(BIN)/python -m pytest -n logical --maxprocesses 8 --cov --cov-report term

zookeeper: ## for the tests of two servers: Debian's package, with Java; needs root, or a sudo that asks nothing
	@test -e /usr/share/java/zookeeper.jar || { \
	    sudo=$$(test "$$(id -u)" = 0 || echo sudo -n) && $$sudo apt-get -qq update && \
	    $$sudo env DEBIAN_FRONTEND=noninteractive apt-get -qq install --no-install-recommends zookeeper >/dev/null; }

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict
	$(BIN)/lint-imports

docs: .venv/installed ## the site, in build/site; a broken link fails
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

dist: .venv/installed ## the source archive, and the wheel made from it
	rm -rf dist
	$(BIN)/python -m build --outdir dist
	$(BIN)/python -m zipfile -l dist/*.whl > dist/contents.txt
	grep -F meltano_ch_state/py.typed dist/contents.txt
	grep -F meltano_ch_state/alembic.ini dist/contents.txt
	grep -F meltano_ch_state/alembic/env.py dist/contents.txt
	grep -F meltano_ch_state/alembic/versions/0002 dist/contents.txt

lowest: .venv/installed ## the core of the suite with the oldest supported version of each dependency
	$(BIN)/python -m nox -s lowest

bench: .venv/installed ## what the states cost, next to other stores, with a plot: docs/benchmarks.md
	$(BIN)/python -m benchmarks

MINUTES ?= 5
SEED ?= 1
soak: .venv/installed ## eight processes and faults at random, for so long: make soak MINUTES=60 SEED=2
	$(BIN)/python -m tests.soak $$(( $(MINUTES) * 60 )) $(SEED)

clean:
	rm -rf .venv .nox .demo dist build .coverage .coverage.* .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache

# pip below 25.1 knows no --group. Compiling a gigabyte would take as long as fetching it, and imports do it as needed.
# The stamp comes last: an install that was cut short is done again.
.venv/installed: pyproject.toml
	@echo "Installing into .venv: about a minute"
	@$(PYTHON) -m venv --upgrade-deps .venv >/dev/null
	@$(BIN)/python -m pip install --quiet --no-compile --editable ".[embedded]" --group test --group lint
	@touch $@
