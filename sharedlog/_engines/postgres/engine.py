"""``Engine`` over PostgreSQL."""

from __future__ import annotations

import contextlib
import threading
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import psycopg

from _rifl_ground.postgres.address import PostgresAddress
from _rifl_ground.postgres.listener import Listener
from sharedlog._core.commit import Commit, Refused, Stamp
from sharedlog._core.entry import Row
from sharedlog._core.errors import CorruptLog, TrimmedLog
from sharedlog._core.steps import Lsns, Rows
from sharedlog._core.within import Within
from sharedlog._engines.checks import check_commit
from sharedlog._engines.checksums import (
    PAGE,
    damage,
    expected,
    named_values,
    paged,
    sent,
    values_of,
)
from sharedlog._engines.engine import READ_BYTES, Limits
from sharedlog._engines.forks import belongs_here
from sharedlog._engines.group_commit import GroupCommit, PendingCommit
from sharedlog._engines.owner import LOG, Owner
from sharedlog._engines.postgres.connection import Begin, PostgresConnection
from sharedlog._engines.postgres.joined_commits import JoinedCommits
from sharedlog._engines.postgres.joining import ServerTransactions
from sharedlog._engines.terms import ServerTerms, Term

# A hint may be lost while the session is made anew, so a waiter looks by itself as well.
_LOOK_S = 1.0
_LOOK_UNHEARD_S = 0.01
_END_S = 2.0
# Of what `remove_1` takes after incarnation and tail.
_REMOVED = "int8 bytea[] int8[]"


class Waiting:
    """Wakes waiters when an append was committed, by ``NOTIFY``. Any thread.

    Hints only: what is true is what the tail says when it is asked for.
    """

    def __init__(self, connection: PostgresConnection, channel: str) -> None:
        self._connection = connection
        self._channel = channel
        self._listener: Listener | None = None
        # Taken and given back by C: a signal's exception may leave a condition's own taken.
        self._lock = threading.RLock()
        self._heard = threading.Condition(self._lock)
        self._count = 0
        self._listens = False

    def wait(self, look: Callable[[], int], after: int, timeout_s: float) -> int:
        """Return the tail once it is above ``after``, or when the timeout passes."""
        self._begin()
        end = time.monotonic() + timeout_s
        while True:
            with self._lock:
                count = self._count
            tail = look()
            left_s = end - time.monotonic()
            if tail > after or left_s <= 0:
                return tail
            with self._lock:
                pause_s = _LOOK_S if self._listens else _LOOK_UNHEARD_S
                if self._count == count and not self._connection.closing.is_set():
                    self._heard.wait(min(pause_s, left_s))
            if self._connection.closing.is_set():
                raise self._connection.owner.stopped("the log engine was closed")

    def close(self) -> None:
        """Wake all waiting calls, before the connection closes its sessions. Idempotent."""
        self._connection.closing.set()
        self._hint()
        if self._listener is None:
            return
        if self._listens:
            # It hears this, and checks whether to go on.
            told = "SELECT pg_notify(%s, '')"
            with contextlib.suppress(psycopg.Error, OSError):
                self._connection.sessions.use(lambda each: each.execute(told, (self._channel,)))
        self._listener.join(_END_S)

    def _begin(self) -> None:
        with self._lock:
            if self._listener is None:
                self._listener = Listener(
                    self._connection.address,
                    self._channel,
                    self._connection.closing,
                    heard=lambda _: self._hint(),
                    # What was appended before that is looked for.
                    listening=lambda: self._hint(listens=True),
                    lost=self._lost,
                )
                self._listener.start()

    def _hint(self, *, listens: bool | None = None) -> None:
        with self._lock:
            self._count += 1
            self._listens = self._listens if listens is None else listens
            self._heard.notify_all()

    def _lost(self, error: Exception) -> None:
        self._connection.owner.events.debug("log_listener_lost", error=type(error).__name__)
        self._hint(listens=False)


# In front of all rows: the log, alike in each.
HEAD = "l.incarnation, l.steps, l.stopped, l.tail, l.removed"

