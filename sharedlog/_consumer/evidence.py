"""Evidence that a process of a consumer has ended, as another one of its machine has it.

The name of a process among those of its consumer says which it is: boot, PID namespace, pid and
start time, where the system is Linux. Elsewhere, and on another machine, there is no evidence.
"""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

_WHO_BYTES = 8
_PROC = Path("/proc")
# Of a boot's id, which is random.
_BOOT_CHARS = 13
_DEAD = "ZX"
# Of those that a test drives, and has die.
_abandoned: set[str] = set()


class _Process(NamedTuple):
    boot: str
    namespace: str
    pid: int
    started: str


def new_who() -> str:
    """Return what names this process among those of a consumer."""
    me, token = _found(os.getpid()), secrets.token_hex(_WHO_BYTES)
    return token if me is None else ".".join((token, *map(str, me)))


def abandon(who: str) -> None:
    """Have a name count as that of a process which has ended, in this one."""
    _abandoned.add(who)


def has_ended(who: str) -> bool:
    """Return whether a process is known to have ended. False: it lives, or this is unknown."""
    if who in _abandoned:
        return True
    parts = who.split(".")
    if len(parts) != len(_Process._fields) + 1 or not parts[3].isdecimal():
        return False
    named = _Process(parts[1], parts[2], int(parts[3]), parts[4])
    me = _found(os.getpid())
    if me is None or me[:2] != named[:2]:
        return False
    try:
        os.kill(named.pid, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        # It is another user's, and there.
        pass
    found = _found(named.pid)
    # One that has ended, and whose parent has not asked for that, counts as ended.
    return found is not None and found.started != named.started


def _found(pid: int) -> _Process | None:
    """Return a process of this namespace; None: the system does not say. One that is dead: ""."""
    with suppress(OSError, IndexError):
        boot = (_PROC / "sys/kernel/random/boot_id").read_text("ascii").strip()
        namespace = os.readlink(_PROC / "self/ns/pid").strip("pid:[]")
        # Behind the command's name, which may have anything in it.
        stat = (_PROC / str(pid) / "stat").read_text("utf-8", "replace")
        fields = stat.rpartition(")")[2].split()
        started = "" if fields[0] in _DEAD else fields[19]
        return _Process(boot[:_BOOT_CHARS].replace("-", ""), namespace, pid, started)
    return None
