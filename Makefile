# `make help` lists the targets. Each target installs the packages that it needs into $(VENV), once.

PYTHON ?= python3
VENV ?= .venv
ARGS ?=
PORT ?= 8000
RUNS ?= 1000
SEED ?=
OLD ?=
SDK ?=
# For `make test`: `lowest`, for the lowest versions of the dependencies. Give it an environment of its own.
VERSIONS ?=
# For `make test-chaos`: names of faults. None: all.
FAULTS ?=
# The command of a Python version. The shims of pyenv are there for each version, but run only those that it has chosen.
find_python = $(shell for python in python$(1) "$${PYENV_ROOT:-$$HOME/.pyenv}"/versions/$(1).*/bin/python; do \
	"$$python" -c '' 2>/dev/null && echo "$$python" && exit; done; echo python$(1))
# For `make test-release`, and for `make constraints`, which pins the packages of both.
PYTHON_LOW ?= $(call find_python,3.11)
PYTHON_HIGH ?= $(call find_python,3.13)
# For `make bench`: the Python for which the versions of the peers' packages are pinned.
PYTHON_PEERS ?= $(call find_python,3.12)

BIN := $(VENV)/bin
# Python compiles what it imports, and keeps it. To compile all files of the packages would take almost as long as the rest.
INSTALL := $(BIN)/python -m pip --disable-pip-version-check install -qq --no-compile

# A page in TypeScript is compiled in `make test-all`. Without npm, its tests are skipped.
TYPESCRIPT := $(if $(shell command -v npm),tests/typescript/node_modules/.installed)

# Many tests start processes. If Python may not keep what it compiles, each of them spends seconds on it.
unexport PYTHONDONTWRITEBYTECODE

# pip also reads this variable inside its isolated builds.
export PIP_CONSTRAINT = constraints.txt

# The parts of `make test-release`. Each is a job of the nightly workflow.
RELEASE := release-lowest release-low release-high release-partitions release-frameworks release-chaos release-chaos-tasks

.DEFAULT_GOAL := help
.PHONY: help setup test test-all test-release $(RELEASE) test-chaos test-frameworks golden dump bench docs screenshots messages schema lint format demo replay constraints clean

help: ## List the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 14

setup: $(VENV)/.lint $(VENV)/.docs ## Install into $(VENV) what the tests, the checks and the documentation need

test: $(VENV)/.$(or $(VERSIONS),test) ## Run the quick tests on SQLite: no server, no browser (ARGS: for pytest; VERSIONS: lowest)
	$(BIN)/python -m tests.run quick $(ARGS)

test-all: $(VENV)/.servers $(VENV)/.frameworks $(TYPESCRIPT) ## Run what `make test` leaves out: servers, processes, browsers, frameworks, five faults (ARGS: for pytest, instead of the last two)
	$(BIN)/python -m tests.run all $(ARGS)
ifndef ARGS
	$(MAKE) test-frameworks
	$(MAKE) test-chaos RUNS=0 FAULTS="killed_during_the_call stopped_between_its_writes broker_stopped database_restarted redacted_after_it_was_read"
endif

test-release: $(RELEASE) ## Run everything, in all combinations, one after the other (hours)

release-lowest: # The lowest versions on SQLite
	$(MAKE) VENV=.venv-lowest PYTHON=$(PYTHON_LOW) .venv-lowest/.lowest
	CONVMEMORY_TEST_DATABASES=sqlite .venv-lowest/bin/python -m tests.run release

release-low: # The lowest Python on each database
	$(MAKE) VENV=.venv-low PYTHON=$(PYTHON_LOW) .venv-low/.lint .venv-low/.servers $(TYPESCRIPT)
	.venv-low/bin/python -m tests.run release

release-high: # The highest Python on each database
	$(MAKE) VENV=.venv-high PYTHON=$(PYTHON_HIGH) .venv-high/.lint .venv-high/.servers $(TYPESCRIPT)
	.venv-high/bin/python -m tests.run release

release-partitions: # 64 partitions of messages on PostgreSQL
	$(MAKE) VENV=.venv-high PYTHON=$(PYTHON_HIGH) .venv-high/.lint
	CONVMEMORY_TEST_PARTITIONS=64 CONVMEMORY_TEST_DATABASES=postgresql .venv-high/bin/python -m tests.run release

