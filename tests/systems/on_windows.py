"""Runs rifl as on Windows: what POSIX alone has is gone from what rifl asks for, as a module.

What others import is imported before: to them the system stays what it is.
"""

import asyncio
import importlib
import json
import os
import signal
import sys
import time
from pathlib import Path

_NOT_OURS = (
    *("asyncio.unix_events", "bitarray", "google.protobuf.json_format", "google.rpc.status_pb2"),
    *("grpc", "grpc.aio", "grpc_status.rpc_status", "grpc_health.v1.health_pb2_grpc"),
    *("grpc_reflection.v1alpha.reflection", "importlib.metadata", "http.server", "subprocess"),
    *("structlog", "tempfile", "tomllib", "uuid", "logging.handlers", "multiprocessing"),
)
_POSIX = {
    os: (
        *("fork", "forkpty", "register_at_fork", "O_CLOEXEC", "O_DIRECTORY", "O_NOFOLLOW"),
        *("O_NONBLOCK", "pread", "pwrite", "preadv", "pwritev", "pipe2", "getuid", "geteuid"),
        *("getpgid", "killpg", "setsid", "statvfs", "sched_getaffinity", "uname", "mkfifo"),
    ),
    signal: ("SIGHUP", "SIGKILL", "SIGUSR1", "SIGALRM", "SIGCHLD", "pthread_sigmask", "sigwait"),
    time: ("clock_gettime", "CLOCK_MONOTONIC", "CLOCK_BOOTTIME", "CLOCK_MONOTONIC_RAW"),
}
_MODULES = ("fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "syslog", "readline")
_METHOD = "/test.Echo/Do"


class _Absent:
    """Finds no module that Windows does not have."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name in _MODULES:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def become_windows() -> None:
    """Have what is imported from now on find a Windows."""
    for name in _NOT_OURS:
        importlib.import_module(name)
    for module, names in _POSIX.items():
        for name in names:
            if hasattr(module, name):
                delattr(module, name)
    for name in _MODULES:
        sys.modules.pop(name, None)
    sys.meta_path.insert(0, _Absent())
    before = os.name, sys.platform
    os.name, sys.platform = "nt", "win32"
    try:
        importlib.import_module("_rifl_ground.system")
    finally:
        os.name, sys.platform = before


def call(target: str) -> list[bytes]:
    """Make calls by both clients; return the answers."""
    import rifl

    with rifl.connect(target) as channel:
        answers = [channel.unary_unary(_METHOD)(b"sync", timeout=60)]
    with rifl.connect(target, session="a shop") as channel, rifl.key("a/key"):
        answers.append(channel.unary_unary(_METHOD)(b"keyed", timeout=60))

    async def with_aio() -> bytes:
        async with rifl.aio.connect(target) as channel:
            return await channel.unary_unary(_METHOD)(b"aio", timeout=60)

    return [*answers, asyncio.run(with_aio())]


def refusals() -> dict[str, list[str]]:
    """Return what is raised where POSIX is needed: its class, and what it says."""
    import rifl
    import sharedlog
    from curp.log._errors import InvalidRequest
    from curp.log._opening import open_engine
    from curp.witness import WitnessJournal
    from curp.witness._journal import JournalError
    from rifl._stores.opening import open_inspection
    from sharedlog._outbox.box_database import open_database

    with rifl.Deduplicator("memory:"):
        pass
    with sharedlog.create("memory:windows") as log:
        log.stream("s")
        log.publish("s", b"there")
    tried = {
        "store": lambda: rifl.Deduplicator("sqlite:///a.db"),
        "inspection": lambda: open_inspection("sqlite:///a.db"),
        "log": lambda: sharedlog.create("sqlite:///a.db"),
        "group's log": lambda: open_engine("sqlite:///a.db?group=a"),
        "outbox": lambda: open_database("sqlite:///a.db"),
        "witness": lambda: WitnessJournal(Path("a")),
    }
    found = {}
    for name, attempt in tried.items():
        try:
            attempt()
        except (rifl.StoreError, sharedlog.InvalidRequest, InvalidRequest, JournalError) as error:
            found[name] = [type(error).__name__, str(error)]
    return found


if __name__ == "__main__":
    become_windows()
    print(json.dumps([[each.decode() for each in call(sys.argv[1])], refusals()]))
