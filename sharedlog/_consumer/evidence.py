"""Evidence that a process of a consumer has ended, as another one of its machine has it.

The name of a process among those of its consumer says which it is: boot, PID namespace, pid and
start time, where the system is Linux. Elsewhere, and on another machine, there is no evidence.
"""

from __future__ import annotations

import os
import secrets

from _rifl_ground.system import ProcessName, process_of

_WHO_BYTES = 8
# Of those that a test drives, and has die.
_abandoned: set[str] = set()


def new_who() -> str:
    """Return what names this process among those of a consumer."""
    me, token = process_of(os.getpid()), secrets.token_hex(_WHO_BYTES)
    return token if me is None else ".".join((token, *map(str, me)))


def abandon(who: str) -> None:
    """Have a name count as that of a process which has ended, in this one."""
    _abandoned.add(who)


def has_ended(who: str) -> bool:
    """Return whether a process is known to have ended. False: it lives, or this is unknown."""
    if who in _abandoned:
        return True
    parts = who.split(".")
    if len(parts) != len(ProcessName._fields) + 1 or not parts[3].isdecimal():
        return False
    named = ProcessName(parts[1], parts[2], int(parts[3]), parts[4])
    me = process_of(os.getpid())
    if me is None or me[:2] != named[:2]:
        return False
    try:
        os.kill(named.pid, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        # It is another user's, and there.
        pass
    found = process_of(named.pid)
    # One that has ended, and whose parent has not asked for that, counts as ended.
    return found is not None and found.started != named.started
