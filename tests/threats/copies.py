"""Copies of databases: what is put into each, to be looked for in its files."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import rifl
import sharedlog
from examples.bank.v1 import bank_pb2
from sharedlog._core.producers import grant
from tests.helpers.raw import SESSION_SECRET, RawClient
from tests.helpers.sealing import FINGERPRINT_KEYS, SEALED, seal, unseal
from tests.helpers.servers import generic, serve
from tests.threats.people import GROUP_TOKEN, TOKENS
from tests.threats.stages import DEPOSIT, PLAIN, GroupStage

__all__ = ["Copy", "of_calls", "of_group", "of_log"]

REQUEST, ANSWER = b"what a caller asks for", b"what it is answered"
KEY, SESSION = b"order-17", "nightly import"
PRODUCER = b"producer's token"
# Of rows that no store is told of.
NEVER = [GROUP_TOKEN.encode(), *TOKENS.values(), *FINGERPRINT_KEYS]


class Copy(NamedTuple):
    """Files, and what was given to the process that wrote them, by the rows of the page."""

    files: list[Path]
    given: dict[str, list[bytes]]

    def readable(self, row: str) -> set[bool]:
        """Whether what a row speaks of is found in the files, as it was given."""
        text = b"".join(each.read_bytes() for each in self.files)
        return {each in text for each in self.given[row]}


@contextlib.contextmanager
def of_calls(directory: Path, *, sealed: bool) -> Iterator[Copy]:
    """A server's store, in which a session made a call."""
    file = directory / f"calls-{sealed}.db"
    options: dict[str, Any] = SEALED if sealed else {}
    with rifl.Deduplicator(f"sqlite:///{file}", **options) as dedup:
        answer = generic("shop.S", {"Plain": lambda request, context: ANSWER})
        with serve("sync", [answer], dedup=dedup) as server, RawClient(server.address) as client:
            client.open_session(SESSION)
            assert client.call(PLAIN, REQUEST, key=KEY).response == ANSWER
            ring: Any = dedup._authority.key_ring
            yield _copy(
                file,
                names=[PLAIN.encode(), KEY, SESSION.encode()],
                answers=[ANSWER],
                requests=[REQUEST],
                signing=[ring.signing.value],
                sessions=[SESSION_SECRET],
            )


@contextlib.contextmanager
def of_group(directory: Path, stage: GroupStage) -> Iterator[Copy]:
    """The log of a group, in which a session made two calls."""
    # Bytes that only this answer has, the sum of both.
    cents = 1_000_000_007, 2_000_000_011
    with RawClient(stage.ports.plaintext) as client:
        client.open_session(SESSION)
        for number, each in enumerate(cents):
            request = bank_pb2.DepositRequest(reference="r", account="a copied one", cents=each)
            key = KEY + b"%d" % number
            reply = client.call(DEPOSIT, request.SerializeToString(), key=key)
        receipt = bank_pb2.Receipt.FromString(reply.response or b"")
        assert receipt.balance_cents == sum(cents)
        yield _copy(
            directory / "group.log",
            names=[DEPOSIT.encode(), KEY, SESSION.encode()],
            answers=[receipt.SerializeToString()],
            requests=[b"a copied one"],
            signing=[stage.authority.key_ring.signing.value],
            sessions=[SESSION_SECRET],
        )


@contextlib.contextmanager
def of_log(directory: Path, *, sealed: bool) -> Iterator[Copy]:
    """A shared log with a message, and a producer."""
    file = directory / f"log-{sealed}.db"
    options: dict[str, Any] = {"seal": seal, "unseal": unseal} if sealed else {}
    with sharedlog.create(f"sqlite:///{file}", **options) as log:
        log.stream("orders", 1)
        log.producer("shop").publish("orders", REQUEST, seq=1)
        log._run(grant(PRODUCER, 1))
        yield _copy(file, names=[b"orders", b"shop"], requests=[REQUEST], producers=[PRODUCER])


_ROWS = {
    "names": "names of methods, keys, sessions, streams",
    "answers": "answers",
    "requests": "requests and messages",
    "signing": "what signs clients' tokens",
    "producers": "producers' tokens",
    "sessions": "sessions' secrets",
}


def _copy(file: Path, **given: list[bytes]) -> Copy:
    files = sorted(file.parent.glob(f"{file.name}*"))
    rows = {_ROWS[name]: samples for name, samples in given.items()}
    return Copy(files, {**rows, "other tokens, keys and certificates": NEVER})
