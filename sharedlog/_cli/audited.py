"""The acts of commands at a log that this process opens itself, as the audit has them."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager

from _rifl_ground.audit import acted, this_user
from _rifl_ground.exits import CommandRefused
from sharedlog._cli import attending, letters, operating, querying
from sharedlog._cli.arguments import accept_loss, restored


@contextmanager
def told_audit(arguments: argparse.Namespace) -> Iterator[None]:
    """Tell what the command in the block did. A served log's server tells it by itself."""
    verb, what = _act(arguments)
    if not verb or arguments.url.startswith("grpc"):
        yield
        return
    try:
        yield
    except CommandRefused:
        # Nothing was done.
        raise
    except BaseException as error:
        acted(this_user(), verb, what, error)
        raise
    acted(this_user(), verb, what)


def _act(given: argparse.Namespace) -> tuple[str, str]:
    """Return the verb and the object of what changes a log, or empty ones.

    Orders to targets have an event of their own, which says who gave them.
    """
    run = given.run
    acts: tuple[tuple[bool, str, str | None], ...] = (
        (run is operating.retire, "retire_producer", str(vars(given).get("producer"))),
        (run is operating.forget, "forget_producer", vars(given).get("name")),
        (run is restored, "restored", "log"),
        (run is accept_loss, "accept_loss", "log"),
    )
    if run is operating.holds:
        acts = (
            (given.drop is not None, "drop_hold", given.drop),
            (given.forget is not None, "forget_hold", given.forget),
        )
    elif run is operating.trim:
        # On a schedule the trim's own event tells.
        acts = ((given.every is None, "trim", "log"),)
    elif run is operating.relay:
        acts = ((given.adopt, "adopt_outbox", given.outbox),)
    elif run is attending.consumers:
        acts = (
            (given.resume is not None, "resume_consumer", given.resume),
            (given.pause is not None, "pause_consumer", given.pause),
            (given.reset is not None, "reset_consumer", given.reset),
        )
    elif run is querying.queries:
        acts = (
            (given.abandon is not None, "abandon_query", given.abandon),
            (given.forget is not None, "forget_query", given.forget),
            (given.forget_schema is not None, "forget_schema", given.forget_schema),
        )
    elif run is letters.dead_letters:
        acts = ((given.action == "retry", "retry_dead_letter", str(given.position)),)
    return next(((verb, what or "") for does, verb, what in acts if does), ("", ""))
