"""A named session as the user handles it: opened, kept, closed by name."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rifl.spark._driver import SessionGone, WriteDriver
from rifl.spark._errors import AlreadyDone, PlanError
from rifl.spark._options import ConnectionOptions, WriteOptions
from rifl.spark._session_names import batch_session

_TIMEOUT_S = 60.0


def session(
    target: str, name: str, *, retention: float | None = None, **options: str
) -> NamedSession:
    """Open the session ``name`` on the server, or find it open; on the driver.

    Rows written with ``option("session", name)`` have their effect once while the
    session is open: the job may be run again, after any failure. It ends when it is
    closed, by ``NamedSession.close`` or ``option("closeSession", "true")``, or was not used
    for ``retention`` seconds (None: the server's default, a day unless configured); its
    name is then refused for a week. One in which nothing was written within the server's
    term (a minute) is forgotten, and begins anew with the first write: give that the same
    ``retention``. As a context manager it closes unless an error
    leaves it. ``options`` are the sinks' for TLS and metadata. Raises ``PlanError``, and
    of those ``AlreadyDone`` for a name that was closed here.
    """
    given = {"target": target, "method": "/-/-", "key": "-", **options}
    connection = WriteOptions.read(given).connection
    return NamedSession(connection, name, retention)


class NamedSession:
    """One named session; see ``session``. Any thread; not picklable on purpose."""

    def __init__(self, connection: ConnectionOptions, name: str, retention: float | None) -> None:
        try:
            self.name = batch_session(name)
        except ValueError as error:
            raise PlanError(str(error)) from error
        self._connection = connection
        with WriteDriver(connection, _TIMEOUT_S) as driver:
            try:
                driver.open_session(name, retention, None)
            except SessionGone as error:
                if driver.finished(name):
                    raise AlreadyDone(name) from error
                raise PlanError(f"the session {name!r} is past its retention") from error

    def close(self) -> None:
        """End the session for good: its rows then count as new ones.

        Later writes of this name are refused. Closing twice is the same as once.
        """
        with WriteDriver(self._connection, _TIMEOUT_S) as driver:
            driver.finish_session(self.name)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
