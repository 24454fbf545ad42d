"""Settings of MariaDB and MySQL: which servers are refused, and what weakens commits (DESIGN §6).

``docs/reference/stores-mysql.md`` tells why the settings that are not here do not matter.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from _rifl_ground.servers import Weakness

# SKIP LOCKED is newer than older ones.
_OLDEST = {"MariaDB": (10, 6), "MySQL": (8, 0)}
# A record is written as hexadecimal digits, two a byte.
LEAST_PACKET = 16 << 20
_CRASH = "a crash of the machine may lose any commit, or damage the database"
# What each may be, where the server has it, and what anything else costs.
_WANTED: Mapping[str, tuple[tuple[str, ...], str]] = {
    # MariaDB's 3 is 1 and some more.
    "innodb_flush_log_at_trx_commit": (("1", "3"), "a crash loses about a second of commits"),
    "innodb_doublewrite": (
        ("1", "ON", "DETECT_AND_RECOVER", "FAST"),
        "a crash of the machine may damage pages of the database",
    ),
    "innodb_flush_method": (
        ("fsync", "O_DSYNC", "O_DIRECT", "O_DIRECT_NO_FSYNC", "", "unbuffered", "normal"),
        _CRASH,
    ),
    "innodb_force_recovery": (("0",), "the server goes on without what it cannot recover"),
}
VARIABLES = (
    *_WANTED,
    *("version", "version_comment", "log_bin", "sync_binlog", "binlog_format", "read_only"),
    *("innodb_read_only", "wsrep_on", "max_allowed_packet", "server_id", "server_uuid"),
    *("group_replication_group_name", "group_replication_single_primary_mode"),
)


def is_on(value: Any) -> bool:
    """Whether a variable is on, however that is said."""
    return str(value).upper() in ("1", "ON")


def is_mariadb(found: Mapping[str, str]) -> bool:
    """Whether the server is MariaDB."""
    return "mariadb" in found.get("version", "").lower()


def refusal(found: Mapping[str, str]) -> str:
    """Return why a server is not to be used at all; empty if it may be."""
    kind = "MariaDB" if is_mariadb(found) else "MySQL"
    numbers = [int(each) for each in found.get("version", "0.0").split("-")[0].split(".")[:2]]
    oldest = _OLDEST[kind]
    if tuple(numbers) < oldest:
        return f"{kind} {oldest[0]}.{oldest[1]} or newer is needed"
    if is_on(found.get("read_only")) or is_on(found.get("innodb_read_only")):
        return "the server is read-only, as a replica is"
    if is_on(found.get("wsrep_on")):
        return "Galera is not supported: a commit on one node does not wait for locks on another"
    if found.get("group_replication_group_name") and not is_on(
        found.get("group_replication_single_primary_mode", "ON")
    ):
        return "group replication with several primaries is not supported: they share no locks"
    if is_on(found.get("log_bin")) and found.get("binlog_format", "").upper() == "STATEMENT":
        return "binlog_format is STATEMENT, which cannot log READ COMMITTED: set MIXED or ROW"
    return ""


def weaknesses(found: Mapping[str, str], engines: Mapping[str, str]) -> list[Weakness]:
    """Return what of a server's settings is weak; ``engines`` of our tables, by their names."""
    weak = [
        Weakness(f"{name} is {found[name]}, not {wanted[0]}", cost)
        for name, (wanted, cost) in _WANTED.items()
        if name in found and found[name].upper() not in map(str.upper, wanted)
    ]
    if is_on(found.get("log_bin")) and found.get("sync_binlog") != "1":
        # A recovery rolls back what it does not find in the binary log.
        weak.append(
            Weakness(
                f"sync_binlog is {found.get('sync_binlog')}, not 1",
                "with log_bin a crash of the machine loses commits that the log lacks",
            )
        )
    weak += [
        Weakness(f"table {name} is {engine}, not InnoDB", "it has no transactions")
        for name, engine in engines.items()
        if engine.upper() != "INNODB"
    ]
    packet = int(found.get("max_allowed_packet", LEAST_PACKET))
    if packet < LEAST_PACKET:
        weak.append(
            Weakness(
                f"max_allowed_packet is {packet}, not {LEAST_PACKET}",
                f"an answer of more than {most_record(packet)} bytes cannot be kept",
            )
        )
    return weak


def most_record(packet: int) -> int:
    """Return how large a record may be, by the server's ``max_allowed_packet``."""
    return max(0, packet - (64 << 10)) // 2
