"""Files of scenarios, read; what makes no sense in them is refused."""

from __future__ import annotations

import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any

from chaos.check import LOG_RULES, RULES
from chaos.run.scenario import KINDS, Deployed, Expected, FaultSpec, Load, Range, Scenario

__all__ = ["DIRECTORY", "BadScenario", "read", "read_all"]

DIRECTORY = Path(__file__).parent / "scenarios"
_STREAMS = ("upstream", "downstream", "both")
_ETCD = {"etcd-leader", "etcd-1", "etcd-2", "etcd-3"}


class BadScenario(ValueError):
    """A scenario's file makes no sense."""


def read(path: Path) -> Scenario:
    """Read a file; raises ``BadScenario`` for one that makes no sense, ``OSError`` for none."""
    try:
        return _scenario(path.stem, tomllib.loads(path.read_text()))
    except (tomllib.TOMLDecodeError, BadScenario) as error:
        raise BadScenario(f"{path.name}: {error}") from None


def read_all(directory: Path = DIRECTORY) -> dict[str, Scenario]:
    """Return all scenarios of a directory, by name."""
    return {path.stem: read(path) for path in sorted(directory.glob("*.toml"))}


def _scenario(name: str, given: dict[str, Any]) -> Scenario:
    faults = given.pop("fault", [])
    parts = {
        "deployment": _table(Deployed, given.pop("deployment", {}), "deployment"),
        "load": _table(Load, given.pop("load", {}), "load"),
        "expect": _table(Expected, given.pop("expect", {}), "expect"),
    }
    wanted: dict[str, tuple[type, ...]] = {
        "title": (str,),
        "topology": (str,),
        "seconds": (int, float),
    }
    for key, kind in wanted.items():
        if not isinstance(given.get(key), kind):
            raise BadScenario(f"it has no {key}")
    short = given.pop("short", False)
    if unknown := set(given) - set(wanted):
        raise BadScenario(f"it has {', '.join(sorted(unknown))}, which mean nothing")
    if not isinstance(faults, list) or not isinstance(short, bool):
        raise BadScenario("faults are [[fault]]s, and short is true or false")
    scenario = Scenario(name=name, short=short, faults=tuple(map(_fault, faults)), **parts, **given)
    _check(scenario)
    return scenario


