"""The rule for secrets on connections that are not encrypted: they stay on this machine.

A token of a group, a log or a target and the secret of a session admit every process that shows
them. So the process that sends one asks here first, and sends nothing if the answer is a reason.
"""

from __future__ import annotations

import ipaddress
import os
import re

VARIABLE = "RIFL_PLAINTEXT_SECRETS"
_UNIX = ("unix:", "unix-abstract:")
# Another DNS server than the system's could give "localhost" any address.
_SCHEME = re.compile(r"^(?:dns:(?:///)?|ipv[46]:)(?!//)")
_HOST = re.compile(r"\[([^\]]*)\](?::\d+)?|([^:]*)(?::\d+)?")


def is_loopback(target: str) -> bool:
    """Whether the text of a gRPC target names this machine.

    So do literal loopback addresses, ``localhost`` and unix sockets. No name is resolved.
    """
    if target.startswith(_UNIX):
        return True
    return all(map(_is_loopback_host, _SCHEME.sub("", target, count=1).split(",")))


def _is_loopback_host(address: str) -> bool:
    try:
        found = _HOST.fullmatch(address)
        host = address if found is None else found[1] or found[2] or ""
        return host.lower() == "localhost" or _is_loopback_address(host)
    except ValueError:
        return False


def _is_loopback_address(host: str) -> bool:
    found = ipaddress.ip_address(host)
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return (mapped or found).is_loopback


def why_not_sent(what: str, target: str, *, secure: bool, allowed: bool = False) -> str:
    """Return why a secret is not sent to a target; empty: it may be.

    ``what`` names the secret. ``secure``: the connection has credentials. ``allowed``: the
    application permits plaintext; RIFL_PLAINTEXT_SECRETS=1 permits it for the process.
    """
    if secure or allowed or os.environ.get(VARIABLE) == "1" or is_loopback(target):
        return ""
    return (
        f"{what} is not sent to {target}: the connection is not encrypted, and any host on the way "
        "could read it. Use TLS; if a mesh or a proxy encrypts the connection, allow this by "
        f"plaintext_secrets, or {VARIABLE}=1"
    )
