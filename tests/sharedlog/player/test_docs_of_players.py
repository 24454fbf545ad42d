"""The first snippets of targets.md and player.md, run together (DESIGN-LOG §15)."""

import contextlib
import re
import sqlite3

from tests.helpers.pages import page
from tests.helpers.ports import free_port


def shown(name, port):
    """Return the first block of Python of a page, for another port."""
    (text, *_) = re.findall(
        r"^```python\n(.*?)^```", page(name).read_text(), re.MULTILINE | re.DOTALL
    )
    return text.replace("127.0.0.1:50051", f"127.0.0.1:{port}")


def test_the_target_and_the_player_of_the_docs_work_together(tmp_path, monkeypatch, wait_for):
    """As they are: the one's handler is called with what the other publishes."""
    monkeypatch.chdir(tmp_path)
    port = free_port()

    def reserved():
        with contextlib.closing(sqlite3.connect("inventory.db")) as connection:
            try:
                return connection.execute("SELECT customer FROM reserved").fetchall()
            except sqlite3.OperationalError:
                return []

    target = {}
    exec(shown("targets.md", port), target)  # noqa: S102 - ours
    try:
        text = shown("player.md", port)
        assert "player.targets()" in text
        text = text.replace("player.targets()", "called()")
        exec(text, {"called": lambda: wait_for(lambda: reserved() == [(b"customer 7",)])})  # noqa: S102 - ours
    finally:
        target["server"].stop(None).wait()
        target["dedup"].close()
