"""The address of a caller, for bounds on those that have no name. Pure."""

from __future__ import annotations

import ipaddress
from functools import lru_cache
from urllib.parse import unquote

# The prefix of one subscriber, who has all its addresses.
_IPV6_PREFIX = 64


@lru_cache(maxsize=1024)
def source_of(peer: str) -> str:
    """Return the address in what gRPC's ``context.peer()`` says, without its port.

    ``10.0.0.7`` of ``ipv4:10.0.0.7:4711``; of an IPv6 address its /64 network; for
    sockets and whatever else there may be, what was said. Behind a proxy it is the proxy's.
    """
    kind, _, rest = unquote(peer).partition(":")
    if kind not in ("ipv4", "ipv6"):
        return peer
    host = rest.rpartition(":")[0].strip("[]").partition("%")[0]
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return peer
    if address.version == 4:
        return str(address)
    mapped = address.ipv4_mapped
    if mapped is not None:
        return str(mapped)
    return str(ipaddress.ip_network((address, _IPV6_PREFIX), strict=False))
