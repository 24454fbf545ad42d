"""``rifl lease-server --listen HOST:PORT --store URL``: the lease service alone.

``--store`` is the Redis or PostgreSQL that the servers themselves share: an identity
belongs to one set of records. Prints the bound address as one line on standard output
when ready; logs go to standard error. SIGTERM and SIGINT stop it cleanly.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import signal
import sys
from collections.abc import Callable
from typing import Any

import grpc.aio

from _rifl_ground.exits import CommandRefused, ExitCode, failed
from _rifl_ground.log import get_logger, log_to_stderr
from _rifl_ground.options import add_message_limit, add_url
from _rifl_ground.pings import OWN_SERVER_OPTIONS
from _rifl_ground.portions import MAX_CLIENTS
from _rifl_ground.threads import in_thread
from _rifl_ground.tls import ServedCertificate, add_tls_options, wrong_options
from lease_server._authority import TERM_S
from lease_server._holders import LeaseBounds
from lease_server._sessions import SessionsFrom
from lease_server._shared_authority import SharedAuthority
from lease_server._storage import SharedLeaseStorage
from rifl._grpc.aio_entrance import AioEntrance
from rifl._grpc.audit import CallerAudit
from rifl._grpc.entrance import MESSAGE_S
from rifl._leases.openers import session_openers
from rifl._leases.requests import GrantTerms
from rifl._leases.service import add_lease_service
from rifl._stores.opening import open_lease_storage
from rifl.core._shared.errors import RiflError

_PROGRAM = "rifl lease-server"
_SWEEPS_PER_TERM = 10
_MAX_SWEEP_INTERVAL_S = 5.0
_GRACE_S = 1.0

_log = get_logger("lease_server")


def add_lease_server(commands: Any) -> None:
    """Add the command and its arguments."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "lease-server",
        description=__doc__,
        help="serve client ids and their leases, until a signal",
    )
    parser.add_argument("--listen", required=True, metavar="HOST:PORT", help="port 0 picks one")
    about = "the store that the servers share: redis://host, postgresql://host/db"
    add_url(parser, "--store", about=about, dest="store")
    parser.add_argument("--term-s", type=float, default=TERM_S, help="length of a lease, seconds")
    parser.add_argument(
        "--deduplicated",
        action="append",
        default=[],
        metavar="PATTERN",
        help="a method the servers behind this one deduplicate: /package.Service/Method, "
        "/package.Service/* or *; repeatable",
    )
    parser.add_argument(
        "--sessions-from",
        type=session_openers,
        default=SessionsFrom.SECRET.value,
        metavar="peers|secret|anyone|NAMES",
        help="who opens named sessions: clients with a certificate, also those with the session's "
        "secret (default), any, or the certificates with one of these names (kind:name,kind:name)",
    )
    parser.add_argument(
        "--max-clients", type=int, default=MAX_CLIENTS, help="how many leases there may be"
    )
    parser.add_argument(
        "--max-clients-per-caller",
        type=int,
        metavar="N",
        help="how many of them one certificate may hold, or one address of callers without one "
        "(default: a quarter; 0: as many as all)",
    )
    add_message_limit(parser, MESSAGE_S)
    add_tls_options(parser)
    parser.add_argument(
        "--peer-property",
        metavar="NAME",
        help="what of its certificate a caller's token is bound to; the same as of the servers",
    )
    parser.add_argument("--metrics", metavar="HOST:PORT", help="Prometheus metrics over HTTP")
    parser.set_defaults(run=serve_leases)


def serve_leases(arguments: argparse.Namespace) -> ExitCode:
    """Run until a signal; UNAVAILABLE if it could not start."""
    try:
        GrantTerms(deduplicated=arguments.deduplicated)
        LeaseBounds.of(arguments.max_clients, arguments.max_clients_per_caller)
    except ValueError as error:
        raise CommandRefused(str(error), ExitCode.USAGE) from error
    if not 0 < arguments.term_s < math.inf:
        raise CommandRefused("--term-s must be positive", ExitCode.USAGE)
    if wrong := wrong_options(arguments):
        raise CommandRefused(wrong, ExitCode.USAGE)
    log_to_stderr()
    try:
        certificate = ServedCertificate(arguments)
        storage = _open_storage(arguments.store)
        authority = SharedAuthority(
            storage,
            term_s=arguments.term_s,
            max_clients=arguments.max_clients,
            max_clients_per_caller=arguments.max_clients_per_caller,
            events=_log,
        )
    except Exception as error:  # noqa: BLE001 - whatever a store finds wrong, one line says it
        return failed(_PROGRAM, error)
    try:
        audit, end_metrics = _audit(arguments.metrics)
        try:
            asyncio.run(_serve(arguments, authority, certificate, audit))
        finally:
            end_metrics()
    except (RiflError, ImportError, OSError, ValueError, RuntimeError) as error:
        return failed(_PROGRAM, error)
    finally:
        close = getattr(storage, "close", None)
        if close is not None:
            close()
    return ExitCode.DONE


def _open_storage(url: str) -> SharedLeaseStorage:
    if url.startswith(("memory:", "sqlite:")):
        raise ValueError(
            f"{url.partition(':')[0]}: belongs to one process, whose calls could never be of ids "
            "granted here: name the Redis or PostgreSQL that the servers share"
        )
    return open_lease_storage(url)


def _audit(metrics: str | None) -> tuple[CallerAudit, Callable[[], None]]:
    """Return what is told of refused callers, and what ends the metrics that count them."""
    if metrics is None:
        return CallerAudit(), lambda: None
    from _rifl_ground.scraping import serve_metrics
    from rifl.metrics import PrometheusObserver

    end = serve_metrics(metrics)
    return CallerAudit(PrometheusObserver().caller_refused), end


async def _serve(
    arguments: argparse.Namespace,
    authority: SharedAuthority,
    certificate: ServedCertificate,
    audit: CallerAudit,
) -> None:
    server = grpc.aio.server(options=OWN_SERVER_OPTIONS)
    AioEntrance(arguments.max_message_s).guard(server)
    add_lease_service(
        server,
        authority,
        deduplicated=arguments.deduplicated,
        sessions_from=arguments.sessions_from,
        peer_property=arguments.peer_property,
        audit=audit,
    )
    host = arguments.listen.rpartition(":")[0]
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    if certificate.credentials is None:
        port = server.add_insecure_port(arguments.listen)
    else:
        port = server.add_secure_port(arguments.listen, certificate.credentials)
        loop.add_signal_handler(signal.SIGHUP, certificate.read_again)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await server.start()
    sys.stdout.write(f"{host}:{port}\n")
    sys.stdout.flush()
    interval_s = min(_MAX_SWEEP_INTERVAL_S, arguments.term_s / _SWEEPS_PER_TERM)
    sweeping = asyncio.create_task(_sweep(authority, interval_s, stop))
    stopped = asyncio.create_task(stop.wait())
    # A sweep that fails for an unforeseen reason stops the server, visibly.
    await asyncio.wait((sweeping, stopped), return_when=asyncio.FIRST_COMPLETED)
    await server.stop(_GRACE_S)
    stop.set()
    await sweeping
    _log.info("lease_server_stopped")


async def _sweep(authority: SharedAuthority, interval_s: float, stop: asyncio.Event) -> None:
    while not stop.is_set():
        await in_thread(authority.expire)
        try:
            async with asyncio.timeout(interval_s):
                await stop.wait()
        except TimeoutError:
            continue