STATUS = f"SELECT {HEAD} FROM {{0}}.log l WHERE l.incarnation = %(log)s"  # noqa: S608
GET = f"""
SELECT {HEAD}, k.key, k.value FROM {{0}}.log l
LEFT JOIN {{0}}.key k ON k.log_id = l.log_id AND k.key = ANY (%(keys)s::bytea[])
    AND (k.ends IS NULL OR k.ends > {{0}}.now_1())
WHERE l.incarnation = %(log)s
"""  # noqa: S608 - our own words
SCAN = f"""
SELECT {HEAD}, k.key, k.value FROM {{0}}.log l
LEFT JOIN {{0}}.key k ON k.log_id = l.log_id AND k.key >= %(from)b AND k.key < %(to)b
    AND (k.ends IS NULL OR k.ends > {{0}}.now_1())
WHERE l.incarnation = %(log)s
"""  # noqa: S608 - our own words
PAGE_OF_KEYS = f"""
SELECT {HEAD}, k.key, k.value FROM {{0}}.log l
LEFT JOIN {{0}}.key k ON k.log_id = l.log_id AND k.key > %(after)b
WHERE l.incarnation = %(log)s ORDER BY k.key LIMIT %(limit)s::int8
"""  # noqa: S608 - our own words
REMAINING = f"""
SELECT {HEAD}, k.key, k.ends, k.term_s, {{0}}.now_1() FROM {{0}}.log l
LEFT JOIN {{0}}.key k ON k.log_id = l.log_id AND k.key = %(key)b
WHERE l.incarnation = %(log)s
"""  # noqa: S608 - our own words
# Each row: how many entries there are within the limit, and one of them; there is none behind the
# tail unless the log is damaged. Bodies are summed up by
# their sizes, which are known without reading them.
_BOUNDED = f"""
SELECT {HEAD}, e.there, e.lsn, e.at_us, e.tags, e.checksum, e.body FROM {{0}}.log l
LEFT JOIN LATERAL (
    SELECT candidate.*, count(*) OVER () AS there,
        sum(octet_length(body)) OVER (ORDER BY lsn) AS bytes, row_number() OVER (ORDER BY lsn) AS at
    FROM (%s) AS candidate
) AS e ON coalesce(e.bytes, 0) <= %%(bytes)s::int8 OR e.at = 1
WHERE l.incarnation = %%(log)s ORDER BY e.lsn
"""  # noqa: S608 - our own words
READ = (
    _BOUNDED
    % """
    SELECT lsn, at_us, tags, checksum, body FROM {0}.entry
    WHERE log_id = l.log_id AND lsn > %(after)s::int8
    ORDER BY lsn LIMIT %(limit)s::int8
    """
)
READ_TAG = (
    _BOUNDED
    % """
    SELECT t.lsn, n.at_us, n.tags, n.checksum, n.body FROM {0}.tag t
    LEFT JOIN {0}.entry n ON n.log_id = t.log_id AND n.lsn = t.lsn
    WHERE t.log_id = l.log_id AND t.tag = %(tag)b AND t.lsn > %(after)s::int8
    ORDER BY t.lsn LIMIT %(limit)s::int8
    """
)
DOOMED = f"""
SELECT {HEAD}, e.lsn, e.tags FROM {{0}}.log l
LEFT JOIN LATERAL (
    SELECT lsn, tags FROM {{0}}.entry
    WHERE log_id = l.log_id AND lsn <= least(%(through)s::int8, l.tail)
    ORDER BY lsn LIMIT %(limit)s::int8
) AS e ON true
WHERE l.incarnation = %(log)s ORDER BY e.lsn
"""  # noqa: S608 - our own words


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


def end_hanging(log: PostgresConnection) -> str:
    """End those of which nothing was heard for a second; whose could not be, in words."""
    found = log.read(_HANGING.format(log.schema), {"log": log.incarnation, "hangs_s": _HANGS_S})
    return ", ".join(told for each in found if (told := _end(log, *each)))


def _end(log: PostgresConnection, pid: int, user: str, application: str) -> str:
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


_KEYS = "bytea[] bytea[]"
_STAMPS = {Stamp.NONE: "-", Stamp.FIRST: "f", Stamp.LAST: "l"}
_BETWEEN = b"\n"
# How many entries one transaction removes.
_PIECE = 1000


class _Head(NamedTuple):
    """What every read tells of the log."""

    tail: int
    removed: int


