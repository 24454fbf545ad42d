"""The ``curp`` command over real processes (DESIGN §7; operations)."""

from __future__ import annotations

import contextlib
import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.json_format import MessageToDict
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from curp._cli.command import main
from curp._cli.operator_client import GroupError, OperatorClient
from curp._cli.serve import find_servicer
from examples.replicated_bank.load import Load
from rifl._grpc.entrance import WAITING
from tests.curp.logs import created
from tests.helpers.half_open import half_open
from tests.helpers.ports import free_port
from tests.helpers.processes import Process, started
from tests.helpers.waiting import until

_DEADLINE_S = 60.0
_TOKEN = "open sesame"  # noqa: S105 - of this test


def _free() -> str:
    return f"127.0.0.1:{free_port()}"


class _Group:
    """Two replicas of the bank, a witness in the list and one that is not."""

    def __init__(self, directory: Path, stack: contextlib.ExitStack) -> None:
        self._directory = directory
        self._stack = stack
        self._metrics: dict[str, str] = {}
        token = directory / "token"
        token.write_text(_TOKEN)
        # What changes are asked with.
        self.token = ("--group-token-file", str(token))
        self.listed, self.spare = (
            self._start(
                name, "witness", "--listen", "127.0.0.1:0", "--metrics", self._scraped(name)
            )
            for name in ("w1", "w2")
        )
        self.replicas = [_free(), _free()]
        url = created(f"sqlite:///{directory}/bank.log?group=bank")
        for number, address in enumerate(self.replicas, 1):
            told = self._start(
                f"r{number}",
                "serve",
                "examples.replicated_bank.bank:MemoryBank",
                *("--engine", url),
                *("--name", f"r{number}", "--listen", address, "--witness", self.listed),
                *(part for replica in self.replicas for part in ("--replica", replica)),
                *("--conflict-key", "/bank.v1.Bank/Deposit=account"),
                *("--conflict-key", "/bank.v1.Bank/Balance=account"),
                *("--conflict-key", "/bank.v1.Bank/Statement=account"),
                *("--read-only", "/bank.v1.Bank/Balance"),
                *("--read-only", "/bank.v1.Bank/Statement"),
                *(
                    "--metrics",
                    self._scraped(f"r{number}"),
                    "--health",
                    "--reflection",
                    "--log-json",
                ),
            )
            assert told == address

    def scrape(self, name: str) -> dict[str, float]:
        """Every sample of a process, by its name and labels as Prometheus writes them."""
        with urllib.request.urlopen(f"http://{self._metrics[name]}/metrics", timeout=30) as reply:
            text = reply.read().decode()
        samples = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
        return {sample: float(value) for sample, _, value in samples}

    def fast_answers(self, name: str) -> float:
        """How many operations a replica answered before their entry was in the log."""
        samples = self.scrape(name)
        return samples[f'curp_answers_total{{group="bank",replica="{name}",speed="fast"}}']

    def events(self, name: str) -> list[dict[str, Any]]:
        """What a replica logged."""
        lines = (self._directory / f"{name}.err").read_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]

    def statuses(self) -> dict[str, dict[str, Any]]:
        """What each replica says of itself, by its name."""
        found = OperatorClient(self.replicas, group_token=_TOKEN).statuses()
        return {status.replica: MessageToDict(status) for _, status in found if status is not None}

    def leader(self) -> str:
        """Wait for one that leads; its name."""

        def leads() -> str:
            found = self.statuses().items()
            return next((name for name, status in found if status["role"] == "leader"), "")

        name: str = until(leads, "one leads", _DEADLINE_S)
        return name

    def _scraped(self, name: str) -> str:
        address = self._metrics[name] = _free()
        return address

    def _start(self, name: str, *arguments: str) -> str:
        process: Process = self._stack.enter_context(
            started("curp", *arguments, *self.token, log=self._directory / f"{name}.err")
        )
        return process.line(_DEADLINE_S)


@pytest.fixture
def group(tmp_path: Path) -> Iterator[_Group]:
    """A group run from the command line."""
    with contextlib.ExitStack() as stack:
        yield _Group(tmp_path, stack)


