"""A query's checkpoint: where it is, by which a copy of it is told apart. Used by both sinks."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Callable

# The session's setting, which Spark passes on to tasks.
_SETTING = "spark.sql.streaming.checkpointLocation"
# Its scheme, its server, its path.
_LOCATION = re.compile(r"(?:([A-Za-z][A-Za-z0-9+.-]*):(?://([^/]*))?)?(.*)", re.DOTALL)
# A flow's of a Declarative Pipeline: STORAGE/_checkpoints/SINK/FLOW/N. A full refresh makes the
# next number, with a query id of its own.
_REFRESHED = re.compile(r".*/_checkpoints/.+/[1-9][0-9]*", re.DOTALL)


def checkpoint_of(location: str, query: str, told: Callable[[str], str | None]) -> str:
    """Return where a query's checkpoint is; "" for a query that begins anew each time.

    ``location``: as its options say, ``query``: its own name, ``told``: what a task is told.
    Raises ``ValueError`` if Spark does not say where.
    """
    if location:
        return location
    below = told(_SETTING)
    if not below:
        raise ValueError(
            "Spark tells this task no checkpoint's location, without which copies of it cannot be "
            'told apart: give the query option("checkpointLocation", ...)'
        )
    return plain_location(f"{below}/{query}") if query else ""


def why_not_anew(place: str, batch: int) -> str:
    """Say why a micro-batch may not begin a query over this checkpoint; "" if it may.

    It would be a pipeline's full refresh, whose sink has had these rows.
    """
    if batch > 0 or not _REFRESHED.fullmatch(place):
        return ""
    return (
        f"{place} is a pipeline's checkpoint after a full refresh: the flow begins anew, and all "
        "that the sink has had would have its effect again. Refresh only tables, by name; if the "
        'effects are wanted again, give the sink option("adopt", "true") for one run'
    )


def plain_location(location: str, *, links: bool = False) -> str:
    """Return the one form of those in which a checkpoint's location may be spelled.

    ``links``: this machine's links are followed, as Spark's driver has them.
    """
    scheme, server, path = _LOCATION.fullmatch(location).groups("")  # type: ignore[union-attr]
    if not location:
        return ""
    plain = re.sub("^/+", "/", posixpath.normpath(path or "/"))
    if scheme not in ("", "file"):
        return f"{scheme}://{server}{plain}"
    return os.path.realpath(plain) if links and plain.startswith("/") else plain
