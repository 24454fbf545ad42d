"""Hooks of pytest for the whole suite: a file's tests on one worker, the longest first."""

from __future__ import annotations

import gc
import logging
import os
import signal
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import structlog
from hypothesis import settings

from chaos.programs import NotInstalled
from tests.helpers.log_servers import (
    kept_etcd,
    own_etcd,
    own_mariadb,
    own_postgres,
    own_redis,
    shared_etcd,
    shared_mariadb,
    shared_postgres,
    shared_redis,
)
from tests.helpers.raw import SESSION_SECRET

# Here, once: a fixture that several conftests import is made anew for each of them.
__all__ = [
    "kept_etcd",
    "own_etcd",
    "own_mariadb",
    "own_postgres",
    "own_redis",
    "shared_etcd",
    "shared_mariadb",
    "shared_postgres",
    "shared_redis",
]

# Other work on the machine must not fail an example. What is drawn is the same in each run;
# --hypothesis-profile=search draws something else each time.
settings.register_profile("rifl", deadline=None, derandomize=True)
settings.register_profile("search", deadline=None)
settings.load_profile("rifl")

# A shell's background job ignores it, and so would every process that a test interrupts.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# What sessions of channels without certificates open by, in child processes, too.
os.environ["RIFL_SESSION_SECRET"] = SESSION_SECRET.decode()

# Programs in Go, etcd's nodes most of all, share two cores with all else: on one thread, and with
# garbage collected more rarely, they take three quarters of the CPU.
os.environ.setdefault("GOMAXPROCS", "1")
os.environ.setdefault("GOGC", "400")


# Under `make test-pythons`, a test is skipped if the machine lacks the server that it starts.
_MAY_LACK_SERVERS = os.environ.get("RIFL_TEST_LACKS_SERVERS") == "yes"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Generator[None]:
    with _skipped_without_its_server():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None]:
    with _skipped_without_its_server():
        return (yield)


@contextmanager
def _skipped_without_its_server() -> Iterator[None]:
    try:
        yield
    except NotInstalled as error:
        if not _MAY_LACK_SERVERS:
            raise
        pytest.skip(str(error))


@pytest.fixture(autouse=True, scope="module")
def _freeze_what_stays() -> Iterator[None]:
    """Let no collection of garbage look again through what the tests of a file leave in caches.

    The syntax trees of the whole source made each ``gc.collect()`` of the tests after them take a
    second.
    """
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _logging_as_it_was():
    """An entry point that configures structlog, or is silent, does so for its test only."""
    yield
    structlog.reset_defaults()
    logging.disable(logging.NOTSET)


# Where single tests and files take longest, begun first, so that no worker is left with one at
# the end.
_LONGEST = (
    "tests/spark/",
    "tests/chaos/",
    "tests/examples/",
    "tests/tutorials/",
    "tests/curp/replica/",
    "tests/curp/log/",
    "tests/curp/faults/",
    "tests/faults/",
    "tests/stores/postgres/",
    "tests/stores/redis/",
    "tests/sharedlog/consumer/",
    "tests/sharedlog/player/",
)


# Their tests share nothing, and one worker alone would take twice as long as two.
_BY_TEST = (
    "tests/chaos/test_mutations.py",
    "tests/chaos/test_found.py",
    "tests/tutorials/test_tutorials.py",
)

# These share what takes long to make: Spark's session, the syntax trees of the whole source.
_TOGETHER = {
    "tests/spark/": "spark",
    "tests/benchmarks/test_house.py": "source",
    "tests/test_docs.py": "source",
    "tests/test_layout.py": "source",
}


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give a file's tests to one worker, which starts its servers, and some files to one."""
    from xdist.scheduler import LoadFileScheduling

    class ByServers(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            if file in _BY_TEST:
                return nodeid
            return next(
                (scope for start, scope in _TOGETHER.items() if nodeid.startswith(start)), file
            )

    return ByServers(config, log)


def pytest_collection(session: pytest.Session) -> None:
    """On a worker, collect without looks for garbage: none of it is."""
    if hasattr(session.config, "workerinput"):
        gc.disable()


def pytest_collection_finish() -> None:
    """What was collected stays to the end: no collection of garbage looks through it again."""
    gc.enable()
    gc.freeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """On a worker (with --no-loadscope-reorder), begin with what takes longest."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: not item.nodeid.startswith(_LONGEST))