release-frameworks: # The newest frameworks on PostgreSQL, with all tests of the OpenAI Agents SDK, and the lowest on SQLite
	$(MAKE) test-frameworks VENV=.venv-frameworks PYTHON=$(PYTHON_HIGH) SDK=all ON=postgresql
	$(MAKE) VENV=.venv-frameworks-lowest PYTHON=$(PYTHON_LOW) .venv-frameworks-lowest/.frameworks-lowest
	CONVMEMORY_TEST_DATABASES=sqlite .venv-frameworks-lowest/bin/python -m tests.run release --ds integration_tests.settings integration_tests
	$(MAKE) VENV=.venv-mcp-lowest PYTHON=$(PYTHON_LOW) .venv-mcp-lowest/.mcp-lowest
	CONVMEMORY_TEST_DATABASES=sqlite .venv-mcp-lowest/bin/python -m tests.run release --ds integration_tests.settings integration_tests/mcp

release-chaos: # Each fault once, then a thousand random runs, then storms of turns
	$(MAKE) test-chaos VENV=.venv-high PYTHON=$(PYTHON_HIGH) RUNS=0
	$(MAKE) test-chaos VENV=.venv-high PYTHON=$(PYTHON_HIGH) RUNS=1000
	failed=; for database in sqlite postgresql mariadb; do for server in wsgi asgi; do \
		.venv-high/bin/python -m tests.chaos.turns --database $$database --server $$server || failed=1; \
	done; done; test -z "$$failed"

release-chaos-tasks: # The same on sites that use Django's own tasks instead of Celery
	$(MAKE) VENV=.venv-frameworks PYTHON=$(PYTHON_HIGH) .venv-frameworks/.frameworks
	$(MAKE) test-chaos VENV=.venv-frameworks RUNS=0 ARGS=--django-tasks

test-chaos: $(VENV)/.servers ## Run the tests that kill, freeze and mislead servers and workers (RUNS: how often, 0 for each fault once; FAULTS; SEED; OLD: a tag)
	$(BIN)/python -m tests.chaos.suite --runs $(RUNS) $(FAULTS:%=--fault=%) $(if $(SEED),--seed $(SEED)) $(if $(OLD),--old $(OLD)) $(ARGS)

