"""Messages and progress as the command prints them, for people or as JSON."""

from __future__ import annotations

import base64
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from _rifl_ground.texts import print_table, printable
from sharedlog._core.message import Message
from sharedlog._core.reading import State

_DIM, _KEY, _END = "\x1b[2m", "\x1b[36m", "\x1b[0m"
# The content of a message; unknown for a sealed one.
_CONTENT = ("event_time", "content_type", "schema_name", "headers", "key", "value")
_STATES = {State.PENDING: "\x1b[33m", State.ROLLED_BACK: "\x1b[31m"}


def print_json(value: Any) -> None:
    """Print one object on a line."""
    sys.stdout.write(json.dumps(value) + "\n")


def print_value(as_json: bool, value: Mapping[str, Any]) -> None:
    """Print names and values."""
    if as_json:
        print_json(dict(value))
    else:
        print_table("", ("", ""), [(name, str(each)) for name, each in value.items()])


def coloured(choice: str) -> bool:
    """Say whether to print colours: ``always``, ``never``, or ``auto``: on a terminal."""
    if choice == "auto":
        return sys.stdout.isatty() and "NO_COLOR" not in os.environ
    return choice == "always"


def message_object(message: Message) -> dict[str, Any]:
    """Return a message for programs: bytes that are no text are in base64."""
    found: dict[str, Any] = {
        "position": str(message.position),
        "stream": message.stream,
        "substream": message.substream,
        "state": message.state.value,
        "append_time": message.append_time.isoformat(),
        "sealed": message.sealed,
    }
    if message.sealed:
        return found | dict.fromkeys(_CONTENT)
    found |= {
        "event_time": message.event_time.isoformat(),
        "content_type": message.content_type,
        "schema_name": message.schema_name,
        "headers": {name: _text(value) for name, value in message.headers.items()},
    }
    for name, value in (("key", message.key), ("value", message.value)):
        if value is None:
            found[name] = None
        else:
            try:
                found[name] = value.decode()
            except UnicodeDecodeError:
                found[f"{name}_base64"] = base64.b64encode(value).decode()
    return found


def print_message(message: Message, *, as_json: bool, colours: bool) -> None:
    """Print a message on a line of its own."""
    if as_json:
        print_json(message_object(message))
        return
    dim, key, end = (_DIM, _KEY, _END) if colours else ("", "", "")
    parts = [
        f"{dim}{message.append_time.isoformat(timespec='milliseconds')} {message.position}{end}"
    ]
    if message.state is not State.COMMITTED:
        colour = _STATES[message.state] if colours else ""
        parts.append(f"{colour}{message.state.value}{end}")
    if message.sealed:
        parts.append(f"{dim}sealed{end}")
        sys.stdout.write("  ".join(parts) + "\n")
        return
    if message.key is not None:
        parts.append(f"{key}{_text(message.key)}{end}")
    parts.append(_text(message.value))
    sys.stdout.write("  ".join(parts) + "\n")


@contextmanager
def progress(title: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show how far something is, of ``total``: a bar on a terminal where rich is installed."""
    try:
        if not sys.stderr.isatty():
            raise ImportError
        from rich.console import Console
        from rich.progress import Progress
    except ImportError:
        yield lambda _: None
        return
    with Progress(console=Console(stderr=True)) as bar:
        task = bar.add_task(title, total=max(total, 1))
        yield lambda done: bar.update(task, completed=done)


def told_time(at_us: int) -> str:
    """Return a time of the log for people."""
    return datetime.fromtimestamp(at_us / 1_000_000).astimezone().isoformat(timespec="seconds")


def _text(value: bytes) -> str:
    try:
        return printable(value.decode())
    except UnicodeDecodeError:
        return f"0x{value.hex()}"
