"""Names of sessions: which one a row's key belongs to, and when it closes (DESIGN §8). Pure.

A stream's micro-batch ``b`` of query ``q`` is the session ``spark/q#b+1``; number 0
is the query's own, opened with batch 0. The numbers are a series to the lease
server: closing one closes all below it, for good.

Rules:

1. Before batch ``b > 0`` sends anything, session ``b - 1`` is closed again, which
   changes nothing in a series that is known, since the commit of the batch before
   did it. One that is *not* known says that the server does not remember this
   query: the checkpoint is older than its retention, or the server is another.
   Then nothing is sent.
2. The commit of batch ``b`` closes session ``b``, the one of the batch before, and
   not its own: Spark may run batch ``b`` again after a crash between the sink's
   commit and its own. A session without a call is forgotten after a term, and a batch
   may have no rows: what is not known then is opened to be closed, since rule 1 found
   the server to remember. So a committed batch leaves a closed number behind.
3. Abort closes nothing: what was executed stays executed, and known.

A query, and each checkpoint of it, has *marks*: numbers of a series that is only closed. Number 0
is made when it begins, ``b + 1`` when micro-batch ``b`` is committed: the checkpoint's first.

4. Before batch ``b`` sends anything, marks ``b`` and ``b + 1`` of the query are not there, or are
   the checkpoint's, too. Else another checkpoint began or committed it, of which this is a copy
   elsewhere, and may have other rows in it. Adopted, it begins all the same, and makes both.
5. Its session takes the calls of one *writer* alone, a run over one checkpoint. Before it sends
   anything, a run takes the session: from no writer, from another run over its checkpoint, or,
   adopted, from any. That is one compare-and-set, so of two copies one goes on; the other one's
   calls are refused from then on. The run that is followed is marked first: it takes no session
   of the query again, and commits nothing.

Calls in a stream, and writes within ``foreachBatch``, have a name, and series of their
own. Spark runs none of their tasks for a micro-batch in which they have no rows, so
theirs have gaps: a session that is not known was never opened. In a Connect server their tasks
are told no query: their name stands for it, and the user gives the number.

6. Before batch ``b > 0`` of such a series sends anything, session ``b - 1`` is closed,
   with all before it, and opened first if it never was. There is no commit to do more.
"""

from __future__ import annotations

import hashlib
import uuid
from typing import NamedTuple

from rifl.spark._errors import IdentityError

# The names of sessions have 256 characters at most; a query's id and a number follow.
_SERIES_CHARS = 180


# Of a writer's bytes: its place, and its run.
_HALF = 16
# In the place of a query's id.
_NAMED = "named"


class MicroBatch(NamedTuple):
    """One micro-batch of one query, stable across restarts from its checkpoint but for its run.

    ``gaps``: its series may lack micro-batches (rule 6). ``place``: where its checkpoint is; "":
    copies of it are not told apart. ``run``: the query's, since it was started.
    """

    series: str
    batch: int
    gaps: bool = False
    place: str = ""
    run: str = ""

    @classmethod
    def of(
        cls,
        query_id: str | None,
        batch_id: str | None,
        series: str = "spark",
        *,
        gaps: bool = False,
    ) -> MicroBatch:
        """Read what the task's local properties say; raises ``IdentityError``."""
        if not query_id or not batch_id or not batch_id.isdecimal():
            raise IdentityError(
                "Spark tells this task no query id and batch id (local properties "
                "sql.streaming.queryId and streaming.sql.batchId): without them rows of "
                "different micro-batches could not be told apart. Continuous mode and other "
                "execution modes are not supported; nothing was sent."
            )
        return cls(f"{series}/{query_id}", int(batch_id), gaps)

    @classmethod
    def named(cls, series: str, batch_id: int) -> MicroBatch:
        """Return one of a query that only its name identifies; no query has the id ``named``."""
        return cls(f"{series}/{_NAMED}", batch_id, gaps=True)

    @property
    def query(self) -> str | None:
        """The query's id, which ends the series; None: Spark told none (``named``)."""
        last = self.series.rpartition("/")[2]
        return None if last == _NAMED else last

    @property
    def session(self) -> str:
        """The session that this batch's rows belong to."""
        return f"{self.series}#{self.batch + 1}"

    @property
    def root(self) -> str | None:
        """The query's own session, which batch 0 opens first."""
        return f"{self.series}#0" if self.batch == 0 and not self.gaps else None

    @property
    def closed_before(self) -> str | None:
        """The session that is closed before this batch sends (rules 1 and 6)."""
        return f"{self.series}#{self.batch - 1}" if self.batch > 0 else None

    def marks(self, number: int) -> tuple[str, str]:
        """Return the sessions whose end is a mark: of its checkpoint, of its query (rule 4)."""
        place = _half(self.place).hex()
        return f"{self.series}/at/{place}#{number}", f"{self.series}/at#{number}"

    @property
    def writer(self) -> bytes:
        """Who writes its session (rule 5); empty: copies are not told apart."""
        return _half(self.place) + _half(self.run) if self.place else b""

    def is_here(self, writer: bytes) -> bool:
        """Tell whether a writer is a run over this checkpoint."""
        return writer.startswith(_half(self.place))

    def followed(self, writer: bytes) -> str:
        """Return the session whose end says that a run was followed (rule 5)."""
        return f"{self.series}/followed/{writer.hex()}"

    @property
    def closed_by_commit(self) -> str:
        """The session that ends, with all before it, when this batch is committed."""
        return f"{self.series}#{self.batch}"


def _half(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()[:_HALF]


def run_session() -> str:
    """Return a fresh name for a write whose user gave none."""
    return f"spark/run/{uuid.uuid4()}"


def call_session() -> str:
    """Return a fresh name for an enrichment whose user gave none."""
    return f"spark/call/{uuid.uuid4()}"


def named_series(kind: str, method: str, name: str) -> str:
    """Return the series of something named within a query, before the query's id."""
    series = f"spark/{kind}{method}/{name}"
    if len(series) <= _SERIES_CHARS:
        return series
    return f"spark/{kind}/{hashlib.sha256(series.encode()).hexdigest()}"


def batch_session(name: str) -> str:
    """Check a user's own name for a session; raises ``ValueError``."""
    if not 1 <= len(name) <= 200:
        raise ValueError("the name of a session has 1 to 200 characters")
    if "#" in name:
        raise ValueError(f"the session {name!r}: '#' is for numbered sessions")
    return name


def done_mark(name: str) -> str:
    """Return the name that is closed beside a session of the user's that was finished."""
    return f"spark/done/{name}"