def _check(scenario: Scenario) -> None:
    deployment, load, expect = scenario.deployment, scenario.load, scenario.expect
    stores = {
        "server": ("sqlite", "redis", "postgresql"),
        "group": ("sqlite", "redis", "postgresql", "etcd"),
        "spark": ("sqlite",),
        "log": ("sqlite", "redis", "postgresql", "etcd"),
    }.get(scenario.topology)
    if stores is None:
        raise BadScenario(f"there is no topology {scenario.topology!r}")
    if deployment.store not in stores:
        raise BadScenario(f"a {scenario.topology} has no store {deployment.store!r}")
    if deployment.method not in ("plain", "idempotent", "atomic", "grpc"):
        raise BadScenario(f"a method cannot be {deployment.method!r}")
    if deployment.method == "atomic" and deployment.store != "sqlite":
        raise BadScenario("atomic methods are there over sqlite only")
    if deployment.store == "sqlite" and scenario.topology == "server" and deployment.servers > 1:
        raise BadScenario("one server at a time owns an SQLite store")
    if deployment.term_s <= 0 or (scenario.topology == "group" and deployment.term_s != 60.0):
        raise BadScenario("term_s is more than 0, and of servers only")
    if deployment.receipt_bytes and scenario.topology in ("group", "log"):
        raise BadScenario("receipt_bytes are of servers")
    if not 0 <= deployment.receipt_bytes <= 1 << 20:
        raise BadScenario("receipt_bytes are at most a mebibyte")
    if deployment.clocks_apart_s and (scenario.topology, deployment.store) != ("group", "redis"):
        raise BadScenario("clocks are apart on several machines only: of a group over redis")
    if deployment.forked_workers < 0 or (expect.forked and not deployment.forked_workers):
        raise BadScenario("forked are calls to forked_workers, of which there are some")
    if deployment.forked_workers and (
        scenario.topology != "server" or deployment.method not in ("plain", "idempotent")
    ):
        # A child would open the file of its parent's store for its handlers, too.
        raise BadScenario("forked_workers are a server's, its method plain or idempotent")
    if not 0 < scenario.seconds <= 60:
        raise BadScenario("seconds are more than 0, and at most 60")
    if deployment.servers < 1 or load.clients < 1 or load.callers < 1 or load.accounts < 1:
        raise BadScenario("there is at least one of each server, client, caller and account")
    if not 0 <= load.reads < 1:
        raise BadScenario("reads are a share below 1")
    _check_log(scenario)
    rules = LOG_RULES if scenario.topology == "log" else RULES
    if strange := set(expect.exempt) - set(rules):
        raise BadScenario(f"there is no rule {', '.join(sorted(strange))}")
    if scenario.topology == "spark" and expect.stands_still:
        raise BadScenario("a Spark job that cannot go on fails, and does not stand still")
    if expect.exempt and not expect.because:
        raise BadScenario("exempt says because of what")
    if expect.answers < 1:
        raise BadScenario("a run that answers no call shows nothing")
    known = _targets(scenario)
    for fault in scenario.faults:
        if fault.kind == "fill" and "postgresql" in fault.targets and scenario.topology != "log":
            raise BadScenario("fill of postgresql is for a log")
        if fault.kind == "down" and _ETCD & set(fault.targets) and scenario.topology != "group":
            raise BadScenario("down of a node of etcd is for a group")
        for target in fault.targets:
            if target not in known:
                raise BadScenario(f"{fault.kind}: there is no {target!r}")
        last = fault.at[1] + (fault.times - 1) * fault.every[1] + fault.lasts[1]
        if last > scenario.seconds:
            raise BadScenario(f"{fault.kind} of {fault.targets[0]} may end after {last:g} s")


def _check_log(scenario: Scenario) -> None:
    deployment, expect = scenario.deployment, scenario.expect
    if scenario.topology != "log":
        others = deployment.players or deployment.targets or deployment.consumers
        if deployment.followers or deployment.keepers or deployment.served or others:
            raise BadScenario(
                "followers, keepers, players, targets, consumers and served are of a log"
            )
        return
    effects = {"sqlite", "log", deployment.store} - {"etcd"}
    if deployment.consumers and deployment.effects not in effects:
        raise BadScenario(f"consumers beside {deployment.store} have no {deployment.effects}")
    if deployment.consumers < 0 or (deployment.consumers and deployment.served):
        raise BadScenario("consumers are so many, or none, and open the log themselves")
    if min(deployment.players, deployment.targets) < 0:
        raise BadScenario("players and targets are so many, or none")
    if bool(deployment.players) is not bool(deployment.targets):
        raise BadScenario("players call targets: there are both, or neither")
    if deployment.followers < 2 or deployment.keepers < 0:
        raise BadScenario("a log has two followers or more, one with a hold for each stream")
    if deployment.served is bool(deployment.keepers):
        raise BadScenario("a log has keepers, or is served by who keeps it")
    if deployment.servers != 1 or expect.stands_still or expect.replayed:
        raise BadScenario("of a log there is one server; it neither stands still nor replays")


def _targets(scenario: Scenario) -> set[str]:
    deployment = scenario.deployment
    count = range(1, deployment.servers + 1)
    found = {f"client-{each}" for each in range(1, scenario.load.clients + 1)}
    if scenario.topology == "log":
        return _targets_of_log(scenario)
    if scenario.topology == "group":
        found |= {"leader", "standby"} | {f"replica-{each}" for each in count}
        found |= {f"witness-{each}" for each in range(1, deployment.witnesses + 1)}
    else:
        found |= {f"server-{each}" for each in count}
    if scenario.topology == "spark":
        found = {each for each in found if not each.startswith("client")} | {"driver"}
    if scenario.topology == "group" and deployment.store == "sqlite":
        found.add("log")
    if deployment.store != "sqlite":
        stem = "log" if scenario.topology == "group" else "store"
        found |= {f"{stem}-{each}" for each in count}
        found |= _ETCD if deployment.store == "etcd" else {deployment.store}
    return found


