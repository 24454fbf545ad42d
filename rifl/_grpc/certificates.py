"""The names in a caller's certificate, each with its kind: ``dns:shop.internal``. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Any, Final

# In gRPC's ``auth_context``: the alternative names of each kind, and of all kinds; of other kinds
# it has the same words for each name.
_KINDS: Final = {"peer_dns": "dns", "peer_uri": "uri", "peer_email": "email", "peer_ip": "ip"}
_ALL_KINDS: Final = "x509_subject_alternative_name"
_COMMON: Final = "x509_common_name"
CERTIFIED: Final = (_ALL_KINDS, _COMMON)
NOT_SHOWN: Final = b"other types of SAN"


def names_of(known: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Return the names in a caller's certificate, in order; None: it has shown no certificate.

    ``known``: gRPC's ``auth_context()``. A common name counts only in a certificate without
    alternative names. Names that gRPC does not show are left out, so there may be none.
    """
    if _COMMON not in known:
        return None
    shown = {_COMMON: "cn"} if _ALL_KINDS not in known else _KINDS
    found = {
        _name(kind, value) for key, kind in shown.items() for value in known.get(key) or () if value
    }
    return tuple(sorted(found))


def name_of(text: str) -> str:
    """Return a name as ``names_of`` spells it; raises ``ValueError`` for what names no caller."""
    kind, _, value = text.partition(":")
    try:
        if value and kind in (*_KINDS.values(), "cn"):
            return _name(kind, value.encode())
    except ValueError:
        pass
    raise ValueError(
        f"{text!r} is no certificate's name: write its kind first, such as dns:shop.internal; "
        "the kinds are dns, uri, email, ip and cn"
    )


def _name(kind: str, value: bytes) -> str:
    text = value.decode(errors="backslashreplace")
    if kind == "dns":
        text = text.lower()
    elif kind == "ip":
        text = str(ipaddress.ip_address(text))
    return f"{kind}:{text}"
