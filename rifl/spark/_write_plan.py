"""The plan of a write: made on the driver, pickled to its tasks, which join the session by it."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import pyarrow

from rifl._client import CallError
from rifl.spark._connections import WorkerChannel, drop_channel, worker_channel
from rifl.spark._dead_letters import prepare_directory, without_dead_letter_columns
from rifl.spark._delivery import RowDelivery
from rifl.spark._descriptors import MethodShape
from rifl.spark._driver import SessionGone, WriteDriver, process_driver
from rifl.spark._errors import AlreadyDone, IdentityError, PlanError
from rifl.spark._keys import KeyPlan
from rifl.spark._options import ConnectionOptions, WriteOptions
from rifl.spark._report import check_metrics
from rifl.spark._requests import RequestPlan, fields_in_any_case, plan_request
from rifl.spark._session_names import MicroBatch, run_session


@dataclass(frozen=True, slots=True, kw_only=True)
class WritePlan:
    """All that tasks need, decided on the driver. Picklable; holds no secret.

    ``session`` is a batch write's or the user's own; None for a stream without one.
    ``store`` is the number of the server's store when this was planned: no other store has it.
    ``schema`` is of the columns that are read: those that dead letters add are left out,
    so that a dead row can be sent again unchanged. ``run`` is this plan's own name;
    ``dead_token`` that of the dead letters' directory.
    """

    options: WriteOptions
    schema: pyarrow.Schema
    shape: MethodShape
    session: str | None
    store: int
    run: str
    dead_token: str | None = None

    @classmethod
    def make(
        cls,
        options: WriteOptions,
        schema: pyarrow.Schema,
        *,
        stream: bool,
        session: str | None = None,
        driver: WriteDriver | None = None,
        exact: bool = False,
    ) -> WritePlan:
        """Check everything that can be before a row is sent; raises ``PlanError``.

        ``driver`` is for a process that is not Spark's: it keeps no connection. ``exact``: names
        of columns that differ in case are others.
        """
        schema = pyarrow.schema(
            [schema.field(name) for name in without_dead_letter_columns(schema.names)]
        )
        options = options.fitted(schema.names, exact=exact)
        KeyPlan(options.key, schema, options.ignored)
        check_metrics(options.metrics)
        token = None if options.dead_letter is None else prepare_directory(options.dead_letter)
        if stream and options.close_session:
            raise PlanError("a stream does not know its end: close its session by name")
        if options.adopt and not stream:
            raise PlanError(
                "adopt is for the checkpoint of a query that writes by writeStream: a job needs "
                "none, and goes on under its session"
            )
        driver = driver or process_driver(options.connection, options.timeout_s)
        shape = driver.shape(options)
        if not exact:
            given = [each for each in schema.names if each not in options.ignored]
            found = fields_in_any_case(given, shape.request_class())
            options = replace(options, fields=tuple({**found, **dict(options.fields)}.items()))
        _messages(options, schema, shape)
        name = options.session or (None if stream else session or run_session())
        try:
            if name is None:
                store = driver.store(options.method)
            else:
                store = driver.open_session(name, options.retention_s, options.method)
        except SessionGone as error:
            if name is not None and driver.finished(name):
                raise AlreadyDone(name) from error
            raise PlanError(
                f"the session {name!r} is past its retention, or was closed by its server: what "
                "it wrote cannot be told from new rows any more, and nothing was sent"
            ) from error
        return cls(
            options=options,
            schema=schema,
            shape=shape,
            session=name,
            store=store,
            run=uuid.uuid4().hex[:16],
            dead_token=token,
        )

    def shown(self, what: str) -> str:
        """Return what a query plan shows of this: no secret, since there is none in it."""
        return f"rifl.{what}({self.options.method} at {self.options.connection.target})"

    def read(self, batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        """Take the columns of the plan from what Spark gives."""
        names = self.schema.names
        for batch in batches:
            yield batch if batch.schema.names == names else batch.select(names)

    def delivery(
        self, worker: WorkerChannel, client_id: int, *, replies: bool = False
    ) -> RowDelivery:
        """Return what sends a task's rows."""
        keys = KeyPlan(self.options.key, self.schema, self.options.ignored)
        messages = _messages(self.options, self.schema, self.shape)
        return RowDelivery(worker, self.options, keys, messages, client_id, replies=replies)

    def session_of(self, batch: MicroBatch | None) -> str:
        """Return the session that a task's rows belong to."""
        if self.options.session is not None:
            return self.options.session
        name = self.session if batch is None else batch.session
        if name is None:
            raise IdentityError("a batch write has a session")
        return name

    def open_worker(self, batch: MicroBatch | None) -> tuple[WorkerChannel, int]:
        """Join the session from a task; returns the channel and the session's id.

        Raises ``IdentityError`` if the server does not remember what came before.
        """
        options = self.options
        name = self.session_of(batch)
        # A session of the user's is written by whom the user wants.
        writer = b"" if batch is None or options.session is not None else batch.writer
        try:
            if batch is not None:
                self._require_known(batch)
            for _ in range(2):
                worker = worker_channel(
                    options.connection, name, options.retention_s, options.timeout_s, writer
                )
                client_id = worker.channel.session.open(options.timeout_s)
                if worker.store == self.store:
                    return worker, client_id
                # What this process knows may be of the store that was there before.
                drop_channel(options.connection, name, writer)
        except (CallError, SessionGone) as error:
            if isinstance(error, CallError) and error.reason != "SESSION_CLOSED":
                raise
            # A task that runs again asks again.
            _confirmed.clear()
            raise IdentityError(_closed_text(name, batch)) from error
        raise IdentityError(
            f"the server has another store than when this write was planned (a memory: store that "
            f"was restarted?), and nothing of the session {name!r}: what was sent before cannot be "
            "told from what was not, so nothing more was sent"
        )

    def _require_known(self, batch: MicroBatch) -> None:
        """Have the server confirm that it remembers this query (session names, rule 1)."""
        options = self.options
        confirmed = (os.getpid(), options.connection, batch)
        if confirmed in _confirmed:
            return
        driver = process_driver(options.connection, options.timeout_s)
        if not options.adopt or batch.gaps:
            self._require_remembered(driver, batch)
            if batch.place:
                _require_own(driver, batch)
        if batch.place and options.session is None:
            self._take(driver, batch)
        _confirmed.clear()
        _confirmed.add(confirmed)

    def _require_remembered(self, driver: WriteDriver, batch: MicroBatch) -> None:
        options = self.options
        before = batch.closed_before
        if batch.root is not None:
            # Gone if this batch was committed before; its own session is not.
            with contextlib.suppress(SessionGone):
                driver.open_session(batch.root, options.retention_s, options.method)
        elif before is None or driver.close_session(before):
            pass
        elif batch.gaps:
            driver.end_session(before, self.store)
        else:
            raise IdentityError(
                f"the server does not remember the micro-batches before {batch.batch} of "
                f"{batch.series}: the checkpoint is older than the retention of its "
                "sessions, or the target is another server than before. Sending could "
                "repeat what was sent; nothing was sent. If nothing was sent there "
                'before, option("adopt", "true") begins here.'
            )

    def _take(self, driver: WriteDriver, batch: MicroBatch) -> None:
        """Have the session take this run's calls alone (session names, rule 5)."""
        options, writer, follows = self.options, batch.writer, b""
        while True:
            # Looked at after who writes: it was made before.
            require_last_run(driver, batch)
            if follows:
                if not options.adopt and not batch.is_here(follows):
                    raise IdentityError(_copy_text(batch, batch.batch))
                driver.set_marks((batch.followed(follows),))
            found = driver.take_session(batch.session, options.retention_s, writer, follows)
            if found == writer:
                break
            follows = found
        if options.adopt:
            # Started again without the option it goes on, and the other one does not.
            driver.set_marks(batch.marks(batch.batch + 1))


