"""An append to a log in the database of a consumer: the last of the transaction that has it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from sharedlog._core.commit import Commit, Refused, stamped
from sharedlog._core.consumer.asked import Failed
from sharedlog._core.consumer.keeping import InStore
from sharedlog._core.errors import LogError
from sharedlog._core.steps import Get, Lsns, Rule, Step

# What keys of the log hold.
Held = Mapping[str, bytes | None]


class Together(NamedTuple):
    """A store in the database of the log: outputs are in the commit of the effects.

    ``within``: has a shard's append be in the transaction that runs. ``keeper``: of the shards.
    ``alone``: beside that transaction nothing can be appended.
    """

    within: Callable[[str, Rule[Any]], object]
    keeper: type[InStore]
    alone: bool


class JoinedAppend:
    """A rule of the log's whose commit is a transaction's of the store's.

    What the rule reads is read beside that, and is judged again where it is committed, which is
    one step with the store's.
    """

    def __init__(self, act: Callable[[Step], Any], rule: Rule[Any], held: Held | None) -> None:
        """Read what the rule asks for; raises what ends it.

        ``held``: what its keys held lately, which saves the reading. ``commit``: the commit that
        remains; None: it is in the log already.
        """
        self._act = act
        self._rule = rule
        self._held = held
        self.commit: Commit | None = None
        try:
            self.commit = self._until_commit(rule.send(None))
        except StopIteration:
            return

    def left(self, lsns: Lsns) -> Held:
        """Return what the keys of the commit hold once it has got these LSNs."""
        if self.commit is None:
            return {}
        held = {each.key: each.value for each in self.commit.conditions}
        return held | {each.key: stamped(each, *lsns) for each in self.commit.puts}

    def refused(self, refused: Refused) -> Exception:
        """Return what the rule makes of a refusal: as a rule another process has the shard."""
        try:
            self._until_commit(self._rule.throw(refused))
        except LogError as error:
            return error
        except StopIteration:
            pass
        return Failed("the log has changed beside the transaction", counts=False)

    def _until_commit(self, step: Step) -> Commit:
        while not isinstance(step, Commit):
            held, self._held = self._held, None
            if held is not None and isinstance(step, Get) and set(step.keys) <= set(held):
                answer: Any = {key: held[key] for key in step.keys}
            else:
                answer = self._act(step)
            step = self._rule.send(answer)
        return step
