"""Dead rows of unknown outcome, settled in the server's store.

Apart from ``_dead_letters``, which each process of Spark loads: stores take a tenth of its start.
"""

from __future__ import annotations

from collections import Counter
from contextlib import closing

from pyspark.sql import DataFrame
from pyspark.sql import functions as sql

from rifl._stores import Settlement, settle_unknown
from rifl._stores.opening import open_inspection
from rifl.core._shared.identity import RpcId
from rifl.spark._errors import PlanError

__all__ = ["settle"]


def settle(dead: DataFrame, store: str, *, executed: str, who: str, why: str) -> dict[str, int]:
    """Say of dead rows with an unknown outcome whether they ran; how many are now what.

    ``dead`` has the columns of dead letters, and a boolean one named ``executed``: true if
    the service's own tables have the row's effect, false if they do not, null if that is
    unknown (those are left). Only rows whose ``rifl_outcome`` is ``unknown`` count.
    ``store`` is the URL of the server's store, opened here, on the driver; ``who`` and
    ``why`` are kept there. Written again under their session, rows that ran count as
    replayed, and those that did not are executed.

    The counts are by ``executed``, ``not-executed``, ``answered`` (it has an answer, which
    stands), ``gone`` (its session has ended) and ``undecided``. Repeating it changes nothing.
    Raises ``PlanError`` for contradictions and sessions that the store does not have, before
    anything is settled; a ``StoreError`` where a server that may still run a row has the
    store: stop it first (``rifl unknown settle``).
    """
    keyed = (sql.col("rifl_outcome") == "unknown") & sql.col("rifl_key").isNotNull()
    told = dead.where(keyed).select("rifl_session", "rifl_key", sql.col(executed).cast("boolean"))
    rows = [tuple(row) for row in told.distinct().collect()]
    verdicts: dict[tuple[str, bytes], bool | None] = {}
    for session, key, ran in rows:
        named = (str(session), bytes(key))
        if named in verdicts:
            raise PlanError(f"a row of {session!r} is said to have run, and something else, too")
        verdicts[named] = ran
    ids = _client_ids(store, {session for session, _ in verdicts})
    counts: Counter[str] = Counter()
    for ran in (True, False):
        calls = [
            RpcId(ids[session], key=key)
            for (session, key), verdict in verdicts.items()
            if verdict is ran
        ]
        settled = settle_unknown(store, calls, Settlement(ran, who, why))
        counts.update(each.value for each in settled.values())
    undecided = sum(verdict is None for verdict in verdicts.values())
    return {**counts, **({"undecided": undecided} if undecided else {})}


def _client_ids(store: str, sessions: set[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    with closing(open_inspection(store)) as opened:
        for client in opened.clients():
            named = client.session
            if named is None or named.name not in sessions:
                continue
            if named.name in found:
                raise PlanError(
                    f"several callers have a session {named.name!r}: use `rifl unknown`"
                )
            found[named.name] = client.client_id
    missing = sorted(sessions - set(found))
    if missing:
        raise PlanError(f"the store has no session {missing[0]!r}")
    return found