def test_a_group_is_run_looked_at_and_changed_under_load(
    group: _Group, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the command alone, while calls go on, of which none is lost or doubled (invariant 11)."""
    first, second = group.listed, group.spare

    def run(*arguments: str) -> tuple[int, str]:
        code = main([*arguments, *group.token])
        told = capsys.readouterr()
        return code, told.out + told.err

    leader = group.leader()
    with Load(group.replicas, callers=2, accounts=32) as load:
        load.await_answers(20)
        code, told = run("status", *group.replicas)
        assert code == 0
        assert f"witness {first}  normal" in told
        told = run("status", group.replicas[0], "--json")[1]
        assert {status["role"] for status in json.loads(told)} == {"leader", "standby"}
        assert run("witness", "add", group.replicas[1], second)[0] == 0
        load.await_answers(20)
        assert run("witness", "remove", group.replicas[0], first)[0] == 0
        load.await_answers(20)
        assert run("witness", "replace", group.replicas[0], first, second)[0] == 1
        code, told = run("witness", "replace", group.replicas[0], second, first)
        assert (code, told.partition(": ")[2]) == (0, f"witnesses {first}\n"), told
        nobody = f"127.0.0.1:{free_port()}"
        code, told = run("witness", "add", group.replicas[0], nobody)
        assert (code, f"{nobody} could not be started" in told) == (0, True), told
        assert run("witness", "remove", group.replicas[0], nobody)[0] == 0
        load.await_answers(20)
        other = "r2" if leader == "r1" else "r1"
        assert run("transfer", group.replicas[0], "--to", other)[0] == 0
        until(lambda: group.leader() == other, "it leads", _DEADLINE_S)
        load.await_answers(20)
        until(lambda: group.fast_answers(other), "it answers first", _DEADLINE_S)
        report = load.finish()
    assert report.violations == []
    assert (report.duplicates, report.lost, report.unknown) == (0, 0, 0)
    assert report.effects > 0
    _check_metrics(group, leader, other)
    _check_events(group, leader, other)
    _check_health(group, leader, other)
    _check_strangers(group)


def _check_metrics(group: _Group, before: str, leader: str) -> None:
    """Positions, answers, appends, take-overs and records are counted where they happen."""
    samples = group.scrape(leader)
    of = f'group="bank",replica="{leader}"'
    assert samples[f'curp_role{{{of},role="leader"}}'] == 1
    assert samples[f"curp_lag_entries{{{of}}}"] <= samples[f"curp_log_tail_position{{{of}}}"]
    assert samples[f"curp_witnesses_listed{{{of}}}"] == 1
    assert samples[f"curp_configuration_number{{{of}}}"] >= 5
    assert samples["rifl_store_commit_entries_sum"] > 0
    assert samples[f'curp_recovery_seconds_count{{replica="{leader}"}}'] == 1
    assert samples["rifl_server_serving"] == 1
    samples = group.scrape(before)
    assert samples[f'curp_role{{group="bank",replica="{before}",role="standby"}}'] == 1
    assert samples[f'curp_role_changes_total{{replica="{before}",role="leader"}}'] == 1
    assert samples["rifl_server_serving"] == 0
    samples = group.scrape("w1")
    assert samples['curp_witness_records_total{verdict="accepted"}'] > 0
    assert samples['curp_witness_mode{mode="normal"}'] == 1


def _check_events(group: _Group, before: str, leader: str) -> None:
    """Each change of the leadership is in the logs, with what the recovery found."""
    led = [each for each in group.events(leader) if each["event"] == "leading"]
    assert len(led) == 1
    assert led[0]["replica"] == leader
    assert led[0]["witnesses"] == [group.listed]
    assert {"configuration", "tail", "frozen", "held", "replayed", "dropped", "seconds"} <= set(
        led[0]
    )
    events = [each["event"] for each in group.events(before)]
    assert events.count("witnesses_changed") == 5
    for event in ("taking_over", "leading", "stepped_down"):
        assert events.count(event) == 1


def _check_health(group: _Group, before: str, leader: str) -> None:
    """Calls are for the leader; every replica is alive; and both can be reflected on."""
    addresses = dict(zip(("r1", "r2"), group.replicas, strict=True))
    statuses = health_pb2.HealthCheckResponse
    for name, serving in ((leader, statuses.SERVING), (before, statuses.NOT_SERVING)):
        with grpc.insecure_channel(addresses[name]) as channel:
            check = health_pb2_grpc.HealthStub(channel).Check
            for service, expected in (
                ("", serving),
                ("bank.v1.Bank", serving),
                ("curp.v1.Group", statuses.SERVING),
            ):
                request = health_pb2.HealthCheckRequest(service=service)
                assert check(request, timeout=30).status == expected
            stub = reflection_pb2_grpc.ServerReflectionStub(channel)
            ask = reflection_pb2.ServerReflectionRequest(list_services="")
            shown = (("curp-group-token", _TOKEN),)
            (reply,) = stub.ServerReflectionInfo(iter([ask]), timeout=30, metadata=shown)
            listed = {service.name for service in reply.list_services_response.service}
            assert {"bank.v1.Bank", "curp.v1.Group"} <= listed


def _check_strangers(group: _Group) -> None:
    """More half-open calls than wait, of the application's methods, too: the oldest makes room."""
    for address, path in (
        (group.replicas[0], "/bank.v1.Bank/Deposit"),
        (group.listed, "/curp.v1.Witness/Record"),
    ):
        with half_open(address, {"127.0.1.1": [path] * (WAITING + 1)}) as strangers:
            until(lambda seen=strangers: seen.ended > 0, "calls that had to make room")
            assert strangers.most_streams == 2_000


def test_what_cannot_be_served_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    """A wrong name, a class that is no servicer, an engine that is none: exit code 1."""
    for name in ("tests.curp.replica.ledger", "tests.no:Such", "tests.curp.replica.ledger:Ledger"):
        with pytest.raises(GroupError):
            find_servicer(name)
    arguments = ["serve", "tests.curp.replica.ledger:Bank", "--engine", "nowhere://", "--name", "r"]
    assert main([*arguments, "--listen", "127.0.0.1:0"]) == 1
    assert "curp: " in capsys.readouterr().err
    assert main(["status", "127.0.0.1:1"]) == 1
