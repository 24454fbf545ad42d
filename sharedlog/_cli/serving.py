"""``sharedlog serve``: a log over gRPC, until a signal."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TypeVar

from _rifl_ground import signals
from _rifl_ground.exits import CommandRefused, ExitCode
from _rifl_ground.log import get_logger
from _rifl_ground.options import add_url
from _rifl_ground.tls import ServedCertificate, add_tls_options, wrong_options
from sharedlog._cli.given import schedule
from sharedlog._core.errors import LogError
from sharedlog._core.observer import LogObserver
from sharedlog._core.trim import TrimOutcome
from sharedlog._log.log import Log
from sharedlog._log.opening import open_log
from sharedlog._service.server import LogServer, Options
from sharedlog._service.settings import BadSettings, ServerSettings, read_settings, read_tokens

_T = TypeVar("_T")
_TOKENS, _TOKENS_FILE = "SHAREDLOG_TOKENS", "SHAREDLOG_TOKENS_FILE"
_log = get_logger("sharedlog")
_MOST_PORT = 65535


def add_serve_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a server."""
    add_url(parser, "--log", about="the log's URL")
    parser.add_argument("--listen", required=True, metavar="HOST:PORT", help="port 0: any")
    add_tls_options(parser)
    parser.add_argument(
        "--tokens-file",
        type=Path,
        metavar="FILE",
        help="lines NAME TOKEN: a caller sends a token, or has a certificate; default: what "
        f"{_TOKENS} holds, or the file that {_TOKENS_FILE} names",
    )
    parser.add_argument(
        "--rights",
        type=Path,
        metavar="FILE.toml",
        help="who may do what, and how much; default: an admitted caller may do everything",
    )
    parser.add_argument(
        "--metrics", metavar="HOST:PORT", help="serve Prometheus metrics over HTTP, also of the log"
    )
    parser.add_argument(
        "--trim-every",
        type=schedule,
        metavar="TIME",
        help="remove messages that are not needed, once per TIME",
    )
    parser.add_argument(
        "--reflection", action="store_true", help="gRPC reflection, for admitted callers"
    )
    parser.add_argument(
        "--no-sweep",
        action="store_true",
        help="do not roll back what crashed programs left pending",
    )


def serve(arguments: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT. Prints the address as one line when it listens.

    With ``--metrics`` it prints a second line, ``metrics HOST:PORT``.
    """
    _, _, port = arguments.listen.rpartition(":")
    if port.isdecimal() and int(port) > _MOST_PORT:
        # gRPC would take what is left of it by division.
        raise CommandRefused(
            f"cannot listen at {arguments.listen}: a port is 0 to 65535", ExitCode.USAGE
        )
    settings, tokens = _rights(arguments)
    certificate = _certificate(arguments)
    options = Options(
        arguments.listen,
        settings=settings,
        tokens=tokens,
        credentials=certificate.credentials,
        reflection=arguments.reflection,
    )
    with contextlib.ExitStack() as ending:
        observer, metrics = observer_of(arguments.metrics, ending)
        log = ending.enter_context(open_log(arguments.url, observer=observer))
        if not arguments.no_sweep:
            ending.enter_context(log.sweeper())
        if arguments.trim_every is not None:
            ending.enter_context(log.trim_every(arguments.trim_every, told=_told))
        asyncio.run(_serve(log, options, metrics, certificate, partial(_rights, arguments)))
    return ExitCode.DONE


async def _serve(
    log: Log,
    options: Options,
    metrics: str | None,
    certificate: ServedCertificate,
    rights: Callable[[], tuple[ServerSettings, dict[str, bytes] | None]],
) -> None:
    def read_again() -> None:
        certificate.read_again()
        if not server.address:
            # It has yet to begin, with what it read just now.
            return
        try:
            server.judge_by(*rights())
        except (CommandRefused, OSError) as error:
            _log.error("served_rights_not_read", error=str(error))
        else:
            _log.info("served_rights_read", address=server.address)

    server = LogServer(log, log._place, options)
    loop, stopped = asyncio.get_running_loop(), asyncio.Event()
    for each in (signal.SIGTERM, signal.SIGINT):
        signals.tell(loop, each, stopped.set)
    signals.tell(loop, signal.SIGHUP, read_again)
    try:
        try:
            await server.start()
        except RuntimeError as error:
            # gRPC's: a port that is taken, an address that is none, a certificate that is none.
            said = " ".join(str(error).split())
            raise CommandRefused(
                f"cannot listen at {options.listen}: {said}", ExitCode.USAGE
            ) from None
        sys.stdout.write(f"{server.address}\n")
        if metrics is not None:
            sys.stdout.write(f"metrics {metrics}\n")
        sys.stdout.flush()
        await stopped.wait()
        await server.stop()
    finally:
        for each in (signal.SIGTERM, signal.SIGINT):
            signals.tell_no_more(loop, each, stopped.set)
        signals.tell_no_more(loop, signal.SIGHUP, read_again)


def observer_of(
    listen: str | None, ending: contextlib.ExitStack
) -> tuple[LogObserver | None, str | None]:
    """Serve metrics until the stack ends, and return what counts them, and where they are."""
    if listen is None:
        return None, None
    from _rifl_ground.scraping import scraped_at
    from sharedlog.metrics import PrometheusLogObserver

    try:
        scraped = scraped_at(listen)
    except ValueError as error:
        raise CommandRefused(f"--metrics: {error}", ExitCode.USAGE) from error
    ending.callback(scraped.end)
    return PrometheusLogObserver(), scraped.address


def _told(found: TrimOutcome | LogError) -> None:
    # A trim is told by its own events.
    if isinstance(found, LogError):
        _log.warning("served_log_not_trimmed", error=str(found))


def _rights(arguments: argparse.Namespace) -> tuple[ServerSettings, dict[str, bytes] | None]:
    return _settings(arguments.rights), _tokens(arguments.tokens_file, os.environ)


def _settings(file: Path | None) -> ServerSettings:
    return ServerSettings() if file is None else _read(file, read_settings)


def _tokens(file: Path | None, environment: Mapping[str, str]) -> dict[str, bytes] | None:
    said, named = environment.get(_TOKENS), environment.get(_TOKENS_FILE)
    if file is None and named:
        file = Path(named)
    if file is not None:
        if said:
            raise CommandRefused(f"tokens are in {_TOKENS}, or in a file", ExitCode.USAGE)
        return _read(file, read_tokens)
    if not said:
        return None
    try:
        return read_tokens(said)
    except BadSettings as error:
        raise CommandRefused(f"{_TOKENS}: {error}", ExitCode.USAGE) from error


def _read(file: Path, read: Callable[[str], _T]) -> _T:
    try:
        return read(file.read_text())
    except (BadSettings, UnicodeDecodeError) as error:
        raise CommandRefused(f"{file}: {error}", ExitCode.USAGE) from error


def _certificate(arguments: argparse.Namespace) -> ServedCertificate:
    if wrong := wrong_options(arguments):
        raise CommandRefused(wrong, ExitCode.USAGE)
    return ServedCertificate(arguments)
