"""Model of the world: the service that handlers call, which runs each call once."""

from __future__ import annotations

from collections import Counter
from typing import Any

from chaos.sim.consumer.stage import Acting, Stage
from chaos.sim.consumer.wire import Lost, Wire
from chaos.sim.faults import Point
from sharedlog._core.consumer.calls import Open, SendCall, Unanswered

__all__ = ["METHOD", "TARGET", "Service"]

TARGET, METHOD = "rates:1", "/rates.v1.Rates/Reserve"


class _Answered:
    """A call that is over, as rifl's client has it."""

    def __init__(self, reply: bytes) -> None:
        self._reply = reply

    def result(self) -> bytes:
        return self._reply

    def initial_metadata(self) -> tuple[()]:
        return ()

    trailing_metadata = initial_metadata


class Service:
    """One, which stands for any server that rifl deduplicates."""

    def __init__(self, cast: Stage) -> None:
        self.wire = Wire(cast, 0.4)
        self._clients: dict[str, str] = {}
        self._granted = 0
        self._records: dict[tuple[str, bytes], bytes] = {}
        # What each life of a process has opened: it asks again once it is refused.
        self._opened: dict[tuple[str, str], str] = {}
        # How often each call's effect happened, and what the first one was answered.
        self.runs: Counter[str] = Counter()
        self.answers: dict[str, str] = {}
        self._before = 0

    def open(self, actor: Acting, step: Open) -> str:
        """Open a session, from a process; the id that it is known by."""
        mine = actor.process.name, step.session
        if mine not in self._opened:
            found = self._asked(actor, Point.SESSION, lambda: self._client(step.session))
            self._opened[mine] = found
        return self._opened[mine]

    def send(self, actor: Acting, step: SendCall) -> Any:
        """Send a call, from a process, in its session, and wait for the answer."""
        call = step.call
        mine = actor.process.name, call.session

        # As rifl's client has it: it opens a session that it has not, and whatever of the call is
        # on its way carries this id, also once the session is lost (DESIGN §4, §5).
        client = self._opened.get(mine) or self.open(actor, Open(call.target, call.session))
        try:
            return self._asked(actor, Point.CALL, lambda: self._run(client, call.key, call.request))
        except Unanswered as error:
            if not error.away:
                self._opened.pop(mine, None)
            raise

    def wipe(self) -> None:
        """Forget all sessions and answers; what calls have done stays done."""
        self._clients.clear()
        self._records.clear()

    def begin_anew(self) -> None:
        """Count what calls do from here on; what was answered is kept."""
        self._before += sum(self.runs.values())
        self.runs.clear()
        self.answers.clear()

    def _asked(self, actor: Acting, point: Point, do: Any) -> Any:
        try:
            return self.wire.ask(actor, point, do)
        except Lost as error:
            raise Unanswered(ConnectionError("it does not answer"), away=True) from error

    def _client(self, session: str) -> str:
        if session not in self._clients:
            self._granted += 1
            self._clients[session] = f"c{self._granted}"
        return self._clients[session]

    def _run(self, client: str, key: bytes, request: bytes) -> _Answered:
        if client not in self._clients.values():
            # As rifl's client has it: an id that no client has any more opens nothing.
            raise Unanswered(KeyError(client), away=False)
        kept = self._records.get((client, key))
        if kept is None:
            what = request.decode()
            self.runs[what] += 1
            kept = f"{what}={self._before + sum(self.runs.values())}".encode()
            self.answers.setdefault(what, kept.decode())
            self._records[client, key] = kept
        return _Answered(kept)
