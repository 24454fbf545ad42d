"""A replica that starts while its log's engine is down (DESIGN §7; docs/reference/curp.md)."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

import curp
from curp._cli.command import main
from curp._cli.operator_client import OperatorClient
from curp._replica import engine_at_start
from curp._replica.engine_at_start import open_at_start
from curp.log import create_log
from curp.log._errors import LogUnavailable
from tests.helpers.ports import free_port
from tests.helpers.processes import started
from tests.helpers.waiting import until


def _serve(url: str, address: str, *more: str) -> list[str]:
    return [
        *("serve", "examples.replicated_bank.bank:MemoryBank", "--engine", url),
        *("--name", "r1", "--listen", address, "--log-json", *more),
    ]


def test_a_replica_waits_for_its_engine_and_says_for_what(own_redis: Any, tmp_path: Path) -> None:
    """It leads once the engine is there; one that is told to end meanwhile ends (§7)."""
    url, addresses = own_redis.url(group="bank"), [f"127.0.0.1:{free_port()}" for _ in range(2)]
    create_log(url)
    own_redis.stop()
    with contextlib.ExitStack() as stack:
        waits, ends = (
            stack.enter_context(started("curp", *_serve(url, address), log=tmp_path / f"{n}.err"))
            for n, address in enumerate(addresses)
        )
        for process in (waits, ends):
            until(lambda process=process: '"waiting"' in process.errors(), "it says so")
        (event,) = [json.loads(line) for line in waits.errors().splitlines() if "waiting" in line]
        assert event["replica"] == "r1"
        assert "the log engine cannot be asked" in event["reason"]
        assert "refused" in event["reason"]
        assert ends.terminate() == 0
        own_redis.start()
        assert waits.line() == addresses[0]

        def role() -> str:
            ((_, status),) = OperatorClient(addresses[:1]).statuses()
            return "" if status is None else status.role

        until(lambda: role() == "leader", "it leads")
        assert waits.terminate() == 0


@pytest.mark.parametrize("place", ["redis://{}/0", "postgresql://{}/bank", "etcd://{}"])
def test_an_engine_that_never_answers_is_an_exit_status_of_its_own(
    place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """3: start it again; what an engine answers is 1, and is not asked twice (§7)."""
    url = f"{place.format(f'127.0.0.1:{free_port()}')}?group=bank"
    arguments = _serve(url, f"127.0.0.1:{free_port()}", "--engine-wait", "0")
    assert main(arguments) == 3
    assert "did not answer within 0 s" in capsys.readouterr().err


def test_a_log_that_is_not_there_is_not_waited_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only ``curp init`` makes one, so that waiting would hide a log that is lost (§7)."""
    arguments = _serve(f"sqlite:///{tmp_path}/bank.log?group=bank", f"127.0.0.1:{free_port()}")
    assert main(arguments) == 1
    assert "curp init" in capsys.readouterr().err


def test_it_is_asked_until_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """At growing distances, each cause told once; then the engine's own error (§7)."""
    now, pauses, causes = 0.0, [], iter(["refused", "refused", "loading", *["refused"] * 99])

    def pause(seconds: float) -> None:
        nonlocal now
        pauses.append(seconds)
        now += seconds

    def unavailable(url: str) -> Any:
        raise LogUnavailable(next(causes))

    monkeypatch.setattr(engine_at_start, "open_engine", unavailable)
    with capture_logs() as logged, pytest.raises(LogUnavailable):
        open_at_start("redis://", "r1", 6.0, pause=pause, clock=lambda: now)
    assert pauses == pytest.approx([0.2, 0.4, 0.8, 1.6, 2.0, 1.0])
    assert [event["reason"].rpartition(": ")[2] for event in logged] == [
        *("refused", "loading", "refused")
    ]


def test_a_replica_of_a_program_waits_as_long_as_its_tuning_says() -> None:
    """``Replica(url)`` does as ``curp serve`` does, and raises what it would exit for (§7)."""
    url = f"redis://127.0.0.1:{free_port()}/0?group=bank"
    with pytest.raises(LogUnavailable, match="refused"):
        curp.Replica(url, name="r1", address="127.0.0.1:1", tuning=curp.Tuning(engine_wait_s=0.0))
