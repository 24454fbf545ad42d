"""The recovery of a store over SQLite: what its earlier incarnations left (DESIGN §4)."""

from __future__ import annotations

from collections.abc import Iterable

from _rifl_ground.log import get_logger
from lease_server._sessions import SessionRow, SessionState
from rifl._stores.sqlite.database import Database, unpack_ranges
from rifl._stores.sqlite.databases import Databases
from rifl.core._serving.answer import refusal_record
from rifl.core._serving.client_table import ClientTable
from rifl.core._serving.policy import MethodPolicies
from rifl.core._shared.errors import OutcomeUnknown
from rifl.core._shared.identity import RpcId

_log = get_logger("rifl.store")
_LOGGED_IDENTITIES = 20


class Recovery:
    """Gives every open intent its verdict, and reads the trackers back into a ``ClientTable``.

    ``now``: by the store's clock. Nothing else writes to the files yet.
    """

    def __init__(
        self,
        table: ClientTable,
        policies: MethodPolicies,
        *,
        now: float,
    ) -> None:
        self._table = table
        self._policies = policies
        self._now = now

    def recover(self, databases: Databases) -> None:
        """Take over what each file holds, the store's own first.

        Raises ``ValueError``, ``TypeError`` or ``sqlite3.DatabaseError`` for rows that are
        not ours.
        """
        for database in databases:
            self._judge_intents(databases, database)
            self._read_back(database)

    def recover_sessions(self, rows: Iterable[SessionRow]) -> None:
        """Know the sessions that are open."""
        # Known before its first record: what an earlier incarnation ran of it, without an
        # intent, may have left no trace (see ``may_have_run``).
        for row in rows:
            if row.state is SessionState.OPEN:
                self._table.entry(row.client_id)

    def _judge_intents(self, databases: Databases, database: Database) -> None:
        verdict = refusal_record(
            OutcomeUnknown("the server stopped while the call ran; what it did is not known")
        )
        if database.incarnation > 1:
            _log.info("taken_over", database=database.name, incarnation=database.incarnation)
        intents = database.intents()
        # The retention of a verdict counts from this start.
        until_s = {each[:2]: self._until_s(*each[:3]) for each in intents}
        database.close_intents(verdict, until_s)
        if lost := [_named(*each[:3]) for each in intents if each[3]]:
            some = lost[:_LOGGED_IDENTITIES]
            _log.warning("outcomes_unknown", calls=len(lost), database=database.name, some=some)
        if len(databases) == 1:
            database.forget_namespaces()
        if database is not databases.main:
            database.forget_others({row[0] for row in databases.main.clients()})

    def _read_back(self, database: Database) -> None:
        for client_id, first_incomplete, completed in database.clients():
            entry = self._table.entry(client_id)
            entry.registered.add(database.name)
            entry.tracker.acknowledge(first_incomplete, unpack_ranges(completed))
        for client_id, seq, fingerprint in database.calls():
            if not isinstance(seq, int):
                raise ValueError(f"{seq!r} is no seq")
            tracker = self._table.entry(client_id).tracker
            if tracker.is_stale(seq):
                # Its caller gave it up while it ran: that it is unknown is remembered.
                self._table.released.append((client_id, seq))
            else:
                # Its seed is in the record.
                tracker.restore(seq, (fingerprint, None, 0))

    def _until_s(self, client_id: int, identity: int | bytes, method: str) -> float | None:
        if isinstance(identity, int):
            return None
        policy = self._policies.find(method)
        retention_s = None if policy is None else policy.retention_s
        return self._table.kept_until(client_id, retention_s, self._now)


def _named(client_id: int, identity: int | bytes, method: str) -> str:
    if isinstance(identity, bytes):
        return f"{RpcId(client_id, None, identity)} {method}"
    return f"{RpcId(client_id, identity)} {method}"
