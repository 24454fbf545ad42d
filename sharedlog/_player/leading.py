"""The leading of a player: one of those with its name sends, by a duty of the log (P5)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from functools import partial

from _rifl_ground.audit import acted
from _rifl_ground.log import get_logger
from sharedlog._core.duty import Duty
from sharedlog._core.errors import (
    CorruptLog,
    Fenced,
    InvalidRequest,
    LogError,
    LogStopped,
    TrimmedLog,
)
from sharedlog._core.fences import Fence
from sharedlog._core.holds import forget
from sharedlog._core.player.failing import Suspended, Why
from sharedlog._core.player.feeder import FeederBounds
from sharedlog._core.player.holding import move_holds
from sharedlog._core.player.observer import TargetReport
from sharedlog._core.player.rows import TargetState, Wish, all_told, row_key, tell, wishes
from sharedlog._log.place import Place
from sharedlog._player.course import Course
from sharedlog._player.declared import PlayerSettings
from sharedlog._player.main_stream import MainStream
from sharedlog._player.outside import Outside
from sharedlog._player.stage import Stage
from sharedlog._player.watching import PlayerWatchers

_log = get_logger("sharedlog")
# Of the time in which another one takes over: what one must be silent for, and how often it says
# that it is there. The rest is for beginning.
_SILENT, _BEAT = 0.7, 0.1
# How often operators' wishes are looked at, rows told, and holds moved: of each target a commit.
_WISHES_S, _TOLD_S, _HELD_S = 0.25, 0.5, 2.0
_THREADS = 16


class Leading:
    """One process's part in a player; on its event loop."""

    def __init__(
        self, place: Place, settings: PlayerSettings, watchers: PlayerWatchers, outside: Outside
    ) -> None:
        """It does not lead yet."""
        self._place = place
        self._settings = settings
        self._watchers = watchers
        self._outside = outside
        self._log = outside.log(_THREADS)
        self._beats = outside.log(1)
        patience_s = _SILENT * settings.takeover_s
        self._duty = Duty(f"player/{settings.name}", outside.who, patience_s)
        self._courses: dict[str, Course] = {}
        self._running: dict[str, asyncio.Task[None]] = {}
        self._main: MainStream | None = None
        self._doing: list[asyncio.Task[None]] = []
        self.fence: Fence | None = None
        # One tells after the other: what is older is not told behind what is newer.
        self._telling = asyncio.Lock()

    @property
    def courses(self) -> Mapping[str, Course]:
        """Its targets' courses, while it leads."""
        return self._courses

    async def run(self, closing: asyncio.Event) -> None:
        """Lead whenever it has the duty, until ``closing`` is set.

        Raises ``LogStopped`` if the log was closed, or cannot be used any more by this process,
        and what ended a part of it, which would not begin again. Another process can lead then.
        """
        took_s = asyncio.get_running_loop().time()
        stopped: BaseException | None = None
        while not closing.is_set():
            if self._place.closing.is_set():
                stopped = LogStopped("the log was closed")
                break
            ended = next((each for each in self._doing if each.done()), None)
            if ended is not None:
                stopped = ended.exception()
                break
            now_s = asyncio.get_running_loop().time()
            try:
                fence = await self._beats.once(self._duty.take(now_s))
                took_s = now_s
            except LogStopped as error:
                stopped = error
                break
            except LogError as error:
                # Another process that can reach the log may lead by now.
                silent = now_s - took_s > _SILENT * self._settings.takeover_s
                fence = None if silent else self.fence
                if silent and self.fence is not None:
                    _log.warning("player_lost_the_log", log=self._place.name, error=str(error))
            if fence != self.fence:
                await self._stop()
                if fence is not None:
                    await self._start(fence)
            with suppress(TimeoutError):
                async with asyncio.timeout(_BEAT * self._settings.takeover_s):
                    await closing.wait()
        await self._stop()
        with suppress(LogError):
            await self._beats.once(self._duty.leave())
        self._log.close()
        self._beats.close()
        if stopped is not None:
            raise stopped

    def report(self) -> list[TargetReport]:
        """Return how the targets are, for those who watch."""
        return [
            TargetReport(
                name, each.state, each.lag, each.feeder.queued, each.feeder.in_flight, each.taken
            )
            for name, each in list(self._courses.items())
        ]

    # As the one that leads.

    async def _start(self, fence: Fence) -> None:
        self.fence = fence
        name = self._settings.name
        _log.info("player_leads", log=self._place.name, player=name, number=fence.number)
        self._main = MainStream(self._place, self._outside)
        # A wish that cannot be read, and what was told: targets begin without it, and say so.
        self._wishes: dict[str, Wish] = {}
        self._told: dict[str, TargetState] = {}
        with suppress(LogError):
            self._told = await self._log.once(all_told(name))
        await self._look()
        near = max([each.bounds.queue_count for each in self._settings.targets.values()] or [0])
        self._begin_courses()
        self._doing = [
            asyncio.ensure_future(self._main.run(near or FeederBounds().queue_count)),
            asyncio.ensure_future(self._operate()),
            asyncio.ensure_future(self._keep()),
        ]

    async def _stop(self) -> None:
        if self.fence is None:
            return
        _log.info("player_leads_no_more", log=self._place.name, player=self._settings.name)
        self.fence = None
        tasks = [*self._doing, *self._running.values()]
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        with suppress(LogError):
            await self._move_holds()
        self._doing, self._running, self._courses = [], {}, {}

    def _begin_courses(self) -> None:
        """Have a course for each target, by its newest declaration."""
        targets = self._settings.targets
        main, fence = self._main, self.fence
        if main is None or fence is None:
            return
        for name in list(self._courses):
            if targets.get(name) != self._courses[name].target:
                self._running.pop(name).cancel()
                self._told[name] = _told_of(self._courses.pop(name), {})
        settings = self._settings
        for name, target in targets.items():
            if name in self._courses:
                continue
            stage = Stage(
                self._place,
                self._outside,
                self._log,
                settings.name,
                settings.log_name,
                settings.dead_letters,
                fence,
                self._watchers,
                lambda: main.dispatched,
                self._tell,
            )
            course = Course(target, stage, self._told.get(name))
            course.begin_as(self._wishes.get(name, Wish()))
            self._courses[name] = course
            self._running[name] = asyncio.ensure_future(self._watched(course))
        main.feeds(self._courses.values())

    async def _watched(self, course: Course) -> None:
        """Restart a course that fails by a bug of the player, and log it."""
        while True:
            try:
                await course.run()
            except InvalidRequest as error:
                course.standing.note(str(error))
                _log.error("target_not_called", target=course.target.name, error=str(error))
            except Exception:  # noqa: BLE001 - ours: other targets go on
                course.standing.note("the player failed: its events say why")
                _log.exception("target_failed", target=course.target.name)
            await asyncio.sleep(1.0)

    async def _look(self) -> None:
        """Look what operators wish."""
        try:
            self._wishes = await self._log.once(wishes(self._settings.name))
        except CorruptLog as error:
            _log.error("player_wishes_unread", log=self._place.name, error=str(error))
        except LogError:
            # It is looked again.
            return
        for name, course in self._courses.items():
            before = course.hold_name
            course.apply(self._wishes.get(name, Wish()))
            if course.hold_name != before:
                with suppress(LogError):
                    if await self._log.once(forget(before)):
                        self._removed(before)

    async def _operate(self) -> None:
        while True:
            await asyncio.sleep(_WISHES_S)
            await self._look()
            self._begin_courses()

    async def _keep(self) -> None:
        """Move holds, and tell of the targets."""
        told: dict[str, TargetState | None] = {}
        counted: dict[str, tuple[float, int]] = {}
        now_s, held_s = asyncio.get_running_loop().time, 0.0
        while True:
            await asyncio.sleep(_TOLD_S)
            try:
                if now_s() - held_s >= _HELD_S:
                    held_s = now_s()
                    await self._move_holds()
                async with self._telling:
                    fresh: dict[str, TargetState | None] = {
                        name: _told_of(each, counted) for name, each in self._courses.items()
                    }
                    gone = dict.fromkeys((self._told.keys() | told.keys()) - fresh.keys())
                    changed = {
                        name: each
                        for name, each in (fresh | gone).items()
                        if name not in told or _unlike(told[name], each)
                    }
                    fence = self.fence
                    if changed and fence is not None:
                        await self._log.once(tell(self._settings.name, changed, fence))
                        for name in (name for name, each in changed.items() if each is None):
                            self._removed(row_key(self._settings.name, "told", name))
                        told |= changed
            except Fenced:
                # The next beat says so.
                continue
            except LogError as error:
                _log.warning("player_cannot_tell", log=self._place.name, error=str(error))

    def _removed(self, what: str) -> None:
        acted(f"player {self._settings.name} of {self._outside.process}", "remove", what)

    async def _tell(self, name: str) -> None:
        """Have what is known of a target be durable; raises ``LogError``."""
        async with self._telling:
            fence, course = self.fence, self._courses.get(name)
            if fence is None or course is None:
                raise Fenced("another player leads", 0)
            told = {name: _told_of(course, {})}
            await self._log.run(lambda: tell(self._settings.name, told, fence))

    async def _move_holds(self) -> None:
        for course in list(self._courses.values()):
            if not course.holds:
                continue
            name, held = course.hold_name, course.holds
            known = dict(course.feeder.acknowledged)
            try:
                moved = await self._log.run(
                    partial(move_holds, name, held, known, self._outside.now_us())
                )
            except TrimmedLog as error:
                # An operator dropped its hold: the others' are moved on.
                course.holds = {}
                course.suspend(Suspended(Why.TRIMMED, str(error)))
                continue
            if course.hold_name == name and course.holds is held:
                course.holds = moved