test-frameworks: $(VENV)/.frameworks ## Run the tests of the agent frameworks (ON: a database; SDK: all, for all of the OpenAI Agents SDK's own tests)
	$(BIN)/mypy $(wildcard $(foreach name,openai_agents pydantic_ai llama_index langchain django_tasks mcp mcp/management/commands,django_convmemory/contrib/$(name).py django_convmemory/contrib/$(name)/*.py)) integration_tests
	CONVMEMORY_SDK_TESTS=$(SDK) CONVMEMORY_TEST_DATABASES="$(or $(ON),sqlite)" $(BIN)/python -m tests.run release --ds integration_tests.settings integration_tests

golden: $(VENV)/.servers ## Write the golden files of the SQL statements, tests/golden, again
	CONVMEMORY_WRITE_GOLDEN=1 $(BIN)/python -m tests.run release tests/test_statements.py

dump: $(VENV)/.servers ## Write the dumps of this release, tests/releases: once, at the release
	for database in sqlite postgresql mariadb; do \
		CONVMEMORY_TEST_DATABASE=$$database $(BIN)/python -m tests.releases.write || exit 1; \
	done

lint: $(VENV)/.lint ## Check format, lint, types, layers and migrations
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m django makemigrations --check --dry-run --settings tests.settings

docs: $(VENV)/.docs ## Build the documentation in build/docs, and fail at a warning
	$(BIN)/sphinx-build -q -W -b html docs build/docs
	@echo build/docs/index.html

screenshots: $(VENV)/.test ## Take the screenshots of the documentation again, docs/images (needs Chromium)
	CONVMEMORY_SCREENSHOTS=docs/images $(BIN)/python -m pytest -q tests/admin/test_browser.py tests/example -k "pages or pictures or is_played"

messages: $(VENV)/.test ## Collect the texts to translate, and compile the translations (needs gettext)
	cd django_convmemory && $(abspath $(BIN))/python -m django makemessages --all --no-location --no-wrap --no-obsolete
	cd django_convmemory && $(abspath $(BIN))/python -m django compilemessages

schema: $(VENV)/.test ## Write the schema of the HTTP API, django_convmemory/api/openapi.yaml
	$(BIN)/python -m scripts.openapi

format: $(VENV)/.lint ## Format the code, and fix what ruff can fix
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(VENV)/.bench .venv-peers/.installed ## Compare with bare drivers and other packages, measure growth, and plot the results (up to an hour)
	$(BIN)/python -m benchmarks.needs
	$(BIN)/python -m benchmarks.operations --peers .venv-peers/bin/python $(ARGS)
	$(BIN)/python -m benchmarks.growth
	$(BIN)/python -m benchmarks.model_calls --peers .venv-peers/bin/python
	$(BIN)/python -m benchmarks.worker_rate
	$(BIN)/python -m benchmarks.importing
	$(BIN)/python -m benchmarks.plots --output docs/images

demo: $(VENV)/.example ## Serve a chat site that shows its memory beside the chat (PORT: 8000)
	@exec $(BIN)/python example_project/serve.py --port "$(PORT)" $(ARGS)

replay: $(VENV)/.runtime ## Replay four conversations in the terminal while a worker folds them
	$(BIN)/python example_project/replay.py $(ARGS)

constraints: ## Pin the newest versions in constraints.txt
	scripts/pin $(PYTHON_LOW) $(PYTHON_HIGH) > constraints.txt.new
	mv constraints.txt.new constraints.txt

clean: ## Remove the virtual environments, builds and caches
	rm -rf .venv .venv-* tests/typescript/node_modules build dist *.egg-info .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is required. Run make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.runtime: $(VENV)/.python pyproject.toml constraints.txt
	$(INSTALL) --editable .
	@touch $@

$(VENV)/.example: $(VENV)/.python pyproject.toml constraints.txt
	@echo "Installing packages into $(VENV): a minute or two."
	$(INSTALL) --editable '.[example]'
	@touch $@ $(VENV)/.runtime

$(VENV)/.test: $(VENV)/.python pyproject.toml constraints.txt
	$(INSTALL) --editable '.[redis,postgresql,tiktoken,example,test]'
	@touch $@ $(VENV)/.runtime $(VENV)/.example

# pip builds MariaDB's client from C. If the build fails, the tests run without MariaDB.
$(VENV)/.servers: $(VENV)/.test
	$(INSTALL) mysqlclient || echo 'No MariaDB: its client library could not be built (see above).'
	@touch $@

$(VENV)/.lowest: $(VENV)/.test lowest.txt
	PIP_CONSTRAINT= $(INSTALL) --requirement lowest.txt
	@touch $@

# The last line installs what the frameworks' own tests need.
$(VENV)/.frameworks: $(VENV)/.lint
	$(INSTALL) --editable '.[openai-agents,pydantic-ai,llama-index,langchain,mcp,django-tasks]'
	$(INSTALL) ag-ui-protocol django-tasks-db aiosqlite cryptography inline-snapshot pytest-mock
	@touch $@

# What the frameworks need decides the versions here, also that of the openai client.
$(VENV)/.frameworks-lowest: $(VENV)/.test lowest-integrations.txt
	PIP_CONSTRAINT= $(INSTALL) --requirement lowest-integrations.txt
	@touch $@

# The lowest version of the OpenAI Agents SDK needs version 1 of the package mcp.
$(VENV)/.mcp-lowest: $(VENV)/.test lowest-mcp.txt
	PIP_CONSTRAINT= $(INSTALL) --requirement lowest-mcp.txt
	@touch $@

# If npm cannot install it, the tests run without it, except where every service is required.
tests/typescript/node_modules/.installed: tests/typescript/package.json tests/typescript/package-lock.json
	@npm ci --prefix tests/typescript --no-audit --no-fund --silent && touch $@ || echo 'No TypeScript compiler: npm could not install it.'

$(VENV)/.bench: $(VENV)/.test
	$(INSTALL) --editable '.[bench]'
	@touch $@

.venv-peers/.installed: benchmarks/operations/peers.txt
	$(PYTHON_PEERS) -m venv .venv-peers
	PIP_CONSTRAINT= .venv-peers/bin/python -m pip --disable-pip-version-check install -qq --requirement $<
	@touch $@

$(VENV)/.docs: $(VENV)/.python pyproject.toml constraints.txt
	$(INSTALL) --editable '.[docs]'
	@touch $@ $(VENV)/.runtime

$(VENV)/.lint: $(VENV)/.test
	$(INSTALL) --editable '.[lint]'
	@touch $@
