"""The command: arguments in, one line for an error, an exit code out."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from _rifl_ground.exits import CommandRefused, ExitCode, failed, unread
from _rifl_ground.findings import failed_look
from _rifl_ground.options import find_url
from sharedlog._cli import operating
from sharedlog._cli.arguments import parsed
from sharedlog._cli.audited import told_audit
from sharedlog._core.errors import (
    CheckpointWentBack,
    CorruptLog,
    Fenced,
    HoldMoved,
    InvalidRequest,
    LogError,
    LogExists,
    LogForked,
    NoSuchLog,
    NoSuchOutbox,
    NoSuchStream,
    OutboxWentBack,
    PredecessorMismatch,
    StoreWentBack,
    TrimmedLog,
)
from sharedlog._core.sealing import Seals
from sharedlog._log.log import Log
from sharedlog._log.opening import open_log

_CODES: tuple[tuple[tuple[type[LogError], ...], ExitCode], ...] = (
    ((InvalidRequest, LogExists), ExitCode.USAGE),
    (
        (
            *(TrimmedLog, LogForked, HoldMoved, Fenced),
            *(CheckpointWentBack, OutboxWentBack, PredecessorMismatch, StoreWentBack),
        ),
        ExitCode.GONE,
    ),
    ((NoSuchLog, NoSuchStream, NoSuchOutbox), ExitCode.NOT_FOUND),
    ((CorruptLog,), ExitCode.DAMAGED),
)


def main(argv: list[str] | None = None) -> int:
    """Run one command; returns its exit code. Errors are one line on standard error."""
    arguments = parsed(argv)
    fail = failed_look if arguments.run is operating.doctor and arguments.json else failed
    try:
        with _terminable():
            find_url(arguments)
            with told_audit(arguments):
                if arguments.opens:
                    with _opened(arguments) as log:
                        code: int = arguments.run(log, arguments)
                else:
                    code = arguments.run(arguments)
            sys.stdout.flush()
            return code
    except CommandRefused as error:
        return fail("sharedlog", error, error.code)
    except _Terminated:
        return ExitCode.TERMINATED
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        return unread()
    except (LogError, ImportError, OSError) as error:
        if isinstance(error, CorruptLog) and arguments.run is operating.verify and arguments.json:
            return operating.unverified(error, arguments)
        if isinstance(error, ImportError):
            return fail("sharedlog", error, ExitCode.MISSING_EXTRA)
        codes = (code for kinds, code in _CODES if isinstance(error, kinds))
        return fail("sharedlog", error, next(codes, ExitCode.UNAVAILABLE))


def _opened(arguments: argparse.Namespace) -> Log:
    seals: Seals | None = arguments.keys
    if seals is None:
        return open_log(arguments.url, timeout=arguments.timeout)
    return open_log(arguments.url, timeout=arguments.timeout, seal=seals.seal, unseal=seals.unseal)


class _Terminated(BaseException):
    pass


@contextmanager
def _terminable() -> Iterator[None]:
    """Have SIGTERM end what runs as an error does: nothing half done is left behind."""

    def terminate(*_: object) -> None:
        raise _Terminated

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
