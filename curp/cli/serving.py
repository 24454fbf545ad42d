"""``curp serve``: a servicer class, run as a replica until a signal."""

from __future__ import annotations

import importlib
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

from curp.cli.asking import GroupError
from curp.replica import Replica

__all__ = ["find_servicer", "serve"]

_GRACE_S = 1.0


def find_servicer(name: str) -> tuple[Callable[[], Any], Callable[[Any, Any], None]]:
    """Return a servicer's factory and the generated function that registers it.

    ``name`` is ``package.module:Class``. Raises ``GroupError``.
    """
    module_name, _, class_name = name.partition(":")
    if not class_name:
        raise GroupError(f"{name!r} is not MODULE:SERVICER")
    sys.path.insert(0, "")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise GroupError(f"cannot import {module_name}: {error}") from error
    servicer = getattr(module, class_name, None)
    if not isinstance(servicer, type):
        raise GroupError(f"{module_name} has no class {class_name}")
    for base in servicer.__mro__:
        generated = sys.modules.get(base.__module__)
        add = getattr(generated, f"add_{base.__name__}_to_server", None)
        if add is not None:
            return servicer, add
    raise GroupError(f"{name} is derived from no generated servicer")


def serve(
    servicers: Sequence[str],
    engine: str,
    *,
    name: str,
    listen: str,
    address: str | None,
    witnesses: Sequence[str],
    replicas: Sequence[str],
    conflict_keys: Mapping[str, Sequence[str]],
    read_only: Sequence[str],
    nondeterministic: Sequence[str],
    threads: int,
    lease_term_s: float,
) -> int:
    """Serve until SIGTERM or SIGINT; 1 if the replica stopped by itself.

    Prints the address as one line when it listens.
    """
    found = [find_servicer(servicer) for servicer in servicers]
    replica = Replica(
        engine,
        name=name,
        address=address or listen,
        witnesses=witnesses,
        replicas=replicas,
        conflict_keys=dict(conflict_keys),
        read_only=read_only,
        nondeterministic=nondeterministic,
        lease_term_s=lease_term_s,
    )
    server = grpc.server(ThreadPoolExecutor(threads), interceptors=[replica.interceptor()])
    for factory, add in found:
        add(replica.servicer(factory), replica.registrar(server))
    replica.add_to_server(server)
    server.add_insecure_port(listen)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    server.start()
    replica.start()
    sys.stdout.write(f"{address or listen}\n")
    sys.stdout.flush()
    while not stop.wait(0.2) and replica.role != "stopped":
        pass
    failed = replica.waiting_for if replica.role == "stopped" else ""
    replica.close()
    server.stop(_GRACE_S).wait()
    if failed:
        sys.stderr.write(f"curp: the replica stopped: {failed}\n")
    return 1 if failed else 0
