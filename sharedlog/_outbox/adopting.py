"""The adopting of an outbox by a log that was restored, or is another: an operator's decision."""

from __future__ import annotations

import contextlib
from typing import NamedTuple

from _rifl_ground.log import get_logger
from sharedlog._core.arguments import check_text, check_truth
from sharedlog._core.errors import PredecessorMismatch
from sharedlog._core.outbox import missing, pass_over, reached
from sharedlog._core.streams import check_name
from sharedlog._log.log import Log
from sharedlog._log.resending import until_answered
from sharedlog._outbox.box_database import open_database
from sharedlog._outbox.outbox import NAME, check_log
from sharedlog._outbox.relay import refuse_elsewhere

_log = get_logger("sharedlog")


class Adopted(NamedTuple):
    """An outbox that was adopted by a log.

    ``waiting``: messages that a relay will append. ``lost``: the first and the last number of
    messages that the former log had acknowledged and this one lacks; None if it has all.
    """

    waiting: int
    lost: tuple[int, int] | None


def adopt_outbox(
    database: str, log: Log, name: str = NAME, *, accept_loss: bool = False
) -> Adopted:
    """Have an outbox go on with ``log``, of another incarnation than it is for.

    For a log that was declared restored. From then on relays append the waiting messages that the
    log lacks. Messages that the log had acknowledged and lost are no longer in the outbox: that
    raises ``PredecessorMismatch``; ``accept_loss`` passes over them. Run no relay of the outbox
    meanwhile. Does nothing if the outbox is the log's already.

    Raises ``NoSuchOutbox``, ``LogUnavailable``, ``OutboxWentBack`` if the log has messages that the
    outbox lacks, and ``InvalidRequest`` for a log over gRPC. It can be called again after an error.
    """
    check_name(name, "outbox")
    check_text(database, "database")
    check_log(log, Log)
    check_truth(accept_loss, "accept_loss")
    place = log._place
    refuse_elsewhere(place)
    with contextlib.closing(open_database(database)) as opened:
        first = opened.look(name, 0)
        found = until_answered(place, lambda: reached(first))
        box = opened.look(name, 0, found.seq)
        lost = missing(box, found)
        if lost is not None and not accept_loss:
            raise PredecessorMismatch(
                f"the log has the messages of outbox {name!r} through {found.seq}, and "
                f"{lost[0]} to {lost[1]} had been acknowledged: it lacks them, and so does the "
                "outbox",
                found.seq,
            )
        # First, so that who dies behind it is told of the loss again.
        opened.adopt(name, box.incarnation, log.incarnation)
        if lost is not None:
            until_answered(place, lambda: pass_over(box))
    adopted = Adopted(box.head.seq - max(found.seq, box.done.seq), lost)
    _log.warning(
        "outbox_adopted",
        log=place.name,
        outbox=name,
        incarnation=log.incarnation,
        before=box.incarnation,
        waiting=adopted.waiting,
        lost=lost,
    )
    return adopted
