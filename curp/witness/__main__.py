"""``python -m curp.witness --listen HOST:PORT``: one witness.

Prints the bound address as one line on standard output when ready; logs go to
standard error. SIGTERM and SIGINT stop it: like a crash, that loses what it held, so
take it out of the group's list first.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from pathlib import Path

import grpc.aio

from _rifl_ground.exits import failed
from _rifl_ground.log import get_logger, log_to_stderr
from _rifl_ground.pings import OWN_SERVER_OPTIONS
from _rifl_ground.plaintext import is_loopback
from _rifl_ground.tls import ServedCertificate
from curp._core.witness_table import WitnessLimits, WitnessTable
from curp._security import (
    add_open_option,
    add_server_options,
    add_token_option,
    check_group_token,
    check_options,
    read_tokens,
)
from curp.witness._handlers import WitnessHandlers
from curp.witness._journal import JournalError, WitnessJournal
from curp.witness._service import add_witness_service
from rifl._grpc.aio_entrance import AioEntrance

__all__ = ["main"]

_GRACE_S = 1.0

_log = get_logger("curp.witness")


def main(argv: list[str] | None = None) -> int:
    """Run until a signal; the exit code: 0, or 1 if it could not start or go on."""
    arguments = _arguments(argv)
    log_to_stderr()
    journal = None
    try:
        certificate = ServedCertificate(arguments)
        tokens = read_tokens(arguments.group_token_file)
        if arguments.data_dir is not None:
            journal = WitnessJournal(arguments.data_dir)
        return asyncio.run(_serve(arguments, journal, certificate, tokens))
    except (JournalError, ImportError, OSError, ValueError, RuntimeError) as error:
        return failed("curp.witness", error)
    finally:
        if journal is not None:
            journal.close()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m curp.witness", description=__doc__)
    limits = WitnessLimits()
    parser.add_argument("--listen", required=True, metavar="HOST:PORT", help="port 0 picks one")
    parser.add_argument(
        "--data-dir",
        type=Path,
        metavar="DIRECTORY",
        help="remember the highest configuration number through restarts",
    )
    parser.add_argument("--slots", type=int, default=limits.slots, help="conflict keys held")
    parser.add_argument(
        "--max-request-bytes",
        type=int,
        default=limits.max_request_bytes,
        help="of one request; longer ones are synced before their answer",
    )
    parser.add_argument("--max-bytes", type=int, default=limits.max_bytes, help="of all requests")
    add_token_option(parser)
    add_open_option(parser)
    add_server_options(parser)
    parser.add_argument("--metrics", metavar="HOST:PORT", help="Prometheus metrics over HTTP")
    return parser


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = _parser()
    arguments = parser.parse_args(argv)
    try:
        arguments.limits = WitnessLimits(
            slots=arguments.slots,
            max_request_bytes=arguments.max_request_bytes,
            max_bytes=arguments.max_bytes,
        )
    except ValueError as error:
        parser.error(str(error))
    check_options(parser, arguments)
    check_group_token(parser, arguments, arguments.listen)
    return arguments


async def _serve(
    arguments: argparse.Namespace,
    journal: WitnessJournal | None,
    certificate: ServedCertificate,
    tokens: list[str] | None,
) -> int:
    if arguments.open_group:
        _log.warning("no_group_token", address=arguments.listen)
    group, highest = ("", 0) if journal is None else (journal.group, journal.highest)
    table = WitnessTable(arguments.limits, highest=highest, group=group)
    witness = WitnessHandlers(table, journal)
    if arguments.metrics is not None:
        from curp.metrics import WitnessCollector, serve_metrics

        WitnessCollector(table, refused=witness.audit.counts)
        serve_metrics(arguments.metrics)
    server = grpc.aio.server(options=OWN_SERVER_OPTIONS)
    AioEntrance(arguments.max_message_s).guard(server)
    stop, failed = asyncio.Event(), asyncio.Event()

    def fail() -> None:
        failed.set()
        stop.set()

    add_witness_service(
        server,
        witness,
        group_token=tokens,
        open_group=arguments.open_group,
        peer_property=arguments.peer_property,
        on_failure=fail,
        stopping=stop,
    )
    credentials = certificate.credentials
    if credentials is None:
        if tokens is not None and not is_loopback(arguments.listen):
            _log.warning("token_over_plaintext", listen=arguments.listen)
        port = server.add_insecure_port(arguments.listen)
    else:
        port = server.add_secure_port(arguments.listen, credentials)
    loop = asyncio.get_running_loop()
    if credentials is not None:
        loop.add_signal_handler(signal.SIGHUP, certificate.read_again)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await server.start()
    sys.stdout.write(f"{arguments.listen.rpartition(':')[0]}:{port}\n")
    sys.stdout.flush()
    await stop.wait()
    await server.stop(_GRACE_S)
    _log.info("witness_stopped", held=len(table))
    return int(failed.is_set())


if __name__ == "__main__":
    sys.exit(main())
