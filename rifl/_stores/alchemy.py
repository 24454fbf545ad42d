"""SQLAlchemy's sessions and connections in a ``rifl.transaction``, which they do not commit."""

from __future__ import annotations

from typing import Any

from _rifl_ground.drivers import is_of, session_of
from rifl._stores.errors import WrongDatabase


class TransactionWatch:
    """The watch over a ``Session`` or ``Connection`` whose transaction is begun.

    Its ``commit()`` is refused. Its ``rollback()`` is not, as a flush that fails calls it: what
    runs afterwards is another transaction, see ``is_over``.
    """

    def __init__(self, target: Any, name: str) -> None:
        from sqlalchemy import event

        self._target = target
        self._name = name
        self._transaction = target.get_transaction()
        event.listen(target, name, self._refuse)

    @property
    def is_over(self) -> bool:
        """Whether the transaction was rolled back, or is closed."""
        return self._target.get_transaction() is not self._transaction

    def end(self) -> None:
        """Let it commit; idempotent."""
        from sqlalchemy import event

        if event.contains(self._target, self._name, self._refuse):
            event.remove(self._target, self._name, self._refuse)

    def _refuse(self, target: Any) -> None:
        if self._name == "before_commit" and target.in_nested_transaction():
            return
        raise WrongDatabase(
            "rifl.transaction commits what is written in its block: leave the block, or use "
            "begin_nested"
        )


def watch(transaction: Any) -> TransactionWatch | None:
    """Watch over what holds a transaction of SQLAlchemy's; None: it is none of these."""
    transaction = session_of(transaction)
    if is_of(transaction, "sqlalchemy.ext.asyncio.session", "AsyncSession"):
        transaction = transaction.sync_session
    if is_of(transaction, "sqlalchemy.ext.asyncio.engine", "AsyncConnection"):
        transaction = transaction.sync_connection
    if is_of(transaction, "sqlalchemy.orm.session", "Session"):
        return TransactionWatch(transaction, "before_commit")
    if is_of(transaction, "sqlalchemy.engine.base", "Connection"):
        return TransactionWatch(transaction, "commit")
    return None
