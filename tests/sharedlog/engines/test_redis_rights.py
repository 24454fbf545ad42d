"""A Redis user that may not do everything: named when the log opens (DESIGN-LOG §12)."""

from __future__ import annotations

import re
from contextlib import closing

import pytest

import sharedlog
from sharedlog._core.commit import Commit, Condition, NewEntry, Put, Refused
from sharedlog._core.errors import LogUnavailable
from sharedlog._engines.redis.opening import create_log, open_log
from tests.helpers.pages import page

_DOCS = page("log-engines.md")


def documented() -> list[str]:
    """Return the rules of the documented user."""
    found = re.search(r"ACL SETUSER sharedlog (.+?)```", _DOCS.read_text("utf-8"), re.DOTALL)
    assert found
    return found[1].split()


@pytest.fixture
def url(shared_redis, name):
    """The URL of a log that a documented user of its own opens; its name is the log's."""
    with shared_redis.client() as client:
        client.execute_command("ACL", "SETUSER", name, "reset", *documented())
    create_log(shared_redis.url(log=name), {"k": b"v"}).close()
    yield f"redis://{name}:secret@127.0.0.1:{shared_redis.port}/0?log={name}"
    with shared_redis.client() as client:
        client.execute_command("ACL", "DELUSER", name)


def test_the_documented_rights_are_all_that_a_log_needs(shared_redis, name, url):
    """Commits, reads, waits and removal work as the documented user (§12)."""
    with closing(open_log(url)) as engine:
        engine.commit(Commit(puts=(Put("k", None),), entries=(NewEntry(b"a", ("t",)),) * 2))
        with pytest.raises(Refused):
            engine.commit(Commit((Condition("k", b""),)))
        assert engine.wait(1, 5) == 2
        assert engine.wait(2, 0.01) == 2
        engine.remove(1)
        assert len(engine.read(1, 10, "t").rows) == 1
        assert (engine.scan(""), engine.get(("k",))) == ({}, {"k": None})
    with shared_redis.client() as client:
        names = {key.rpartition(b":")[2] for key in client.keys(f"sharedlog:[{{]{name}}}:*")}
    # Nothing is left of what was tried.
    assert names == {b"head", b"entries", b"t"}


@pytest.mark.parametrize(
    "right", [rule for rule in documented() if rule.startswith("+") and rule != "+config|get"]
)
def test_a_right_that_is_missing_is_named_when_the_log_opens(shared_redis, name, url, right):
    """Nobody commits as a user under whom a commit could stop half-way (§12)."""
    with shared_redis.client() as client:
        client.execute_command("ACL", "SETUSER", name, "-" + right[1:].partition("|")[0])
    with pytest.raises(LogUnavailable, match=f"(?i){right[1:].replace('|', ' ')}") as caught:
        open_log(url)
    assert (caught.value.appended, caught.value.passing) == (False, False)


@pytest.mark.parametrize("rule", ["-evalsha", "-xadd", "-info", ">other"])
def test_a_right_that_is_missing_is_not_asked_for_again(shared_redis, name, url, rule, monkeypatch):
    """An operator is told at once, when it opens and under an open log (L3)."""

    def waited(*_):
        pytest.fail("it is asked again")

    url = f"{url}own"
    sharedlog.create(shared_redis.url(log=f"{name}own")).close()
    rules = [rule] if rule.startswith("-") else ["resetpass", rule]
    monkeypatch.setattr("sharedlog._log.opening.time.sleep", waited)
    with sharedlog.open(url) as log:
        monkeypatch.setattr(log._place.closing, "wait", waited)
        log.stream("s", 1)
        with shared_redis.client() as client:
            client.execute_command("ACL", "SETUSER", name, *rules)
        if rule in ("-evalsha", "-xadd"):
            with pytest.raises(LogUnavailable, match=f"(?i){rule[1:]}") as caught:
                log.publish("s", b"a")
            # What a script had done before is not undone: that is for the log to find out.
            assert caught.value.appended is (False if rule == "-evalsha" else None)
    said = rule[1:] if rule.startswith("-") else "does not let this user in"
    with pytest.raises(LogUnavailable, match=f"(?i){said}") as caught:
        sharedlog.open(url)
    assert caught.value.appended is False