def _targets_of_log(scenario: Scenario) -> set[str]:
    deployment = scenario.deployment
    found = {f"publisher-{each}" for each in range(1, scenario.load.clients + 1)}
    found |= {f"follower-{each}" for each in range(1, deployment.followers + 1)}
    found |= {f"keeper-{each}" for each in range(1, deployment.keepers + 1)}
    found |= {f"player-{each}" for each in range(1, deployment.players + 1)}
    found |= {f"target-{each}" for each in range(1, deployment.targets + 1)}
    found |= {f"consumer-{each}" for each in range(1, deployment.consumers + 1)}
    if deployment.consumers:
        found.add("ledger-1")
    if deployment.served:
        found.add("server-1")
    if deployment.store == "sqlite":
        found.add("log")
    elif deployment.store == "etcd":
        found |= _ETCD
    else:
        found.add(deployment.store)
    return found


def _fault(given: Any) -> FaultSpec:
    if not isinstance(given, dict):
        raise BadScenario("a fault is a table")
    given = dict(given)
    kind = given.pop("kind", None)
    if kind not in KINDS:
        raise BadScenario(f"there is no kind of fault {kind!r}")
    facts = KINDS[kind]
    target = given.pop("target", None)
    targets = tuple(target) if isinstance(target, list) else (target,)
    for each in targets:
        if not isinstance(each, str) or each.partition("-")[0] not in facts.targets:
            raise BadScenario(f"{kind} has no target {each!r}")
    attributes = {
        name: _range(kind, name, given.pop(name, None), signed=facts.signed)
        for name in facts.attributes
    }
    ranges = {
        name: _range(kind, name, given.pop(name, missing))
        for name, missing in (("at", None), ("lasts", 0), ("every", 0))
    }
    if facts.toxic:
        stream, toxicity = given.pop("stream", "both"), given.pop("toxicity", 1.0)
        if stream not in _STREAMS or (kind == "loss" and stream == "both"):
            raise BadScenario(f"{kind} has no stream {stream!r}")
        if not isinstance(toxicity, int | float) or not 0 < toxicity <= 1:
            raise BadScenario(f"{kind}: toxicity is a share")
    else:
        stream, toxicity = "both", 1.0
    times = given.pop("times", 1)
    if type(times) is not int or not 1 <= times <= 100:
        raise BadScenario(f"{kind}: times is a number from 1 to 100")
    if given:
        raise BadScenario(f"{kind} has {', '.join(sorted(given))}, which mean nothing")
    if times > 1 and ranges["every"][0] <= ranges["lasts"][1]:
        raise BadScenario(f"{kind}: it is struck again before it is mended")
    return FaultSpec(
        kind=kind,
        targets=targets,
        times=times,
        stream=stream,
        toxicity=float(toxicity),
        attributes=attributes,
        **ranges,
    )


def _range(kind: str, name: str, value: Any, *, signed: bool = False) -> Range:
    pair = value if isinstance(value, list) else [value, value]
    if (
        len(pair) != 2
        or any(type(each) not in (int, float) for each in pair)
        or (pair[0] < 0 and not signed)
        or pair[0] > pair[1]
    ):
        raise BadScenario(f"{kind}: {name} is a number, or two, the lower one first")
    return float(pair[0]), float(pair[1])


def _table(kind: type[Any], given: Any, name: str) -> Any:
    """Make a dataclass of a table, whose values have the types of its defaults."""
    if not isinstance(given, dict):
        raise BadScenario(f"[{name}] is a table")
    defaults = {each.name: each.default for each in fields(kind)}
    values = {}
    for key, value in given.items():
        if key not in defaults:
            raise BadScenario(f"[{name}] has {key}, which means nothing")
        default = defaults[key]
        if isinstance(default, tuple) and isinstance(value, list):
            value = tuple(value)
        elif isinstance(default, float) and type(value) is int:
            value = float(value)
        if type(value) is not type(default):
            raise BadScenario(f"[{name}]: {key} is a {type(default).__name__}")
        values[key] = value
    return kind(**values)