class PostgresEngine:
    """An ``Engine`` over PostgreSQL 14 or newer; any thread, any number of machines.

    Every write is one statement that locks the log's row and judges then; appends of threads
    that meet share one transaction. ``durability`` says what the server's settings promise; with
    the address's ``durability=require`` (the default), a server that may forget what it
    acknowledged is refused (``NotDurable``). A failover or a restore that may have lost something
    stops the log for everyone (``CorruptLog``) until an operator accepts that.
    """

    limits = Limits(entries=10_000, append_bytes=64 << 20, operations=20_000)

    def __init__(
        self,
        address: PostgresAddress,
        begin: Begin,
        *,
        owner: Owner = LOG,
        read_only: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Open the log whose incarnation ``begin`` finds, or makes.

        ``read_only``: for tools, which look at a log that has stopped, too. Terms of keys end by
        the server's clock; ``clock`` is this machine's.
        """
        self._connection = PostgresConnection(address, owner, begin, read_only=read_only)
        self._channel = f"sharedlog_{self._connection.incarnation}"
        self._listener = Waiting(self._connection, self._channel)
        self._group_commit = GroupCommit(self._write)
        self._terms = ServerTerms(clock)
        self._joining = ServerTransactions(self._connection, self._channel)
        # For a consumer's store in the same database.
        self.joined_commits = JoinedCommits(self._connection, self._arguments)
        belongs_here(self)

    @property
    def durability(self) -> str:
        """What the store promises of an append that returned, in a sentence."""
        return self._connection.durability

    def commit(self, commit: Commit) -> Lsns:
        """Commit, or raise ``Refused`` with the values of the conditions' keys."""
        check_commit(commit, self.limits)
        return self._group_commit.commit(commit)

    def _write(self, together: Sequence[PendingCommit]) -> None:
        """Judge and write them in their order, in one transaction."""
        calls = [(_types(each.commit), self._arguments(each.commit)) for each in together]
        for each, row in zip(together, self._connection.call_all("commit_1", calls), strict=True):
            first, last, steps, copied, found = row
            self._connection.saw(steps, copied=copied)
            if found is None:
                each.done(Lsns(first, last))
            else:
                asked = (condition.key for condition in each.commit.conditions)
                try:
                    each.done(Refused(values_of(dict(zip(asked, found, strict=True)))))
                except CorruptLog as error:
                    each.failed(error)

    def _arguments(self, commit: Commit) -> list[Any]:
        tags = [[tag.encode() for tag in entry.tags] for entry in commit.entries]
        joined = [_BETWEEN.join(each) for each in tags]
        terms = [each.term_s for each in commit.puts]
        tagged = [(tag, n) for n, each in enumerate(tags, 1) for tag in dict.fromkeys(each)]
        return [
            [each.key.encode() for each in commit.conditions],
            [expected(*each) for each in commit.conditions],
            [each.key.encode() for each in commit.puts],
            [sent(each) for each in commit.puts],
            "".join(_STAMPS[each.stamp] for each in commit.puts),
            commit.at_us,
            joined,
            [
                _checksum(text, entry.body)
                for text, entry in zip(joined, commit.entries, strict=True)
            ],
            [bytes(entry.body) for entry in commit.entries],
            [tag for tag, _ in tagged],
            [n for _, n in tagged],
            self._channel,
            terms if any(terms) else [],
        ]

    def get(self, keys: tuple[str, ...]) -> dict[str, bytes | None]:
        """Return the values of these keys as of one moment."""
        _, rows = self._ask(GET, {"keys": [key.encode() for key in keys]})
        found = named_values((key, value) for key, value in rows if key is not None)
        return {key: found.get(key) for key in keys}

    def scan(self, prefix: str) -> dict[str, bytes]:
        """Return the keys with this prefix, and their values, as of one moment."""
        begin = prefix.encode()
        # No byte of UTF-8 is 255.
        _, rows = self._ask(SCAN, {"from": begin, "to": begin + b"\xff"})
        return named_values((key, value) for key, value in rows if key is not None)

    def damaged(self) -> list[str]:
        """Return in words which keys are damaged."""

        def page(after: bytes) -> list[tuple[bytes, bytes]]:
            _, rows = self._ask(PAGE_OF_KEYS, {"after": after, "limit": PAGE})
            return [(key, value) for key, value in rows if key is not None]

        return damage(paged(page))

    def remaining(self, key: str) -> float:
        """Return the seconds left of a key's term, by the server's clock (``ServerTerms``)."""
        _, rows = self._ask(REMAINING, {"key": key.encode()})
        there, ends, term_s, now_s = rows[0]
        if ends is None:
            return 0.0 if there is None else float("inf")
        return self._terms.remaining_s(Term(0, "", ends, term_s), now_s)

    def read(self, after: int, limit: int, tag: str | None = None) -> Rows:
        """Return rows with LSN above ``after``, with the tag if one is given."""
        names: dict[str, Any] = {"after": after, "limit": limit, "bytes": READ_BYTES}
        if tag is None:
            head, parts = self._ask(READ, names)
        else:
            head, parts = self._ask(READ_TAG, names | {"tag": tag.encode()})
        if after < head.removed:
            raise TrimmedLog(f"what follows LSN {after} was trimmed", head.removed + 1)
        there = parts[0][0] or 0
        rows = [_row(part[1:]) for part in parts if part[1] is not None]
        if rows and rows[-1].lsn > head.tail:
            raise CorruptLog(f"the log ends at LSN {head.tail}, and has an entry {rows[-1].lsn}")
        if tag is None:
            lsns = [row.lsn for row in rows]
            if lsns != list(range(after + 1, after + 1 + len(rows))):
                raise CorruptLog(f"entries behind LSN {after} are missing")
            if there < min(limit, head.tail - after):
                raise CorruptLog(f"LSN {after + there + 1} is missing")
        elif any(tag not in row.tags for row in rows):
            raise CorruptLog(f"an entry behind LSN {after} does not have its tag {tag!r}")
        cut = len(rows) < there or there == limit
        return Rows(rows, rows[-1].lsn if cut and rows else max(after, head.tail))

    def tail(self) -> int:
        """Return the LSN of the last entry, 0 if there was never one."""
        return self._ask(STATUS, {})[0].tail

    def first(self) -> int:
        """Return the LSN of the oldest row that is there; tail + 1 if there is none."""
        return self._ask(STATUS, {})[0].removed + 1

    def wait(self, after: int, timeout_s: float) -> int:
        """Wait until the tail is above ``after``, or the timeout passes; return the tail."""
        return self._listener.wait(self.tail, after, timeout_s)

    def remove(self, through: int) -> None:
        """Remove the rows through this LSN, and their tags; idempotent."""
        while True:
            _, rows = self._ask(DOOMED, {"through": through, "limit": _PIECE})
            # Unchecked: damaged ones are removed, too.
            doomed = [(lsn, tags.split(_BETWEEN)) for lsn, tags in rows if lsn is not None]
            if not doomed:
                return
            tagged = [(tag, lsn) for lsn, tags in doomed for tag in set(tags) if tag]
            last = doomed[-1][0]
            arguments = [last, [tag for tag, _ in tagged], [lsn for _, lsn in tagged]]
            ((steps,),) = self._connection.call_all("remove_1", [(_REMOVED, arguments)])
            self._connection.saw(steps)

    def append_in(self, connection: Any, within: Within) -> None:
        """Append in the transaction of a connection, which commits it or rolls it back."""
        self._joining.append(connection, within)

    async def append_in_aio(self, connection: Any, within: Within) -> None:
        """Append in the transaction of an asynchronous connection, or of a blocking one."""
        await self._joining.append_aio(connection, within)

    def make_way(self) -> str:
        """End hanging transactions that block the log's writers; return which cannot be ended."""
        return end_hanging(self._connection)

    def close(self) -> None:
        """Close files and connections; idempotent."""
        self._listener.close()
        self._connection.close()

    def _ask(self, statement: str, names: Mapping[str, Any]) -> tuple[_Head, list[Any]]:
        """Return where the log stands, and the rest of each row."""
        connection, seen = self._connection, self._connection.seen
        rows = connection.read(
            statement.format(connection.schema), {"log": connection.incarnation, **names}
        )
        incarnation, steps, stopped, tail, removed = rows[0][:5] if rows else (None, 0, "", 0, 0)
        connection.check_head(incarnation, steps, stopped, seen)
        return _Head(tail, removed), [row[5:] for row in rows]


def _types(commit: Commit) -> str:
    """Name the arguments' types; an empty list has none of its own in binary."""
    bodies = "bodies" if commit.entries else "bytea[]"
    return f"{_KEYS} {_KEYS} text int8 bytea[] int8[] {bodies} bytea[] int8[] text float8[]"


def _row(part: Sequence[Any]) -> Row:
    lsn, at_us, tags, checksum, body = part
    if body is None:
        raise CorruptLog(f"LSN {lsn} is missing")
    if _checksum(tags, body) != checksum:
        raise CorruptLog(f"LSN {lsn} is damaged")
    return Row(lsn, body, _tags(tags), at_us)


def _tags(joined: bytes) -> tuple[str, ...]:
    return tuple(joined.decode().split("\n")) if joined else ()


def _checksum(tags: bytes, body: bytes) -> int:
    return zlib.crc32(body, zlib.crc32(tags))
