.DEFAULT_GOAL := help
.PHONY: help setup test lint types layers docs unit computing processes spark-classes redis network java browser test-floors test-pythons format proto blocking reference demo demo-words simulate campaign soak fuzz bench bench-guard bench-setup chaos spark-chaos image image-test clean
MAKEFLAGS += --no-print-directory

BIN := .venv/bin
STAMP := .venv/.setup-done
LEAST := nice -n 5

export PYTHON
# Tests start a thousand processes, and each would compile everything anew where nothing may be kept.
export PYTHONDONTWRITEBYTECODE :=

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' Makefile

setup: $(STAMP) ## Create .venv with everything needed (does nothing when up to date)

# An interrupted `venv` leaves a folder without a working pip, so pip is what is asked for.
$(STAMP): pyproject.toml requirements.lock
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || .ci/venv
	@echo "setup: installing the packages of requirements.lock"
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --no-compile -c requirements.lock -e '.[dev]'
# By all cores: pip would use one. Some packages have files that are not meant to be compiled.
	@$(BIN)/python -m compileall -qq -j 0 .venv/lib || true
# Spark looks for formats on the path, and packages that stay where they are edited are not there.
	@echo "$(CURDIR)/spark_bridge/installed" \
		> "$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/sublet-formats.pth"
	@touch $@

# Those that start processes wait for them now and then, and are sensitive to who else is busy: what only computes has
# what they leave. Style first: it takes a second, and nobody has to wait for the rest to hear of it.
test: setup redis network java browser lint ## Check style, types, layers and docs, and run all tests
	@$(MAKE) --jobs 4 processes spark-classes computing types layers docs

lint: setup ## Check style and formatting
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: setup ## Check types
	@$(LEAST) $(BIN)/mypy

layers: setup ## Check that each layer imports only those below it
	@$(LEAST) $(BIN)/lint-imports --no-logo

docs: setup ## Build the documentation into build/site
# Not --quiet: that would hide warnings from --strict, too.
	@mkdir -p build
	@NO_MKDOCS_2_WARNING=1 $(LEAST) $(BIN)/mkdocs build --strict > build/mkdocs.log 2>&1 || \
		{ grep -v '^INFO' build/mkdocs.log; exit 1; }

unit: setup redis network java browser ## Run all tests (ARGS="-k name" chooses)
ifdef ARGS
	@$(BIN)/pytest $(ARGS)
else
	@$(MAKE) --jobs 3 processes spark-classes computing
endif

# Beside the others, whose dots it would mix up with its own.
computing: setup
	@mkdir -p build
	@$(LEAST) $(BIN)/pytest -n auto --dist worksteal tests/unit tests/types tests/simulation tests/fuzz \
		> build/computing.log 2>&1 || { cat build/computing.log; exit 1; }
	@tail -n 1 build/computing.log

# tests/work_units.py says what stays together, and what begins first.
processes: setup redis network java browser
	@$(BIN)/pytest -n 4 --dist loadfile --no-loadscope-reorder tests/spark tests/integration benchmarks/tests tests/contract

# Half of what a start of Spark takes is to load these. Whoever starts before they are there does without.
spark-classes: setup java
	@mkdir -p build
	@test -f build/spark-home/classes.jsa || $(BIN)/python -m tests.spark.spark_home > build/spark-classes.log 2>&1 || \
		echo "spark-classes: could not be made, so each Spark starts slower; see build/spark-classes.log"

redis: ## Install Redis, which the tests start, where there is none
	@.ci/redis

java: ## Install Java, on which Spark runs, where there is none
	@.ci/java

network: ## Install ip and tc, by which tests cut networks, where there are none
	@.ci/network

browser: ## Install Chromium, in which tests open pages, where there is none
	@.ci/browser

test-floors: setup redis ## Run tests with the lowest versions of dependencies that pyproject.toml allows
	@$(BIN)/python -m tests.versions floors

test-pythons: setup redis ## Run tests with other Pythons (PYTHONS="python3.12 python3.13"), those that are there
	@$(BIN)/python -m tests.versions $(or $(PYTHONS),python3.12 python3.13)

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

bench-guard: setup ## Compare what a message costs with another commit: BASE=COMMIT (ARGS="--rounds 80")
	@$(BIN)/python -m benchmarks.guard --base $(or $(BASE),HEAD) $(ARGS)

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
