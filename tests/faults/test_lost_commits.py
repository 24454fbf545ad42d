"""Commits of handlers that go wrong, by each driver of SQLite (DESIGN §6)."""

from __future__ import annotations

import contextlib
import functools
import sqlite3
from collections import Counter
from pathlib import Path

import grpc
import pytest

from tests.faults.drivers import CONTROL, DRIVERS, FAULTS, METHOD, STORE
from tests.helpers.processes import started
from tests.helpers.raw import RawClient
from tests.helpers.waiting import until

pytestmark = pytest.mark.slow


def _effects(folder: Path) -> Counter[str]:
    connection = sqlite3.connect(folder / STORE)
    try:
        return Counter(what for (what,) in connection.execute("SELECT what FROM effect"))
    finally:
        connection.close()


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_commit_that_goes_wrong_is_never_told_wrongly(tmp_path: Path, driver: str) -> None:
    """Killed, lost before or after, or on a full disk: one effect, and no label that lies (§6)."""
    with contextlib.ExitStack() as stack:

        def serve() -> str:
            log = tmp_path / "log"
            arguments = ("tests.faults.drivers", str(tmp_path), driver)
            server = stack.enter_context(started(*arguments, log=log))
            return f"127.0.0.1:{server.line().split()[1]}"

        client = stack.enter_context(RawClient(serve()))
        identity = client.client_id, client.token
        for seq, fault in enumerate(FAULTS, 1):
            request = fault.encode()
            reply = client.call(METHOD, request, seq)
            effects = _effects(tmp_path)[fault]
            if fault.startswith("kill"):
                assert reply.code is grpc.StatusCode.UNAVAILABLE
                assert effects == (fault == "kill-after")
                client = stack.enter_context(RawClient(serve(), grant=False))
                client.client_id, client.token = identity
            elif fault == "lost-after":
                # What stands is the answer, whatever the handler was told.
                assert (reply.response, effects) == (b"done " + request, 1)
            else:
                assert not reply.ok
                assert effects == 0
                assert reply.outcome == "unknown" or fault == "lost-before"
            client.call(CONTROL, b"room", bare=True)

            again = functools.partial(client.call, METHOD, request, seq, attempt=2)
            until(lambda again=again: again().ok, f"{fault}: a retry is answered")  # type: ignore[misc]
            assert _effects(tmp_path)[fault] == 1, fault
            last = client.call(METHOD, request, seq, attempt=3)
            assert (last.response, last.outcome) == (b"done " + request, "replayed")
    assert set(_effects(tmp_path).values()) == {1}
