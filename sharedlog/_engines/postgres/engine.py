"""``Engine`` over PostgreSQL."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from _rifl_ground.postgres.address import PostgresAddress
from sharedlog._core.commit import Commit, Refused, Stamp
from sharedlog._core.entry import Row
from sharedlog._core.errors import CorruptLog, TrimmedLog
from sharedlog._core.steps import Lsns, Rows
from sharedlog._core.within import Within
from sharedlog._engines.checks import check_commit
from sharedlog._engines.engine import READ_BYTES, Limits
from sharedlog._engines.forks import belongs_here
from sharedlog._engines.group_commit import GroupCommit, Pending
from sharedlog._engines.owner import LOG, Owner
from sharedlog._engines.postgres import statements
from sharedlog._engines.postgres.connection import Begin, Connection
from sharedlog._engines.postgres.hanging import end_hanging
from sharedlog._engines.postgres.joined_commits import JoinedCommits
from sharedlog._engines.postgres.joining import ServerTransactions
from sharedlog._engines.postgres.waiting import Waiting
from sharedlog._engines.terms import ServerTerms, Term

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
        self._connection = Connection(address, owner, begin, read_only=read_only)
        self._channel = f"sharedlog_{self._connection.incarnation}"
        self._listener = Waiting(self._connection, self._channel)
        self._group_commit = GroupCommit(self._write)
        self._terms = ServerTerms(clock)
        self._joining = ServerTransactions(self._connection, self._channel)
        # For a store of ours that is in the same database.
        self.joined_commits = JoinedCommits(self._connection, self._arguments)
        belongs_here(self)

    @property
    def durability(self) -> str:
        """See ``Engine``."""
        return self._connection.durability

    def commit(self, commit: Commit) -> Lsns:
        """See ``Engine``."""
        check_commit(commit, self.limits)
        return self._group_commit.commit(commit)

    def _write(self, together: Sequence[Pending]) -> None:
        """Judge and write them in their order, in one transaction."""
        calls = [(_types(each.commit), self._arguments(each.commit)) for each in together]
        for each, row in zip(together, self._connection.call_all("commit_1", calls), strict=True):
            first, last, steps, copied, found = row
            self._connection.saw(steps, copied=copied)
            if found is None:
                each.done(Lsns(first, last))
            else:
                asked = (condition.key for condition in each.commit.conditions)
                each.done(Refused(dict(zip(asked, found, strict=True))))

    def _arguments(self, commit: Commit) -> list[Any]:
        tags = [[tag.encode() for tag in entry.tags] for entry in commit.entries]
        joined = [_BETWEEN.join(each) for each in tags]
        terms = [each.term_s for each in commit.puts]
        tagged = [(tag, n) for n, each in enumerate(tags, 1) for tag in dict.fromkeys(each)]
        return [
            [each.key.encode() for each in commit.conditions],
            [each.value for each in commit.conditions],
            [each.key.encode() for each in commit.puts],
            [each.value for each in commit.puts],
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
        """See ``Engine``."""
        _, rows = self._ask(statements.GET, {"keys": [key.encode() for key in keys]})
        found = {key.decode(): value for key, value in rows if key is not None}
        return {key: found.get(key) for key in keys}

    def scan(self, prefix: str) -> dict[str, bytes]:
        """See ``Engine``."""
        begin = prefix.encode()
        # No byte of UTF-8 is 255.
        _, rows = self._ask(statements.SCAN, {"from": begin, "to": begin + b"\xff"})
        try:
            return {key.decode(): value for key, value in rows if key is not None}
        except UnicodeDecodeError as error:
            raise CorruptLog(f"a key of the log is damaged: {error}") from error

    def remaining(self, key: str) -> float:
        """See ``Engine``; by the server's clock (see ``ServerTerms``)."""
        _, rows = self._ask(statements.REMAINING, {"key": key.encode()})
        there, ends, term_s, now_s = rows[0]
        if ends is None:
            return 0.0 if there is None else float("inf")
        return self._terms.remaining_s(Term(0, "", ends, term_s), now_s)

    def read(self, after: int, limit: int, tag: str | None = None) -> Rows:
        """See ``Engine``."""
        names: dict[str, Any] = {"after": after, "limit": limit, "bytes": READ_BYTES}
        if tag is None:
            head, parts = self._ask(statements.READ, names)
        else:
            head, parts = self._ask(statements.READ_TAG, names | {"tag": tag.encode()})
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
        """See ``Engine``."""
        return self._ask(statements.STATUS, {})[0].tail

    def first(self) -> int:
        """See ``Engine``."""
        return self._ask(statements.STATUS, {})[0].removed + 1

    def wait(self, after: int, timeout_s: float) -> int:
        """See ``Engine``."""
        return self._listener.wait(self.tail, after, timeout_s)

    def remove(self, through: int) -> None:
        """See ``Engine``."""
        while True:
            _, rows = self._ask(statements.DOOMED, {"through": through, "limit": _PIECE})
            # As they are: damaged ones go, too.
            doomed = [(lsn, tags.split(_BETWEEN)) for lsn, tags in rows if lsn is not None]
            if not doomed:
                return
            tagged = [(tag, lsn) for lsn, tags in doomed for tag in set(tags) if tag]
            last = doomed[-1][0]
            arguments = [last, [tag for tag, _ in tagged], [lsn for _, lsn in tagged]]
            (steps,) = self._connection.call("remove_1", "int8 bytea[] int8[]", arguments)
            self._connection.saw(steps)

    def append_in(self, connection: Any, within: Within) -> None:
        """See ``Joining``."""
        self._joining.append(connection, within)

    async def append_in_aio(self, connection: Any, within: Within) -> None:
        """See ``Joining``."""
        await self._joining.append_aio(connection, within)

    def make_way(self) -> str:
        """See ``Joining``."""
        return end_hanging(self._connection)

    def close(self) -> None:
        """See ``Engine``."""
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
