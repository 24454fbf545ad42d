"""The threat model's table, row by row: who may, and who changes nothing (DESIGN §9)."""

from __future__ import annotations

import contextlib
import importlib
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

import tests.threats.calls
import tests.threats.groups
import tests.threats.logs
import tests.threats.served  # noqa: F401 - each adds its cases
from lease_server._tokens import Secret, make_token
from tests.helpers.pages import ROOT, page
from tests.threats.case import CASES, Case, Code, Door
from tests.threats.copies import of_calls, of_group, of_log
from tests.threats.people import ROLES, TRANSPORTS, People, Transport, peer_named
from tests.threats.stages import CallsStage, GroupStage, Stage, stages

_SERVICES = re.compile(r"^service (\w+)", re.MULTILINE)
_BY_MUTUAL_TLS_NO_MORE = "†"


def table(head: str) -> list[list[str]]:
    """The cells of one of the page's tables."""
    text = page("threat-model.md").read_text()
    found = text.partition(f"{head}\n")[2].partition("\n\n")[0].splitlines()[1:]
    assert found, head
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in found]


def rows() -> dict[str, str]:
    """Who may, by what the page calls an RPC, with its use."""
    found = {}
    for who, uses in table("| who | RPCs |"):
        for use in uses.replace("`", "").split(", "):
            assert use not in found, use
            found[use] = who
    return found


def may(who: str, transport: Transport) -> set[str]:
    """Return the roles that a cell names, over a transport."""
    mutual = transport == "mutual TLS"
    roles = set(ROLES)
    if who == "all but strangers":
        roles -= {"stranger"}
    elif who != "anyone":
        named = who.split(", ")
        roles = {each.rstrip(_BY_MUTUAL_TLS_NO_MORE) for each in named}
        assert roles <= set(ROLES), who
        if mutual:
            roles = {each for each in named if not each.endswith(_BY_MUTUAL_TLS_NO_MORE)}
    # It has no connection there.
    return roles - {"stranger"} if mutual else roles


def methods_of_ours() -> set[str]:
    """Every RPC of rifl's protos, as ``package.Service/Method``."""
    found = set()
    for file in sorted((ROOT / "proto").rglob("*.proto")):
        module = ".".join(file.relative_to(ROOT / "proto").with_suffix("").parts) + "_pb2"
        described = importlib.import_module(module).DESCRIPTOR
        # Nothing is left out by how a module was found.
        assert set(described.services_by_name) == set(_SERVICES.findall(file.read_text()))
        for service in described.services_by_name.values():
            found |= {f"{service.full_name}/{each.name}" for each in service.methods}
    return found


def test_every_rpc_has_a_row_and_every_row_an_rpc() -> None:
    """A new RPC of rifl's services fails here until it has both (DESIGN §9)."""
    tried = {case.rpc for case in CASES.values() if "/" in case.rpc}
    assert {each for each in tried if not each.startswith("grpc.")} == methods_of_ours()
    assert set(rows()) == set(CASES)


class House:
    """All servers, and all people."""

    def __init__(self, directory: Path, people: People, found: dict[str, Stage]) -> None:
        self.directory = directory
        self.people = people
        self.stages = found

    def doors(self, case: type[Case], transport: Transport) -> Iterator[Door]:
        """Where a case can be tried."""
        service = case.rpc.partition("/")[0]
        for stage in self.stages.values():
            if service in stage.serves and stage.name in (case.at or self.stages):
                yield Door(stage, self.people, transport)


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """Started once for all of them."""
    people = People()
    with contextlib.ExitStack() as stack:
        directory = tmp_path_factory.mktemp("threats")
        found = stages(directory, people, stack)
        stack.callback(people.close)
        yield House(directory, people, found)


# A cell of what is in no such copy: a dash.
NONE = "\N{EN DASH}"
_OF_A_COPY = ("a server's store", "a group's log", "a shared log")


