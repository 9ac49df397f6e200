# `make help` lists the targets. Each target installs the packages that it needs into $(VENV), once.

PYTHON ?= python3
VENV ?= .venv
ARGS ?=
PORT ?= 8000
RUNS ?= 1000
SEED ?=
OLD ?=
SDK ?=
# For `make test`: the number of partitions of the messages on PostgreSQL, or none.
PARTITIONS ?=
# For `make test-integrations`: the environment with the newest frameworks. They bring many packages.
NEWEST ?= .venv-integrations
# The command of a Python version. The shims of pyenv are there for each version, but run only those that it has chosen.
find_python = $(shell for python in python$(1) "$${PYENV_ROOT:-$$HOME/.pyenv}"/versions/$(1).*/bin/python; do \
	"$$python" -c '' 2>/dev/null && echo "$$python" && exit; done; echo python$(1))
# For `make constraints`: the two Pythons whose packages are pinned.
PYTHON_LOW ?= $(call find_python,3.11)
PYTHON_HIGH ?= $(call find_python,3.13)
# For `make bench`: the Python for which the versions of the peers' packages are pinned.
PYTHON_PEERS ?= $(call find_python,3.12)

BIN := $(VENV)/bin
# Python compiles what it imports. To compile all files of the packages would take almost as long as the rest.
INSTALL := $(BIN)/python -m pip --disable-pip-version-check install -qq --no-compile

# `make test` needs the extra `lint` too: a test checks the code of the documentation with mypy.

# `make test` needs the TypeScript compiler, too. Without npm, the tests of it are skipped.
TYPESCRIPT := $(if $(shell command -v npm),tests/typescript/node_modules/.installed)

# pip also reads this variable inside its isolated builds.
export PIP_CONSTRAINT = constraints.txt

.DEFAULT_GOAL := help
.PHONY: help setup test test-chaos test-chaos-tasks test-integrations golden bench docs screenshots messages schema test-lowest lint format demo replay constraints clean

help: ## List the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 14

setup: $(VENV)/.lint $(VENV)/.docs ## Install into $(VENV) what the tests, the checks and the documentation need

test: $(VENV)/.lint $(TYPESCRIPT) ## Run the tests on SQLite, and on PostgreSQL and MariaDB if they are installed (ARGS: for pytest; PARTITIONS: only on PostgreSQL, with so many partitions of messages)
	$(if $(PARTITIONS),CONVMEMORY_TEST_PARTITIONS=$(PARTITIONS) CONVMEMORY_TEST_DATABASES=postgresql) $(BIN)/python -m tests.run $(ARGS)

test-chaos: $(VENV)/.test ## Run the tests that kill, freeze and mislead servers and workers (RUNS: how often, 0 for each fault once; SEED; OLD: a tag)
	$(BIN)/python -m tests.chaos.suite --runs $(RUNS) $(if $(SEED),--seed $(SEED)) $(if $(OLD),--old $(OLD)) $(ARGS)

test-chaos-tasks: ## The same on sites that use Django's own tasks in place of Celery
	$(MAKE) VENV=$(NEWEST) $(NEWEST)/.integrations
	$(NEWEST)/bin/python -m tests.chaos.suite --django-tasks --runs $(RUNS) $(if $(SEED),--seed $(SEED)) $(ARGS)

test-integrations: ## Run the tests of the agent frameworks on SQLite and PostgreSQL, with the newest and the lowest versions of them (ARGS: for pytest; SDK: all, for all of the OpenAI Agents SDK's own tests)
	$(MAKE) VENV=$(NEWEST) $(NEWEST)/.integrations
	$(NEWEST)/bin/mypy $(wildcard $(foreach name,openai_agents pydantic_ai llama_index langchain django_tasks,django_convmemory/integrations/$(name).py)) integration_tests
	CONVMEMORY_SDK_TESTS=$(SDK) CONVMEMORY_TEST_DATABASES="$(or $(CONVMEMORY_TEST_DATABASES),sqlite postgresql)" $(NEWEST)/bin/python -m tests.run --ds integration_tests.settings integration_tests $(ARGS)
	$(MAKE) VENV=.venv-integrations-lowest PYTHON=$(PYTHON_LOW) .venv-integrations-lowest/.integrations-lowest
	CONVMEMORY_TEST_DATABASES=sqlite .venv-integrations-lowest/bin/python -m tests.run --ds integration_tests.settings integration_tests $(ARGS)

golden: $(VENV)/.test ## Write the golden files of the SQL statements, tests/golden, again
	CONVMEMORY_WRITE_GOLDEN=1 $(BIN)/python -m tests.run tests/test_statements.py

test-lowest: ## Run the tests on SQLite with the lowest versions of the dependencies (PYTHON: 3.11)
	$(MAKE) VENV=.venv-lowest .venv-lowest/.lowest
	.venv-lowest/bin/python -m pytest -n auto --dist worksteal $(ARGS)

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
	CONVMEMORY_SCREENSHOTS=docs/images $(BIN)/python -m pytest -q tests/admin/test_browser.py tests/example -k "pages or pictures"

messages: $(VENV)/.test ## Collect the texts to translate, and compile the translations (needs gettext)
	cd django_convmemory && $(abspath $(BIN))/python -m django makemessages --all --no-location --no-wrap --no-obsolete
	cd django_convmemory && $(abspath $(BIN))/python -m django compilemessages

schema: $(VENV)/.test tests/typescript/node_modules/.installed ## Write the schema of the HTTP API, docs/openapi.yaml, and compile a page against it (needs npm)
	$(BIN)/python -m django spectacular --settings tests.settings --validate --fail-on-warn --file docs/openapi.yaml
	$(BIN)/python -m tests.typescript.compiler

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

# pip builds MariaDB's client from C. If the build fails, the tests run without MariaDB.
$(VENV)/.test: $(VENV)/.python pyproject.toml constraints.txt
	$(INSTALL) --editable '.[redis,postgresql,tiktoken,openapi,progress,example,test]'
	$(INSTALL) mysqlclient || echo 'No MariaDB: its client library could not be built (see above).'
	@touch $@ $(VENV)/.runtime $(VENV)/.example

$(VENV)/.lowest: $(VENV)/.test lowest.txt
	PIP_CONSTRAINT= $(INSTALL) --requirement lowest.txt
	@touch $@

# The last line installs what the frameworks' own tests need.
$(VENV)/.integrations: $(VENV)/.lint
	$(INSTALL) --editable '.[openai-agents,pydantic-ai,llama-index,langchain,django-tasks]'
	$(INSTALL) django-tasks-db aiosqlite cryptography inline-snapshot pytest-mock
	@touch $@

# What the frameworks need decides the versions here, also that of the openai client.
$(VENV)/.integrations-lowest: $(VENV)/.test lowest-integrations.txt
	PIP_CONSTRAINT= $(INSTALL) --requirement lowest-integrations.txt
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