def _told_of(course: Course, counted: dict[str, tuple[float, int]]) -> TargetState:
    now_s, name = asyncio.get_running_loop().time(), course.target.name
    before_s, before = counted.get(name, (now_s, course.taken))
    counted[name] = now_s, course.taken
    passed_s = now_s - before_s
    stopped = course.suspended
    feeder = course.feeder
    return TargetState(
        course.state,
        course.target.address,
        course.number,
        stopped.why.name if stopped is not None else "",
        stopped.details if stopped is not None else "",
        stopped.tag if stopped is not None else "",
        str(stopped.about or "") if stopped is not None else "",
        {tag: str(place) for tag, place in feeder.acknowledged.items()},
        course.lag,
        feeder.queued,
        feeder.in_flight,
        course.taken,
        round((course.taken - before) / passed_s, 1) if passed_s > 0 else 0.0,
        course.error,
        course.standing.error_at_us,
        course.stage.outside.now_us(),
        {tag: (str(place), count) for tag, (place, count) in course.failing.attempts.items()},
        course.store,
        course.stage.outside.process,
        course.dead_letters,
        course.moved_at_us,
        feeder.deaths.limit,
        feeder.deaths.kept(),
    )


def _unlike(one: TargetState | None, other: TargetState | None) -> bool:
    """Whether there is something new, or it was told long ago."""
    if one is None or other is None:
        return one is not other
    return other._replace(at_us=one.at_us) != one or other.at_us - one.at_us > _RENEWED_US


_RENEWED_US = 10_000_000
