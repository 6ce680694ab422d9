.DEFAULT_GOAL := help
.PHONY: help setup test lint types layers docs unit computing processes redis network java browser format proto blocking reference demo demo-words simulate campaign soak fuzz bench bench-setup chaos spark-chaos image image-test clean
MAKEFLAGS += --no-print-directory

BIN := .venv/bin
STAMP := .venv/.setup-done

export PYTHON
# Tests start a thousand processes, and each would compile everything anew where nothing may be kept.
export PYTHONDONTWRITEBYTECODE :=

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' Makefile

setup: $(STAMP) ## Create .venv with everything needed (does nothing when up to date)

# An interrupted `venv` leaves a folder without a working pip, so pip is what is asked for.
$(STAMP): pyproject.toml requirements.lock
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || .ci/venv
	@echo "setup: installing the packages of requirements.lock"
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -c requirements.lock -e '.[dev]'
# Spark looks for formats on the path, and packages that stay where they are edited are not there.
	@echo "$(CURDIR)/spark_bridge/installed" \
		> "$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/sublet-formats.pth"
	@touch $@

# The checks keep one core busy for half a minute, and tests that only compute the other one.
test: setup redis network java browser ## Check style, types, layers and docs, and run all tests
	@$(MAKE) --jobs 2 computing lint types layers docs
	@$(MAKE) processes

lint: setup ## Check style and formatting
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: setup ## Check types
	@$(BIN)/mypy

layers: setup ## Check that each layer imports only those below it
	@$(BIN)/lint-imports --no-logo

docs: setup ## Build the documentation into build/site
# Not --quiet: that would hide warnings from --strict, too.
	@mkdir -p build
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict > build/mkdocs.log 2>&1 || \
		{ grep -v '^INFO' build/mkdocs.log; exit 1; }

unit: setup redis network java browser ## Run all tests (ARGS="-k name" chooses)
ifdef ARGS
	@$(BIN)/pytest $(ARGS)
else
	@$(MAKE) computing processes
endif

computing: setup
	@$(BIN)/pytest -n auto --dist worksteal tests/unit tests/types tests/simulation tests/fuzz

# What starts processes waits for them now and then: three at once, what takes longest first. The tests of a file may
# share workers, and stay together.
processes: setup redis network java browser
	@$(BIN)/pytest -n 3 --dist loadfile --no-loadscope-reorder tests/spark tests/integration benchmarks/tests tests/contract

redis: ## Install Redis, which the tests start, where there is none
	@.ci/redis

java: ## Install Java, on which Spark runs, where there is none
	@.ci/java

network: ## Install ip and tc, by which tests cut networks, where there are none
	@.ci/network

browser: ## Install Chromium, in which tests open pages, where there is none
	@.ci/browser

format: setup ## Format the code and fix what can be fixed
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

proto: setup ## Regenerate proto/generated from proto/sublet.proto
	@$(BIN)/python proto/generate.py

blocking: setup ## Regenerate runtime/client/blocking.py from the asyncio classes
	@$(BIN)/python generators/blocking_client.py

reference: setup ## Make again the pages of docs/ that are made from the code
	@$(BIN)/python -m docs.generators docs

demo: setup ## Show Spark and Sublet together, in two minutes (ARGS=--kill kills a worker)
	@.ci/java || { echo "demo: without Java, \`make demo-words\` shows Sublet alone" >&2; exit 1; }
	@$(BIN)/python examples/spark_demo.py $(ARGS)

demo-words: setup ## Show Sublet alone: words are counted under load (ARGS=--kill kills a worker)
	@$(BIN)/python examples/demo.py $(ARGS)

simulate: setup ## Simulate a cluster (SCENARIO=file chooses) and keep plots in build/simulation
	@$(BIN)/sublet simulate $(SCENARIO) --order least-laxity --order arrival \
		--plot build/simulation/simulation.svg --save build/simulation/simulation.json

campaign: setup ## Play SEEDS=1000 seeds of each simulated world (KEEP=--keep keeps the result)
	@$(BIN)/python -m tests.simulation.campaign --seeds $(or $(SEEDS),1000) $(KEEP)

chaos: setup redis ## Break real workers and Redis under load, and count (MINUTES=30 SEED= WORKERS=4 ARGS=)
	@$(BIN)/python -m tests.chaos --minutes $(or $(MINUTES),30) --workers $(or $(WORKERS),4) \
		$(if $(SEED),--seed $(SEED)) $(ARGS)

spark-chaos: setup redis java ## Kill drivers of Spark at every step under load, and count (RESTARTS=50 SEED= ARGS=)
	@$(BIN)/python -m tests.spark.chaos --restarts $(or $(RESTARTS),50) $(if $(SEED),--seed $(SEED)) $(ARGS)

soak: setup redis ## Overload workers three times (MINUTES=10 STORE=redis) and judge what they do
	@$(BIN)/python -m benchmarks.soak --minutes $(or $(MINUTES),10) --store $(or $(STORE),redis) $(ARGS)

fuzz: setup ## Fuzz what comes from outside (MINUTES=15 TARGET=frames); REPLAY=file runs one again
	@$(BIN)/python -c "import atheris" 2>/dev/null || $(BIN)/python -m pip install -qq \
		--disable-pip-version-check -c requirements.lock -e '.[fuzz]'
	@$(BIN)/python -m tests.fuzz --minutes $(or $(MINUTES),15) \
		$(if $(TARGET),--target $(TARGET)) $(if $(REPLAY),--replay $(REPLAY))

bench: setup ## Run the benchmarks (benchmarks/README.md lists them)
	@$(BIN)/python -m benchmarks

bench-setup: ## Install the systems that the benchmarks compare with (needs npm)
	@benchmarks/peers/setup.sh

image: setup ## Build the container image (ARGS="--extras redis,otel"); where none can be pulled, on Debian's packages
	@.ci/containers build
	@$(BIN)/python -m deploy.image.build $(ARGS)

image-test: setup ## Run the image in containers, stop and kill them under load, and count (ARGS=--keep; needs root)
	@.ci/containers
	@$(BIN)/python -m tests.image $(ARGS)

clean: ## Remove .venv, caches and build results
	@rm -rf .venv build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
