"""Log engines by URL."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

from curp.log.engine import LogEngine
from curp.log.errors import InvalidRequest

__all__ = ["open_engine"]


def open_engine(url: str, *, create: bool = True) -> LogEngine:
    """Open one group's log; raises a ``LogError``, ``InvalidRequest`` for a wrong URL.

    ::

        sqlite:///file?group=NAME               four slashes: from the root
            &timeout_s=5                        for other processes' writes

    ``create`` false: an ``InvalidRequest`` where there is no such log. No message
    holds the URL: it may have a password in it.
    """
    scheme, _, _ = url.partition(":")
    try:
        given = parse_qs(urlsplit(url).query, strict_parsing=True)
        groups = given.pop("group", [])
    except ValueError:
        groups = []
    if len(groups) != 1 or not 1 <= len(groups[0].encode()) <= 256:
        raise InvalidRequest("the URL of a log names its group, of 1 to 256 bytes: ?group=NAME")
    options = {name: values[-1] for name, values in given.items()}
    if scheme == "sqlite":
        return _open_sqlite(url, groups[0], options, create)
    raise InvalidRequest(f"{scheme!r} is not sqlite:///file?group=NAME")


def _open_sqlite(url: str, group: str, options: dict[str, str], create: bool) -> LogEngine:
    from curp.log.sqlite import SqliteEngine

    parts = urlsplit(url)
    path = unquote(parts.path.removeprefix("/"))
    try:
        timeout_s = float(options.pop("timeout_s", "5"))
    except ValueError:
        timeout_s = -1.0
    if parts.netloc or not path or options or not 0 <= timeout_s < float("inf"):
        raise InvalidRequest(
            "a log file's URL is sqlite:///file?group=NAME, with timeout_s or none"
        )
    return SqliteEngine(Path(path), group, create=create, timeout_s=timeout_s)
