"""A Redis user that may not do everything: named when the log opens (DESIGN §7)."""

from __future__ import annotations

import re

import pytest

from curp.log import open_engine
from curp.log._errors import LogUnavailable
from tests.curp.log.conformance import Writer
from tests.curp.logs import created
from tests.helpers.pages import page

_DOCS = page("curp-logs.md")


def documented() -> list[str]:
    """Return the rules of the documented user."""
    found = re.search(r"ACL SETUSER curp (.+?)```", _DOCS.read_text("utf-8"), re.DOTALL)
    assert found
    return found[1].split()


@pytest.fixture
def url(shared_redis, group):
    """Return the URL of a log that a documented user of its own opens; its name is the group's."""
    with shared_redis.client() as client:
        client.execute_command("ACL", "SETUSER", group, "reset", *documented())
    yield created(f"redis://{group}:secret@127.0.0.1:{shared_redis.port}/0?group={group}")
    with shared_redis.client() as client:
        client.execute_command("ACL", "DELUSER", group)


def test_the_documented_rights_are_all_that_a_log_needs(url):
    """Appends, tags, metadata, snapshots, trims and reads work as the documented user (§7)."""
    engine = open_engine(url)
    writer = Writer(engine)
    writer.append(b"a", b"b", tags=("t",), metadata={"k": b"v"})
    writer.snapshot(1, b"s")
    assert len(engine.read(0)) == 2
    assert [entry.body for entry in engine.read(0, tag="t")]
    engine.close()


@pytest.mark.parametrize(
    "right", [rule for rule in documented() if rule.startswith("+") and rule != "+config|get"]
)
def test_a_right_that_is_missing_is_named_when_the_log_opens(shared_redis, group, url, right):
    """Nobody appends as a user under whom an append could stop half-way (DESIGN §7)."""
    with shared_redis.client() as client:
        client.execute_command("ACL", "SETUSER", group, "-" + right[1:].partition("|")[0])
    with pytest.raises(LogUnavailable, match=f"(?i){right[1:].replace('|', ' ')}"):
        open_engine(url)
