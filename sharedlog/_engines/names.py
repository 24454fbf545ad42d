"""The name of a log among others of one server: ``?log=NAME`` in its URL."""

from __future__ import annotations

import re
from urllib.parse import parse_qs

from _rifl_ground.urls import split_url
from sharedlog._core.errors import InvalidRequest

DEFAULT = "log"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


def log_name(url: str) -> tuple[str, str, dict[str, str]]:
    """Return the URL without its options, the log's name, and the other options.

    Raises ``InvalidRequest``, without the URL in its text: it may have a password.
    """
    base, _, _ = url.partition("?")
    try:
        query = split_url(url).query
        given = parse_qs(query, keep_blank_values=True, strict_parsing=True) if query else {}
    except ValueError:
        raise InvalidRequest("the options of a log's URL are NAME=VALUE&NAME=VALUE") from None
    names = given.pop("log", [DEFAULT])
    if len(names) != 1 or not _NAME.fullmatch(names[0]):
        raise InvalidRequest(
            "a log's name, ?log=NAME, is 1 to 100 letters, digits, _ . -, beginning with none of "
            "the last two"
        )
    return base, names[0], {name: values[-1] for name, values in given.items()}