def test_what_a_copy_shows_is_what_the_table_says(house: House, tmp_path: Path) -> None:
    """Each row is looked for in the files, sealed and not, as it was given (DESIGN §9)."""
    cells = table(f"| in a copy of | {' | '.join(_OF_A_COPY)} |")
    group = house.stages["group"]
    assert isinstance(group, GroupStage)
    with contextlib.ExitStack() as stack:
        plain, sealed = (
            [
                stack.enter_context(of_calls(tmp_path, sealed=each)),
                stack.enter_context(of_group(house.directory, group)),
                stack.enter_context(of_log(tmp_path, sealed=each)),
            ]
            for each in (False, True)
        )
        told = {
            (row, column): cell
            for row, *columns in cells
            for column, cell in enumerate(columns)
            if cell != NONE
        }
        found = {
            (row, column): _said(plain[column].readable(row), sealed[column].readable(row))
            for column in range(3)
            for row in plain[column].given
        }
    assert {each: cell.replace("hashed", "absent") for each, cell in told.items()} == found


def _said(plain: set[bool], sealed: set[bool]) -> str:
    """Return what a cell says of samples that are found in a plain copy, and in one with seals."""
    words = {(True, True): "readable", (True, False): "unless sealed", (False, False): "absent"}
    (in_plain,), (in_sealed,) = plain, sealed
    return words[in_plain, in_sealed]


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("name", CASES)
def test_who_may_does_it_and_others_change_nothing(
    house: House, name: str, transport: Transport
) -> None:
    """As each of them, with a request that succeeds for who may (DESIGN §9)."""
    case, allowed = CASES[name], may(rows()[name], transport)
    doors = list(house.doors(case, transport))
    assert doors, "nothing serves it"
    for door in doors:
        # Those who may not come first: what cannot be undone is still to be done.
        for role in sorted(ROLES, key=lambda each: each in allowed):
            _try(case(door, role), allowed)


def _try(case: Case, allowed: set[str]) -> None:
    where = case.name(), case.door.transport, case.stage.name, case.role
    request = case.request()
    kept, before = case.kept(), case.stage.state()
    code, reply = _asked(case, request)
    if case.role in allowed:
        assert code is Code.OK, where
        case.check(reply, before, case.stage.state())
        return
    assert code is _refusal(case), where
    assert case.kept() == kept, where


def _asked(case: Case, request: Any) -> tuple[Code, Any]:
    try:
        reply = case.ask(request)
    except grpc.RpcError as error:
        return error.code(), None  # type: ignore[attr-defined]  # a grpc.Call, too
    return case.verdict(reply), reply


def _refusal(case: Case) -> Code:
    return Code.UNAVAILABLE if case.role == "stranger" and case.door.mutual else case.refusal()


@pytest.mark.parametrize("by", ["plaintext", "another authority"])
def test_who_has_no_certificate_of_this_authority_reaches_nothing(house: House, by: str) -> None:
    """At the port of mutual TLS, at each server, by whatever method (DESIGN §5)."""
    for stage in house.stages.values():
        channel = house.people.unknown(stage.ports.mutual, by)
        with channel, pytest.raises(grpc.RpcError) as refused:
            channel.unary_unary("/any.Service/Method")(b"", timeout=60)
        assert refused.value.code() is Code.UNAVAILABLE, stage.name  # type: ignore[attr-defined]
        known = house.people.channel("thief", stage.ports.mutual, "mutual TLS")
        with pytest.raises(grpc.RpcError) as refused:
            known.unary_unary("/any.Service/Method")(b"", timeout=60)
        assert refused.value.code() is Code.UNIMPLEMENTED, stage.name  # type: ignore[attr-defined]


def test_who_has_a_copy_signs_the_token_of_any_client(house: House) -> None:
    """Over mutual TLS with any certificate that is accepted: the page says so (DESIGN §5)."""
    stage = house.stages["calls, sync"]
    assert isinstance(stage, CallsStage)
    ((key_id, value),) = stage.rows()["rifl_secret"]
    for transport, peer in (("plaintext", b""), ("mutual TLS", peer_named("thief"))):
        door = Door(stage, house.people, transport)
        case = CASES["LeaseServer/Renew"](door, "thief")
        request = case.request()
        request.token = make_token(Secret(key_id, value), request.client_id, peer)
        before = stage.state()
        case.check(case.ask(request), before, stage.state())


def test_no_other_user_of_the_machine_reads_a_file(house: House) -> None:
    """Databases, logs, locks and notes, as long as their servers run (DESIGN §9)."""
    modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in house.directory.iterdir()}
    assert {f"{each}-wal" for each in ("sync.db", "group.log", "events.db")} <= set(modes)
    assert set(modes.values()) == {0o600}, modes
