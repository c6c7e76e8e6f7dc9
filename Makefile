# Two commands do everything on a machine with Python 3.11 and make: `make demo` and `make test`.
# Both create .venv once and reuse it; `make setup` alone does only that.

# The first that will do. A distribution's first: it is built with profile-guided optimization, a version manager's mostly
# is not, and that is a quarter of the processor time (docs/performance.md).
PYTHONS := $(addprefix /usr/bin/,python3.11 python3.12 python3.13) python3.11 python3.12 python3.13 python3
WILL_DO := import sys, ensurepip; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for p in $(PYTHONS); do $$p -c '$(WILL_DO)' 2>/dev/null && { echo $$p; break; }; done)
BIN := .venv/bin
STAMP := .venv/.installed
CLASSES := .venv/spark-classes.jsa

DOCUMENTS := README.md CHANGELOG.md CONTRIBUTING.md SECURITY.md docs journal/FORMAT.md meta_client/protocol/PROTOCOL.md
PLAIN := (?:for ever|but for|by then|of theirs)\b|[\w'-]+

.PHONY: help setup demo test test-all test-fast test-oldest coverage coverage-piece coverage-report check advisories format lock bench docs
.PHONY: crash fuzz soak genuine clean
help:  ## List the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | sort

setup: $(STAMP)  ## Create .venv and install the locked dependencies

# No build isolation for metaq itself: its build backend is in the lock file like everything else.
$(STAMP): requirements.lock pyproject.toml hatch_build.py $(wildcard meta_client/native/*)
	@test -n "$(PYTHON)" || { echo "metaq needs Python 3.11 or newer: install one, or name it with make PYTHON=/path/to/python3.11" >&2; exit 2; }
	@test -x $(BIN)/python || { echo "creating .venv with $(PYTHON)"; $(PYTHON) -m venv .venv || { echo "$(PYTHON) -m venv failed: on Debian and Ubuntu, install python3-venv" >&2; rm -rf .venv; exit 2; }; }
	@echo "installing the locked dependencies (about 600 MB the first time: Spark and a Java runtime are the bulk)"
	@$(BIN)/python -m pip install --disable-pip-version-check --quiet --require-hashes --requirement requirements.lock
	@$(BIN)/python -m pip uninstall --disable-pip-version-check --quiet --quiet --yes metaq  # its name until it was metaq-broker
	@$(BIN)/python -m pip install --disable-pip-version-check --quiet --no-deps --no-build-isolation --editable .
	@touch $@

demo: $(STAMP)  ## The main job, end to end, with three kills (ORDERS="a.csv b.csv" for real invoices)
	@$(BIN)/metaq demo $(if $(ORDERS),--orders $(ORDERS))

# Four workers on two cores: half of a test's time it waits, for a disk, a session or a process.
WORKERS := -n 4 --dist loadscope
test: $(STAMP) $(CLASSES)  ## Every quick test, and a tenth of the long ones: real ZooKeeper, PostgreSQL, Spark, processes
	@$(if $(PYTEST_ARGS),,METAQ_LONG_TESTS=10) $(BIN)/python -m pytest $(WORKERS) $(PYTEST_ARGS)

test-all: $(STAMP) $(CLASSES)  ## Every test, and measure which take long: build/long_tests.txt
	@METAQ_MEASURE_TESTS=1 $(BIN)/python -m pytest $(WORKERS) $(PYTEST_ARGS)

# For JVMs of tests; see tests/fixtures/class_archive.py.
$(CLASSES): $(STAMP)
	@echo "archiving Spark's classes, once"
	@$(BIN)/python -m tests.spark_jobs.archive_classes

test-fast: $(STAMP)  ## The tests that start no server: units and models
	@$(BIN)/python -m pytest -n 2 --dist loadscope -m "not servers" $(PYTEST_ARGS)

# Users have older versions of what metaq needs, because others of their packages do.
OLDEST := build/oldest
USERS := sql,mysql,postgres,asyncpg,django,zope,console,compression,otel,arrow,object-storage
test-oldest: $(STAMP)  ## The tests of test-fast, with the oldest versions of dependencies that pyproject.toml allows
	@rm -rf $(OLDEST) && $(BIN)/python -m venv --without-pip $(OLDEST)
	@$(BIN)/uv pip install --quiet --python $(OLDEST)/bin/python --resolution lowest-direct --editable ".[$(USERS)]"
	@$(BIN)/uv pip freeze --quiet --python $(OLDEST)/bin/python --exclude-editable >$(OLDEST)/versions.txt
	@$(BIN)/uv pip install --quiet --python $(OLDEST)/bin/python --constraints $(OLDEST)/versions.txt --editable ".[dev]" httpx
	@$(OLDEST)/bin/python -m pytest -n 2 --dist loadscope -m "not servers" -o filterwarnings=default $(PYTEST_ARGS)

# In pieces, which may be run one by one, on one machine or copied from several: PIECES="tests/journal tests/zk/session".
# A program that a test kills by its handle writes its counts down first; one that is killed otherwise takes them along.
PIECES ?= $(filter-out tests/fixtures/ tests/vectors/ tests/__pycache__/,$(wildcard tests/*/)) $(wildcard tests/test_*.py)
COVERAGE := build/coverage

coverage: $(STAMP)  ## Branch coverage of the product, forked brokers and commands included; html in build/coverage
	@rm -rf $(COVERAGE)/data
	@for piece in $(PIECES); do $(MAKE) --no-print-directory coverage-piece PIECE=$$piece || status=1; done; \
		$(MAKE) --no-print-directory coverage-report && exit $${status:-0}

