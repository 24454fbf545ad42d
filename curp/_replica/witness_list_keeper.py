"""The keeper of a leadership's witness list: its changes, and their steps (DESIGN §7: 2 and 11)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from _rifl_ground.log import get_logger
from curp._core.steps import Pause, Sync
from curp._core.witness_change import HoldBack, NextNumber, Serve, change_witnesses
from curp._core.witness_list import Publish, StartWitnesses, WitnessList
from curp._core.witness_table import WitnessVerdict
from curp._core.witness_upkeep import (
    AskWhatTheyServe,
    ListAgain,
    TellSecrets,
    WitnessUpkeep,
    keep_up,
)
from curp._replica.appender import AppendLoop
from curp._replica.driver import Bounded, Nested, Once, Rule
from curp._replica.metadata import LIST_KEY
from curp._replica.parts import Parts, Tenure
from curp._wire.entries import secrets_to_message
from curp._wire.metadata import witness_list_to_bytes
from curp.log._errors import LeadershipOver, LogError
from rifl._stores.pending import Pending
from rifl.core._shared.errors import NotLeader, RiflError

_log = get_logger("curp.replica")
_STATUS_S = 0.5
# Between two looks whether another change has ended.
_ANOTHER_S = 0.05


class WitnessListKeeper:
    """Keeps one leadership's witness list: rules that change it, and their ``step``. Any thread.

    ``serve`` is called with each list that comes into force. ``end`` is told when the
    leadership is over by a change that may or may not have happened.
    """

    def __init__(
        self,
        parts: Parts,
        tenure: Tenure,
        appender: AppendLoop,
        serve: Callable[[WitnessList], None],
        end: Callable[[Exception], None],
    ) -> None:
        self._engine = parts.engine
        self._store = parts.store
        self._witnesses = parts.witnesses
        self._settings = parts.settings
        self._driver = parts.driver
        self._state = tenure.state
        self._leader = tenure.leader
        self._keeper = tenure.keeper
        self._appender = appender
        self._serve = serve
        self._end = end
        self._changing = threading.Lock()
        self._over = Once()
        self._upkeep = WitnessUpkeep(tenure.listed, self._state.secrets, self._driver.clock())
        self._looking = threading.Lock()

    def stop(self) -> bool:
        """Begin no further change; return whether one is in progress: it ends at its next step."""
        self._over.end()
        return self._changing.locked()

    def changing(self, wanted: Sequence[str], configuration: int) -> Rule:
        """Put another list in force, under the next number; a rule, which gives that list.

        Everything answered first under the old one is synced before; nothing is
        answered first in between; and a witness serves the new number only from
        empty. Raises ``NotLeader`` if another number is in force than the caller
        knows, ``LogError``.
        """
        while not self._changing.acquire(blocking=False):
            yield Pause(_ANOTHER_S)
        return (yield from self._alone(self._putting_in_force(tuple(wanted), configuration)))

    def again(self, configuration: int, forgot: Sequence[tuple[str, WitnessVerdict]] = ()) -> Rule:
        """Put the list in force anew: a witness of that number forgot what it held, or is back.

        ``forgot``: those of which it was not told yet that they did. A change in progress
        is not waited for: the leadership might be over meanwhile.
        """
        if not self._changing.acquire(blocking=False):
            return
        wanted = self._upkeep.again(configuration)
        if wanted is None:
            self._changing.release()
            return
        for witness, verdict in forgot:
            _log.warning("witness_forgot", witness=witness, verdict=verdict.name)
        try:
            yield from self._alone(self._putting_in_force(wanted, configuration))
        except (LogError, RiflError) as error:
            _log.warning("witnesses_not_changed", error=str(error))

    def keeping_up(self) -> Rule:
        """See whom to list again, and tell those that serve of new secrets."""
        return keep_up(self._upkeep, self._looking, self._state.secrets, self._driver.clock)

    def _alone(self, rule: Rule) -> Rule:
        """Carry a change out, and let the next one begin."""
        try:
            found = yield from rule
        except Exception:
            self._changing.release()
            raise
        self._changing.release()
        return found

    def _putting_in_force(self, wanted: tuple[str, ...], configuration: int) -> Rule:
        if configuration != self._leader.configuration or self._over.done:
            raise NotLeader(
                f"configuration {self._leader.configuration} is in force, not {configuration}"
            )
        try:
            serving = yield from change_witnesses(configuration, wanted)
        except Exception as error:
            # Whether the number was taken may not be known. A call answered first under the
            # old one could be in no log, and on no witness that is asked.
            # A leadership that is over has no end: it would be the next one's.
            if not self._over.done:
                self._end(LeadershipOver(f"the witness list may have changed: {error}"))
            raise
        _log.info(
            "witnesses_changed",
            replica=self._settings.name,
            configuration=serving.configuration,
            witnesses=list(serving.witnesses),
            wanted=list(wanted),
        )
        return serving

    def step(self, step: Any) -> Any:
        """Do a step of one of these rules; raises ``NotLeader`` when the leadership is over."""
        if self._over.done:
            raise NotLeader("the leadership is over")
        if isinstance(step, Pause):
            return Bounded(self._over, step.seconds)
        if isinstance(step, HoldBack):
            with self._store.work:
                return self._leader.begin_change()
        if isinstance(step, Sync):
            return self._store.synced(step.lsn)
        if isinstance(step, NextNumber):
            return self._next_number(step)
        if isinstance(step, StartWitnesses):
            secrets = secrets_to_message(self._state.secrets)
            return self._witnesses.start(step.addresses, step.configuration, secrets)
        if isinstance(step, Publish):
            self._engine.put_metadata(
                {LIST_KEY: witness_list_to_bytes(step.witnesses)},
                configuration=step.witnesses.configuration,
            )
            return None
        if isinstance(step, Serve):
            with self._looking:
                self._upkeep.in_force(step.witnesses, self._driver.clock())
            self._serve(step.witnesses)
            return None
        if isinstance(step, TellSecrets):
            secrets = secrets_to_message(self._state.secrets)
            return self._witnesses.refresh(step.addresses, step.configuration, secrets)
        if isinstance(step, AskWhatTheyServe):
            return self._witnesses.serving(step.addresses, step.configuration, _STATUS_S)
        if isinstance(step, ListAgain):
            return Nested(self.again(step.configuration, step.forgot), self.step)
        raise RuntimeError(f"no such step: {step!r}")

    def _next_number(self, step: NextNumber) -> Pending:
        """Take the next number between two appends and two renewals."""

        def take() -> int:
            with self._keeper.renewing:
                number = self._engine.next_configuration(
                    step.configuration,
                    {LIST_KEY: witness_list_to_bytes(step.witnesses)},
                    term_s=self._keeper.length.asked_s,
                )
                self._keeper.configuration = number
            # No list is served under it yet: everything is synced.
            self._store.changed(number, witnessed=False)
            return number

        return self._appender.between(take)
