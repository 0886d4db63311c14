# Needs GNU make and Python 3.11 or newer; everything else lands in .venv. No root, no uv, no container.

SIKA_PYTHON ?= python3
# Processes that tests run in: they wait more than they work. 0: all in one.
WORKERS ?= 8
BIN := .venv/bin
STAMP := .venv/.installed
SERVER := .venv/.server

.PHONY: install run test test-fast test-long tests check check-page bench windows vendor format lock clean

install: $(STAMP)

# Tests start hundreds of processes: what they import is compiled once, whatever the environment says.
test test-fast test-long bench: export PYTHONDONTWRITEBYTECODE =

# What a server needs; where the tools of developers are installed, too, they stay.
run: $(if $(wildcard $(STAMP)),$(STAMP),$(SERVER)) ## make run ARGS="--port 8000"
	$(BIN)/sika serve $(ARGS)

# Types are checked while tests run: these wait more than they work.
test: $(STAMP) ## make test PYTEST="-k log -x": of both lanes (tests/support/lanes.py)
	$(MAKE) --jobs 2 check tests

# Tests that fail beside others are run once more, alone, if they are few; the output names them.
TESTS = $(BIN)/python -m pytest --processes $(WORKERS) --again 8 --durations=25
tests: $(STAMP)
	$(TESTS) $(or $(PYTEST),--lane short)

test-long: $(STAMP) ## storms, power cuts, cold starts, other kinds of clients and machines: what `make test` has a share of
	$(TESTS) --lane long $(PYTEST)

test-fast: $(STAMP) ## files that take at most two seconds: for every save
	$(BIN)/python -m pytest --processes $(WORKERS) --lane short --fast $(PYTEST)

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tests.page.check

check-page: $(STAMP) ## types and style of the page's scripts; npm installs the tools, and `make check` has them from then on
	$(BIN)/python -m tests.page.check --install

bench: $(STAMP)
	$(BIN)/python -m tests.bench $(ARGS)

# Renews core/config/windows.json: make windows TABLE=model_prices_and_context_window.json DATE=2026-11-26
windows: $(STAMP)
	$(BIN)/python -m core.config.windows $(TABLE) $(DATE)

# Renews the libraries of the page (channels/web/vendor) at the versions in source/package.json. Needs npm.
VENDOR = channels/web/vendor
vendor:
	place=$$(mktemp -d) && trap 'rm -rf "$$place"' EXIT && cp $(VENDOR)/source/* "$$place" && cd "$$place" \
	  && npm install --silent --no-audit --no-fund --ignore-scripts --omit-lockfile-registry-resolved \
	  && node build.mjs $(CURDIR)/$(VENDOR) && cp package-lock.json $(CURDIR)/$(VENDOR)/source/

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

COMPILE = $(BIN)/uv pip compile pyproject.toml --universal --python-version 3.11 --generate-hashes \
  --no-header --no-annotate --no-emit-index-url --quiet $(UPGRADE)
CHATS = --extra telegram
PROVIDERS = --extra anthropic --extra google --extra bedrock

lock: $(BIN)/uv ## make lock UPGRADE=--upgrade
	$(COMPILE) $(CHATS) --output-file requirements.lock
	$(COMPILE) $(CHATS) --extra dev --constraint requirements.lock --output-file requirements-dev.lock
	$(COMPILE) $(PROVIDERS) --output-file requirements-providers.lock

clean:
	rm -rf .venv dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The sandbox sees these packages read-only (adapters/sandboxes/confine/toolkit.py), so they are compiled here.
TOOLKIT = bs4, docx, duckdb, markdown_it, matplotlib.pyplot, openpyxl, pandas, pdfplumber, PIL.Image, pptx, pypdf, pypdfium2, \
	reportlab.platypus, yaml

# requirements.lock is what a server needs, requirements-dev.lock all of that and what tests, checks and builds need,
# requirements-providers.lock a server that also has the providers with a protocol of their own, which only tests/providers runs.
# Installing copies the front door, as `sika` (pyproject.toml).
DOOR = $(wildcard core/extend/*.py channels/http/extend.py adapters/sandboxes/extend.py)
# A stamp is older than its lock or the project file only when there is something to install. Everything comes by hash;
# where uv cannot reach the index that pip is configured for, pip does the same more slowly.
$(SERVER): LOCK = requirements.lock
$(SERVER): requirements.lock
$(STAMP): LOCK = requirements-dev.lock
$(STAMP): requirements-dev.lock
$(SERVER) $(STAMP): pyproject.toml $(DOOR) | $(BIN)/uv
	$(BIN)/uv pip install --quiet --python $(BIN)/python --require-hashes -r $(LOCK) \
	  || $(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r $(LOCK)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --no-index -e .
	@PYTHONDONTWRITEBYTECODE= $(BIN)/python -c "import $(TOOLKIT)"
	@touch $@

# pip installs the uv of the lock, and what makes our own package.
$(BIN)/uv:
	@$(SIKA_PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Sika needs Python 3.11 or newer; try: make install SIKA_PYTHON=python3.12")'
	$(SIKA_PYTHON) -m venv .venv
	@awk '/^[^ ]/ { tool = /^(uv|hatchling|editables|packaging|pathspec|pluggy|trove-classifiers)==/ } tool' \
	  requirements-dev.lock > .venv/tools.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r .venv/tools.lock
