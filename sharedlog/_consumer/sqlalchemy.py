"""SQLAlchemy over a handler's transaction: a ``Connection`` of its driver's connection."""

from __future__ import annotations

from typing import Any

from _rifl_ground.loans import Loan
from sharedlog._core.errors import InvalidRequest

_OURS = "the consumer commits what handlers write with (begin_nested is yours)"


class Alchemy:
    """What gives SQLAlchemy's connections of one connection of a driver's, again and again."""

    def __init__(self, kind: str, connection: Any) -> None:
        """``kind``: of SQLAlchemy's dialects. ``connection``: lent, by one loan after the other.

        Raises ``InvalidRequest`` if SQLAlchemy is not there.
        """
        try:
            import sqlalchemy
        except ModuleNotFoundError as error:
            raise InvalidRequest(f"effects.sqlalchemy needs SQLAlchemy 2: {error}") from error
        self.connection = connection
        self._lent = False
        self._engine = sqlalchemy.create_engine(
            f"{kind}://",
            creator=lambda: connection,
            poolclass=sqlalchemy.pool.StaticPool,
            pool_reset_on_return=None,
        )
        dialect: Any = self._engine.dialect
        dialect.do_begin = dialect.do_close = dialect.do_terminate = _nothing
        dialect.do_commit = dialect.do_rollback = self._refuse
        self._given: Any = None

    def begin(self, loan: Loan) -> Any:
        """Return a ``sqlalchemy.Connection`` in the transaction that runs, the same until ``end``.

        It neither commits nor rolls back; a session that is bound to it flushes where it would.
        ``loan``: of the handler that asks for it.
        """
        self.connection.loan = loan
        if self._given is None:
            given = self._engine.connect()
            given.begin()
            self._given = given
            self._lent = True
        return self._given

    def end(self) -> None:
        """The handler has ended: what was given is of no use any more."""
        self._lent = False
        given, self._given = self._given, None
        if given is not None:
            given.close()

    def _refuse(self, _: Any) -> None:
        if self._lent:
            raise InvalidRequest(_OURS)


def _nothing(_: Any) -> None:
    return None