coverage-piece: $(STAMP)  ## Count the branches that PIECE=tests/journal takes, for `make coverage-report`
	@rm -rf $(COVERAGE)/data/$(PIECE) && mkdir -p $(COVERAGE)/data/$(PIECE)
	@$(BIN)/coverage run --data-file=$(COVERAGE)/data/$(PIECE)/of -m pytest -n 2 --dist loadscope $(PIECE) $(PYTEST_ARGS)

coverage-report: $(STAMP)  ## What the pieces that were run take together; fails below 95 %
	@$(BIN)/coverage combine --quiet --keep --data-file=$(COVERAGE)/all $$(find $(COVERAGE)/data -name 'of.*')
	@$(BIN)/coverage html --quiet --data-file=$(COVERAGE)/all --directory $(COVERAGE)/html
	@$(BIN)/coverage json --quiet --data-file=$(COVERAGE)/all -o $(COVERAGE)/report.json
	@$(BIN)/python -m tests.branches $(COVERAGE)/report.json

check: $(STAMP)  ## ruff and mypy strict; bandit; spelling, and plain words in the documents; advisories about dependencies
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/bandit --quiet --recursive --configfile pyproject.toml journal meta_broker meta_client spark_jobs zk
	@$(BIN)/codespell $(DOCUMENTS) journal meta_broker meta_client spark_jobs zk bench
	@$(BIN)/codespell --dictionary docs/plain-words.txt --regex "$(PLAIN)" $(DOCUMENTS)
	@$(MAKE) --no-print-directory advisories

# What can't be asked is said loudly and fails nothing: the answer is news of others, not of this tree.
advisories: $(STAMP)  ## Known vulnerabilities of the locked dependencies, asked of osv.dev
	@mkdir -p build; $(BIN)/pip-audit --vulnerability-service osv --requirement requirements.lock --disable-pip --require-hashes \
		--progress-spinner off --timeout 15 2>build/advisories.log && cat build/advisories.log || \
		{ grep -q "ConnectionError" build/advisories.log && \
			echo "SKIPPED: osv.dev can't be reached, so nothing is known of vulnerabilities in dependencies" >&2 || \
			{ cat build/advisories.log >&2; exit 1; }; }

format: $(STAMP)  ## Let ruff write the layout
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

lock: $(STAMP)  ## Write requirements.lock from pyproject.toml
	@$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --all-extras --generate-hashes --no-annotate \
		--custom-compile-command "make lock" pyproject.toml --output-file requirements.lock

docs: $(STAMP)  ## The documentation site, into build/site; a warning fails it
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict && echo "build/site/index.html"

bench: $(STAMP)  ## Every benchmark case, each as a ratio to a baseline of the same run
	@$(BIN)/python -m bench --all

soak: $(STAMP)  ## A mixed load for MINUTES=20 with retention on, watched and judged; plots into OUT=build/soak
	@$(BIN)/python -m bench.soak --minutes $(or $(MINUTES),20) --out $(or $(OUT),build/soak)

crash: $(STAMP)  ## The crash tests, models, random tests, storage faults and repairs, many rounds
	@METAQ_CRASH_ROUNDS=$(or $(ROUNDS),200) $(BIN)/python -m pytest -m hypothesis --ignore tests/model $(PYTEST_ARGS)
	@METAQ_CRASH_ROUNDS=$(or $(ROUNDS),200) METAQ_MODEL_STEPS=$$(( $(or $(ROUNDS),200) * 200 )) \
		$(BIN)/python -m pytest tests/crash tests/model \
		tests/journal/state/test_every_storage_call.py tests/journal/repair/test_repair.py $(PYTEST_ARGS)

fuzz: $(STAMP)  ## Every way in under damaged inputs, INPUTS=10000000 of them and SECONDS=600 besides; SEED=1 repeats a run
	@METAQ_FUZZ_INPUTS=$(or $(INPUTS),10000000) METAQ_FUZZ_SECONDS=$$(( $(or $(SECONDS),600) / 4 )) METAQ_FUZZ_SEED=$(or $(SEED),0) \
		nice -n 15 $(BIN)/python -m pytest -s -p no:randomly tests/fuzz $(PYTEST_ARGS)

# Jars of the ancestor, which are fetched and never kept here. Without them plain `make test` leaves these tests out.
GENUINE := build/genuine
genuine: $(STAMP)  ## MetaQ's own Java client, and its broker, against metaq: needs a JDK 17, Maven and its repository
	@mkdir -p build; command -v javac >/dev/null && command -v mvn >/dev/null || { echo "SKIPPED: no javac or mvn on the PATH" >&2; exit 0; }; \
		test -d $(GENUINE)/jars || mvn -q -B -f tests/genuine/pom.xml dependency:copy-dependencies \
			-DincludeScope=runtime -DoutputDirectory="$(CURDIR)/$(GENUINE)/jars" >$(GENUINE).log 2>&1 || \
			{ rm -rf $(GENUINE)/jars; echo "SKIPPED: Maven can't fetch the jars: see $(GENUINE).log" >&2; exit 0; }; \
		javac --release 17 -nowarn -d $(GENUINE)/classes -cp "$(GENUINE)/jars/*" tests/genuine/driver/*.java && \
		cp tests/genuine/driver/log4j.properties $(GENUINE)/classes && \
		$(BIN)/python -m pytest tests/genuine $(PYTEST_ARGS)

clean:  ## Remove .venv and every cache
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis
