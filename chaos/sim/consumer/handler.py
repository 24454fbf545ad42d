"""Model of the world: the functions of a consumer, which follow from the message alone."""

from __future__ import annotations

import json
from typing import Any

from chaos.sim.consumer.names import OUTPUTS
from chaos.sim.consumer.redis_store import TEXT, TOTAL
from chaos.sim.consumer.service import METHOD, TARGET
from chaos.sim.consumer.stage import Acting, Stage, chained, read_first
from chaos.sim.faults import Point
from sharedlog._consumer.effects import Effects
from sharedlog._core.errors import CallForgotten, CallMismatch

__all__ = ["Functions", "output_of"]

_TICKED = "tick"


class Functions:
    """Of one process's life."""

    def __init__(self, cast: Stage, actor: Acting) -> None:
        self._cast = cast
        self._actor = actor
        places: dict[str, Any] = {
            "log": _InLog(),
            "redis": _InRedis(),
            "sqlite": _InTables(),
            "postgres": _InTables(),
        }
        self._place = places[cast.setup.store]

    def handle(self, body: str, effects: Effects) -> None:
        """Do what a message asks for: calls first, then effects and outputs."""
        cast, message = self._cast, effects.message
        shard = f"{message.stream}/{message.substream}"
        plan = cast.plan(body)
        cast.tries[body] += 1
        tries = cast.tries[body]
        with self._actor.at(Point.HANDLER):
            cast.reached(self._actor, Point.HANDLER)
            if self._actor.strayed[shard] > 1:
                cast.oracle.broken("strayed", f"{body} runs again, alone, after another call")
            # What was called with first is not known, when it is called with something else.
            stray = "!" if plan.strays and tries > 1 else ""
            calls = [f"{body}#{number}{stray}" for number in range(plan.calls)]
            answers = [self._call(effects, shard, each, hides=plan.hides) for each in calls]
            if tries <= plan.kills:
                self._actor.crash(0.2)
                # It does not come to its next line.
                cast.strands.current.park()
            chain = chained(self._place.chain(effects, shard), body, answers)
            spoils = tries <= plan.spoils
            if spoils and not plan.late:
                effects.connection.rpush(TEXT, body)
            self._place.write(effects, shard, body, chain, answers)
            if spoils and plan.late:
                effects.connection.rpush(TEXT, body)
            for number in range(plan.outputs):
                effects.publish(OUTPUTS, output_of(body, number, chain), key=f"{number % 5}")
            if tries <= plan.fails:
                raise ValueError(f"try {tries} of {body}")

    def tick(self, effects: Effects) -> None:
        """Be the function of a timer."""
        shard = self._actor.ticked
        count = self._place.tick(effects, shard)
        effects.publish(OUTPUTS, f"{_TICKED} {shard} {count}", key=shard)

    def _call(self, effects: Effects, shard: str, what: str, *, hides: bool) -> str:
        """Make a call; ``hides``: what it ends with is kept from the consumer."""
        cast = self._cast
        method: Any = effects.channel(TARGET).unary_unary(METHOD)
        try:
            answer = str(method(what.encode()).decode())
        except Exception as error:
            if isinstance(error, CallForgotten) and what in cast.heard:
                cast.oracle.broken("called", f"the answer of {what}, which was told, is not kept")
            if isinstance(error, CallMismatch):
                self._actor.strayed[shard] += 1
            if hides:
                return ""
            raise
        cast.heard.add(what)
        return answer


def output_of(body: str, number: int, chain: str) -> str:
    """Return what a message's output says."""
    return f"{body} {number} {chain}"


class _InTables:
    """Effects in the user's tables."""

    def chain(self, effects: Effects, shard: str) -> str:
        statement = "SELECT chain FROM effect WHERE shard = ? ORDER BY id DESC LIMIT 1"
        found = effects.connection.execute(statement, (shard,)).fetchone()
        return str(found[0]) if found else ""

    def write(
        self, effects: Effects, shard: str, body: str, chain: str, answers: list[str]
    ) -> None:
        effects.connection.execute(
            "INSERT INTO effect (shard, body, chain, answers) VALUES (?, ?, ?, ?)",
            (shard, body, chain, json.dumps(answers)),
        )

    def tick(self, effects: Effects, shard: str) -> int:
        statement = "SELECT count FROM tick WHERE shard = ?"
        found = effects.connection.execute(statement, (shard,)).fetchone()
        count = 1 + (int(found[0]) if found else 0)
        effects.connection.execute("INSERT OR REPLACE INTO tick VALUES (?, ?)", (shard, count))
        return count


class _InLog:
    """Effects in the state that the log has."""

    def chain(self, effects: Effects, shard: str) -> str:
        del shard
        return str(effects.state.get("chain", ""))

    def write(
        self, effects: Effects, shard: str, body: str, chain: str, answers: list[str]
    ) -> None:
        del shard
        count = effects.state.get("count", 0)
        effects.state["count"] = count + 1
        effects.state["chain"] = chain
        effects.state[f"effect {count:06}"] = [body, chain, answers]

    def tick(self, effects: Effects, shard: str) -> int:
        del shard
        count = int(effects.state.get("ticks", 0)) + 1
        effects.state["ticks"] = count
        return count


class _InRedis:
    """Effects in lists; some handlers read what is there first, and watch it."""

    def __init__(self) -> None:
        # What has been counted, where it was read.
        self._total: int | None = None

    def chain(self, effects: Effects, shard: str) -> str:
        self._total = None
        if not read_first("redis", shard):
            return ""
        connection = effects.connection
        connection.watch(TOTAL, f"chain:{shard}")
        self._total = int(connection.get(TOTAL) or 0)
        found = connection.get(f"chain:{shard}") or b""
        connection.multi()
        return str(found.decode())

    def write(
        self, effects: Effects, shard: str, body: str, chain: str, answers: list[str]
    ) -> None:
        connection = effects.connection
        place = str(effects.message.position)
        connection.rpush(f"effect:{shard}", json.dumps([place, body, chain, answers]))
        connection.set(f"chain:{shard}", chain)
        if self._total is not None:
            connection.set(TOTAL, self._total + 1)

    def tick(self, effects: Effects, shard: str) -> int:
        connection = effects.connection
        connection.watch(f"tick:{shard}")
        count = int(connection.get(f"tick:{shard}") or 0) + 1
        connection.multi()
        connection.set(f"tick:{shard}", count)
        return count
