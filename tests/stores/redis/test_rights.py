"""A Redis user that may not do everything: named at start, and nothing half done (DESIGN §6)."""

from __future__ import annotations

import itertools
import re

import pytest
import redis

from _rifl_ground.redis import rights
from rifl._stores import StoreUnreachable, WrongDatabase, open_store
from rifl._stores.redis.scripts import SERVING
from rifl.core._serving.verdict import Verdict
from tests.helpers.pages import page
from tests.stores.redis.replica import ATOMIC, FIRST, IDEMPOTENT, Replica, call, keyed

_DOCS = page("stores-redis.md")
_USERS = itertools.count()
_QUICK = "beat_s=0.05&dead_after_s=0.6&timeout_s=2"
NAMESPACE = -7


def documented() -> list[str]:
    """Return the rules of the documented user."""
    found = re.search(r"ACL SETUSER rifl (.+?)```", _DOCS.read_text("utf-8"), re.DOTALL)
    assert found
    return found[1].split()


@pytest.fixture
def user(shared_server):
    """Make users by rules; each gets a namespace, and the URL that names both."""
    made = []

    def make(*rules: str) -> str:
        name = f"u{next(_USERS)}"
        with shared_server.client() as client:
            given = [rule.replace("rifl:", f"{name}:") for rule in (*documented(), *rules)]
            client.execute_command("ACL", "SETUSER", name, "reset", *given)
        made.append(name)
        return f"redis://{name}:secret@127.0.0.1:{shared_server.port}/0?namespace={name}&{_QUICK}"

    yield make
    with shared_server.client() as client:
        client.execute_command("ACL", "DELUSER", *made)


def test_every_command_of_a_script_is_tried():
    """What scripts call, and nothing else, is tried, so that none fails half-way (DESIGN §6)."""
    called = {name for script in SERVING for name in rights._CALLED.findall(script.text)}
    arguments = rights.probe(SERVING)
    tried, at = set(), 0
    while at < len(arguments):
        tried.add(arguments[at + 1])
        at += 1 + arguments[at]
    assert tried == called
    granted = {rule[1:].upper() for rule in documented() if rule.startswith("+")}
    assert granted - called == {
        "EVAL",
        "EVALSHA",
        "SCRIPT|LOAD",
        "SUBSCRIBE",
        "INFO",
        "CONFIG|GET",
    }


def test_the_documented_rights_are_all_that_a_server_needs(user):
    """Calls, keys, waiting, sessions, leases and sweeps work as the documented user (§6)."""
    url = user()
    one, two = Replica(url), Replica(url)
    client = one.client()
    running = one.begin(call(client, 1))
    waiting = two.claim(call(client, 1))
    woken = two.woken(waiting.attempt)
    one.finish(running)
    assert woken.wait(60)
    assert two.claim(call(client, 1)).record == FIRST
    one.finish(one.begin(keyed(NAMESPACE, b"k"), IDEMPOTENT))
    assert two.claim(keyed(NAMESPACE, b"k"), IDEMPOTENT).verdict is Verdict.COMPLETED
    # Acknowledged: its record goes.
    one.finish(one.begin(call(client, 2, first=2)))
    session = one.authority.open_session("s", b"").client_id
    one.finish(one.begin(keyed(session, b"k")))
    one.authority.close_session("s", b"")
    one.authority.rotate_secret()
    one.store.leases.release(client)
    one.authority.expire()
    one.store.expire_keys()
    one.close()
    two.close()


@pytest.mark.parametrize("right", [rule for rule in documented() if rule.startswith("+")])
def test_a_right_that_is_missing_is_named_when_the_store_opens(user, right):
    """No server begins with a user that may not do all of it (DESIGN §6)."""
    url = user("-" + right[1:].partition("|")[0])
    expected = right[1:].upper().replace("|", " ")
    if right == "+config|get":
        # Whose settings are not told is weak.
        url += "&durability=warn"
        open_store(url).close()
        return
    with pytest.raises(StoreUnreachable, match=f"may not .*{expected}"):
        open_store(url)


@pytest.mark.parametrize(
    ("rules", "told"),
    [
        (["resetchannels"], "PUBLISH .*wake:probe.*SUBSCRIBE .*wake:probe"),
        (["resetkeys", "~rifl:{store}:*"], r"EVAL .*\{0\}:probe"),
        (["resetkeys", "~other:*"], r"EVAL.*\{store\}:probe"),
    ],
)
def test_keys_and_channels_that_are_out_of_reach_are_named(user, rules, told):
    """Rights are tried on the store's own keys, on clients' and on the channel (DESIGN §6)."""
    with pytest.raises(StoreUnreachable, match=told):
        open_store(user(*rules))


def test_a_message_that_may_not_be_sent_takes_no_record_with_it(user, shared_server):
    """PUBLISH comes after the record: a right lost while running runs nothing twice (§6)."""
    url = user()
    name = url.partition("//")[2].partition(":")[0]
    one, two = Replica(url), Replica(url)
    client = one.client()
    running = one.begin(call(client, 1))
    assert two.claim(call(client, 1)).verdict is Verdict.IN_PROGRESS
    with shared_server.client() as direct:
        direct.execute_command("ACL", "SETUSER", name, "-publish")
    assert one.finish(running) is None
    assert two.claim(call(client, 1)).record == FIRST
    one.close()
    two.close()


def test_a_handlers_user_without_the_rights_is_refused_before_its_effects(user, shared_server):
    """EXEC undoes nothing: the rights of the pipeline's user are tried, too (DESIGN §6)."""
    url = user()
    name = url.partition("//")[2].partition(":")[0]
    with shared_server.client() as direct:
        direct.execute_command("ACL", "SETUSER", f"{name}h", "on", ">h", "~*", "+@all", "-hincrby")
    replica = Replica(url)
    attempt = replica.begin(call(replica.client(), 1), ATOMIC)
    with redis.Redis(port=shared_server.port, username=f"{name}h", password="h") as books:  # noqa: S106
        with pytest.raises(WrongDatabase, match="HINCRBY"), books.pipeline() as transaction:
            replica.store.transactions.record(attempt, FIRST, transaction)
        with shared_server.client() as direct:
            direct.execute_command("ACL", "SETUSER", f"{name}h", "+hincrby", "&*")
        with books.pipeline() as transaction:
            replica.store.transactions.record(attempt, FIRST, transaction)
            transaction.set(f"{name}-effect", "1")
            transaction.execute()
    assert replica.store.committed(attempt).wait() == FIRST
    with shared_server.client() as direct:
        direct.execute_command("ACL", "DELUSER", f"{name}h")
    replica.close()
