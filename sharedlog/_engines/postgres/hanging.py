"""Sessions of applications that hang with the log's row locked, and the end of them."""

from __future__ import annotations

from typing import Any

import psycopg

from sharedlog._engines.postgres.connection import Connection

# Marked by ``append_in_1``. What a session does is hidden from a role without the privilege.
_HANGING = """
SELECT a.pid, coalesce(a.usename, ''), coalesce(a.application_name, '')
FROM pg_locks l JOIN pg_stat_activity a USING (pid)
WHERE l.locktype = 'advisory' AND l.objsubid = 2 AND a.datname = current_database()
    AND l.classid::int8 = hashtext('sharedlog {0}')::int8 & 4294967295
    AND l.objid::int8 = (SELECT log_id FROM {0}.log WHERE incarnation = %(log)s)
    AND (a.state IS NULL OR a.state LIKE 'idle in transaction%%')
    AND (a.state_change IS NULL
        OR a.state_change < clock_timestamp() - %(hangs_s)s * interval '1 s')
"""
# Between an append and its commit, a client that lives says something within this time.
_HANGS_S = 1.0


def end_hanging(log: Connection) -> str:
    """End those of which nothing was heard for a second; whose could not be, in words."""
    found = log.read(_HANGING.format(log.schema), {"log": log.incarnation, "hangs_s": _HANGS_S})
    return ", ".join(told for each in found if (told := _end(log, *each)))


def _end(log: Connection, pid: int, user: str, application: str) -> str:
    facts: dict[str, Any] = {"pid": pid, "user": user, "application": application}
    told = f"the session {pid} of {user} {application}".strip()
    try:
        log.sessions.use(lambda session: session.execute("SELECT pg_terminate_backend(%s)", (pid,)))
    except psycopg.Error as error:
        log.owner.events.warning(
            "log_waits_for_session", log=str(log.address), error=type(error).__name__, **facts
        )
        return told
    log.owner.events.warning("log_session_ended", log=str(log.address), **facts)
    return ""
