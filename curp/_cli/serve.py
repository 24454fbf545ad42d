"""``curp serve``: a servicer class, run as a replica until a signal."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import queue
import signal
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import grpc

from _rifl_ground.exits import ExitCode
from _rifl_ground.log import get_logger
from _rifl_ground.pings import OWN_SERVER_OPTIONS
from _rifl_ground.plaintext import is_loopback
from _rifl_ground.signals import taken_signals, told_at
from _rifl_ground.tls import ServedCertificate
from curp._cli.operator_client import GroupError
from curp._replica import Replica, Tuning
from curp._replica.engine_at_start import open_at_start
from curp.log._errors import LogUnavailable, may_pass
from curp.log._opening import group_of
from rifl._grpc.entrance import LARGE, MESSAGE_S, EntranceInterceptor, ServiceThreads
from rifl.core._serving.bounds import Bounds

_log = get_logger("curp.replica")
_GRACE_S = 1.0

# What each field of a ``Tuning`` is; its option has its name, without the unit.
_TUNING = {
    "lease_term_s": "about how long a lost leader is missed",
    "client_term_s": "how long a silent client's records are kept",
    "witness_timeout_s": "how long a witness is waited for",
    "snapshot_entries": "a snapshot after so many entries",
    "batch_entries": "append when so many entries wait",
    "batch_delay_s": "or when one has waited so long",
    "poison_deaths": "a call that so many died of is not run again",
    "max_unsynced": "answer first for at most so many entries",
    "engine_wait_s": "how long a log engine that is down is waited for at the start",
}


class ServeOptions(NamedTuple):
    """How a replica is served. ``certificate``: read again at SIGHUP, if there is one."""

    listen: str
    address: str
    certificate: ServedCertificate
    threads: int = 32
    health: bool = False
    reflection: bool = False
    metrics: str | None = None
    max_message_s: float = MESSAGE_S


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


class _Ended(Exception):
    """A signal came while the log's engine was waited for."""


def serve(
    servicers: Sequence[str],
    engine: str,
    options: ServeOptions,
    *,
    name: str,
    tuning: Tuning,
    **replica_of: Any,
) -> int:
    """Serve until SIGTERM or SIGINT; 1 if the replica stopped by itself.

    ``ExitCode.NO_ENGINE`` if the log's engine does not answer for ``Tuning.engine_wait_s``.
    ``replica_of``: what else ``Replica`` takes. Prints the address as one line when it
    listens. Raises what ``Replica`` does, and ``OSError`` or ``RuntimeError`` where it
    cannot listen.
    """
    found = [find_servicer(servicer) for servicer in servicers]
    observer, end_metrics = _metrics(options.metrics)
    with contextlib.ExitStack() as taking, contextlib.ExitStack() as ending:
        ending.callback(end_metrics)
        came = taking.enter_context(taken_signals((signal.SIGTERM, signal.SIGINT)))
        try:
            log = open_at_start(engine, name, tuning.engine_wait_s, pause=partial(_pause, came))
        except _Ended:
            return ExitCode.DONE
        except LogUnavailable as error:
            if not may_pass(error):
                raise
            waited = f"did not answer within {tuning.engine_wait_s:g} s"
            sys.stderr.write(f"curp: the log's engine {waited}: {error}\n")
            return ExitCode.NO_ENGINE
        ending.callback(log.close)
        replica = Replica(
            log,
            name=name,
            address=options.address,
            group=group_of(engine),
            tuning=tuning,
            observer=observer,
            bounds=Bounds(max_message_s=options.max_message_s),
            **replica_of,
        )
        ending.callback(replica.close)
        server = grpc.server(
            ThreadPoolExecutor(options.threads),
            interceptors=[
                EntranceInterceptor(
                    ServiceThreads("curp-calls", options.threads), LARGE * options.max_message_s
                ),
                replica.interceptor(),
            ],
            options=OWN_SERVER_OPTIONS,
        )
        names: Any = _Names(server)
        for factory, add in found:
            add(replica.servicer(factory), replica.registrar(names))
        replica.add_to_server(server)
        if options.health:
            replica.add_health(server, *names.services)
        if options.reflection:
            replica.add_reflection(server, *names.services)
        credentials = options.certificate.credentials
        if credentials is None:
            if replica_of.get("group_token") and not is_loopback(options.listen):
                _log.warning("token_over_plaintext", listen=options.listen)
            server.add_insecure_port(options.listen)
        else:
            server.add_secure_port(options.listen, credentials)
            ending.enter_context(told_at((signal.SIGHUP,), options.certificate.read_again))
        server.start()
        replica.start()
        sys.stdout.write(f"{options.address}\n")
        sys.stdout.flush()
        while came.empty() and replica.role != "stopped":
            with contextlib.suppress(queue.Empty):
                came.put(came.get(timeout=0.2))
        failed = replica.waiting_for if replica.role == "stopped" else ""
        ending.close()
        server.stop(_GRACE_S).wait()
    if failed:
        sys.stderr.write(f"curp: the replica stopped: {failed}\n")
    return ExitCode.UNAVAILABLE if failed else ExitCode.DONE


def _pause(came: queue.SimpleQueue[int], seconds: float) -> None:
    with contextlib.suppress(queue.Empty):
        came.get(timeout=seconds)
        raise _Ended


class _Names:
    """A server that takes note of the services' full names."""

    def __init__(self, server: grpc.Server) -> None:
        self._server = server
        self.services: list[str] = []

    def add_registered_method_handlers(self, service: str, handlers: Any) -> None:
        self.services.append(service)
        self._server.add_registered_method_handlers(service, handlers)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._server, name)


def _metrics(listen: str | None) -> tuple[Any, Callable[[], None]]:
    if listen is None:
        return None, lambda: None
    from curp.metrics import PrometheusGroupObserver, serve_metrics

    return PrometheusGroupObserver(), serve_metrics(listen)


def add_tuning_options(parser: argparse.ArgumentParser) -> None:
    """Add an option for each."""
    for field, text in _TUNING.items():
        default = getattr(Tuning(), field)
        parser.add_argument(
            "--" + field.removesuffix("_s").replace("_", "-"),
            dest=field,
            type=type(default),
            default=default,
            metavar="SECONDS" if isinstance(default, float) else "N",
            help=f"{text} (default {default:g})",
        )


def tuning_of(arguments: argparse.Namespace) -> Tuning:
    """Return what was given; raises ``ValueError`` for what is no time or no size."""
    return Tuning(**{field: getattr(arguments, field) for field in _TUNING})
