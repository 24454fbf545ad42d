"""Exit codes of the commands, and the one line that an error is."""

from __future__ import annotations

import enum
import os
import sys


class ExitCode(enum.IntEnum):
    """What a command ends with."""

    DONE = 0
    UNAVAILABLE = 1
    USAGE = 2
    GONE = 3
    # By a process that lives.
    OWNED = 3
    # A group that serves, and may not survive the next loss; a log engine that is silent.
    DEGRADED = 3
    NO_ENGINE = 3
    NOT_FOUND = 4
    MISSING_EXTRA = 5
    DAMAGED = 6
    # What a doctor says of a start.
    REFUSED = 7
    # As shells have it: 128 and the signal.
    INTERRUPTED = 130
    TERMINATED = 143


# What each means, by the command: its help, and docs/reference/api/exit-codes.md.
EXIT_CODES: dict[str, dict[ExitCode, str]] = {
    "rifl": {
        ExitCode.DONE: "done",
        ExitCode.UNAVAILABLE: "the store cannot be read or written",
        ExitCode.USAGE: "wrong usage, or --yes is missing: nothing was done",
        ExitCode.OWNED: "refused: a process owns the store, or runs the call",
        ExitCode.NOT_FOUND: "no such client or call",
        ExitCode.MISSING_EXTRA: "an extra is not installed",
        ExitCode.INTERRUPTED: "SIGINT came before the end",
    },
    "sharedlog": {
        ExitCode.DONE: "done",
        ExitCode.UNAVAILABLE: "the log cannot be read or written",
        ExitCode.USAGE: "wrong usage, --yes is missing, or the log is not as the command wants it "
        "(create: one is there; accept-loss: it has not stopped; over grpc://: not served): "
        "nothing was done",
        ExitCode.GONE: "the position is trimmed, or of another log or incarnation; or another "
        "program took over",
        ExitCode.NOT_FOUND: "no such log, stream, hold, producer or outbox",
        ExitCode.MISSING_EXTRA: "an extra is not installed",
        ExitCode.DAMAGED: "the log is damaged",
        ExitCode.INTERRUPTED: "SIGINT came before the end",
        ExitCode.TERMINATED: "SIGTERM came before the end",
    },
    "doctor": {
        ExitCode.DONE: "a server starts, and nothing is weak",
        ExitCode.UNAVAILABLE: "no answer, or not in time",
        ExitCode.USAGE: "wrong usage",
        ExitCode.DEGRADED: "a server starts, but something is weak",
        ExitCode.NOT_FOUND: "there is no log yet; sharedlog create can make it",
        ExitCode.MISSING_EXTRA: "an extra is not installed",
        ExitCode.REFUSED: "a start would be refused",
        ExitCode.INTERRUPTED: "SIGINT came before the end",
        ExitCode.TERMINATED: "SIGTERM came before the end",
    },
    "curp": {
        ExitCode.DONE: "done",
        ExitCode.UNAVAILABLE: "it failed, or was not confirmed",
        ExitCode.USAGE: "wrong usage",
        ExitCode.INTERRUPTED: "SIGINT came before the end of log copy",
        ExitCode.TERMINATED: "SIGTERM came before the end of log copy",
    },
    "curp status": {
        ExitCode.DONE: "one replica leads and takes calls, and nothing is wrong",
        ExitCode.UNAVAILABLE: "no replica takes calls",
        ExitCode.USAGE: "wrong usage",
        ExitCode.DEGRADED: "one takes calls, but a replica is silent, waits or stopped, a witness "
        "is missing, or the engine does not answer the leader",
    },
    "curp serve": {
        ExitCode.DONE: "a signal ended it",
        ExitCode.UNAVAILABLE: "the replica stopped (event replica_stopped), or cannot serve",
        ExitCode.USAGE: "wrong usage",
        ExitCode.NO_ENGINE: "the log engine did not answer within --engine-wait: start it again",
    },
}


def told_exit_codes(command: str) -> str:
    """Return what a command's help says of its exit codes."""
    return "exit codes: " + "; ".join(
        f"{code:d} {told}" for code, told in EXIT_CODES[command].items()
    )


class CommandRefused(Exception):
    """A command that cannot be done: its line and its exit code."""

    def __init__(self, message: str, code: ExitCode) -> None:
        """``message``: one line."""
        super().__init__(message)
        self.code = code


def failed(program: str, error: Exception, code: ExitCode = ExitCode.UNAVAILABLE) -> ExitCode:
    """Write why a command failed, in one line on standard error; return its exit code."""
    line = " ".join((str(error) or type(error).__name__).split())
    sys.stderr.write(f"{program}: {line}\n")
    return code


def unread() -> ExitCode:
    """End a command whose output pipe was closed, as in ``sharedlog read ... | head``."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return ExitCode.DONE