def _require_own(driver: WriteDriver, batch: MicroBatch) -> None:
    """Raise ``IdentityError`` if another checkpoint has the micro-batch (session names, rule 4)."""
    for number in (batch.batch, batch.batch + 1):
        own, query = batch.marks(number)
        if driver.close_session(query) and not driver.close_session(own):
            raise IdentityError(_copy_text(batch, max(0, number - 1)))
    if batch.batch == 0:
        driver.set_marks(batch.marks(0))


# The micro-batch that the server confirmed to this process.
_confirmed: set[tuple[int, ConnectionOptions, MicroBatch]] = set()


def require_last_run(driver: WriteDriver, batch: MicroBatch) -> None:
    """Raise ``IdentityError`` if another run followed this one (session names, rule 5)."""
    if batch.writer and driver.close_session(batch.followed(batch.writer)):
        raise IdentityError(
            f"another run of {batch.series} followed this one, and goes on in its place: of two "
            "runs over one checkpoint, or over copies of it, one sends; nothing was sent"
        )


def _copy_text(batch: MicroBatch, number: int) -> str:
    return (
        f"the server has had micro-batch {number} of {batch.series} from another checkpoint than "
        f"{batch.place}: of two copies the one that sent goes on, since the other may have other "
        'rows; nothing was sent. If it was moved here, option("adopt", "true") goes on here: do '
        "not start the other one again."
    )


def _closed_text(name: str, batch: MicroBatch | None) -> str:
    if batch is None:
        return f"the session {name!r} was closed while this task ran; nothing was sent"
    return (
        f"micro-batch {batch.batch} of {batch.series} is closed (a later one was committed), "
        "past its retention, or sent by another run: this task is a leftover of it, the "
        "checkpoint is too old, or another query has its name; nothing was sent"
    )


def _messages(options: WriteOptions, schema: pyarrow.Schema, shape: MethodShape) -> RequestPlan:
    return plan_request(
        schema,
        shape.request_class(),
        key_only=set(options.key),
        ignored=options.ignored,
        renamed=dict(options.fields),
    )
