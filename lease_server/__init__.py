"""Client ids and their leases: the tables, the authorities, and what they need kept.

It imports nothing of rifl (DESIGN §2) and nothing of gRPC. A server that
hosts leases makes a ``LeaseAuthority`` over its storage and gives it to
``rifl.add_lease_service``; ``rifl lease-server`` runs the service alone.

- ``_authority``: what a server asks of an authority; ``_storage_authority``: the rules that all
  over a storage share.
- ``_lease_authority``: leases in one server's memory; ``_shared_authority``: in the storage.
- ``_table``: leases and when they end; ``_blocks``: ids reserved many at a time.
- ``_sessions``: named sessions and their bounds; ``_session_table``: all of one server;
  ``_sessionbook``: kept durable.
- ``_series``: numbered sessions; ``_session_secret``: what opens one without a peer.
- ``_tokens``: tokens; ``_keyring``: the secrets that sign them; ``_signer``: both, in use.
- ``_storage``: what is kept; ``_errors``: refusals; ``_forked``: refusals in forked children.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lease_server._authority import Authority, Grant
    from lease_server._errors import (
        BadRequest,
        ForkedProcess,
        LeaseError,
        LeaseExpired,
        NotYours,
        SessionClosed,
        StorageUnavailable,
        StoreMismatch,
        TooManyClients,
        TooManyRefusals,
        TooManySessions,
    )
    from lease_server._lease_authority import LeaseAuthority
    from lease_server._sessionbook import OpenedSession
    from lease_server._sessions import SessionPolicy, SessionRow, SessionsFrom, SessionState
    from lease_server._shared_authority import SharedAuthority, open_authority
    from lease_server._storage import (
        LeaseStorage,
        MemoryLeaseStorage,
        SharedLeaseStorage,
        SoleLeaseStorage,
        Standing,
        short_store_id,
    )
    from lease_server._table import BlockExhausted, LeaseTable
    from lease_server._tokens import Secret, make_token, peer_bound, verify

__all__ = [
    "Authority",
    "BadRequest",
    "BlockExhausted",
    "ForkedProcess",
    "Grant",
    "LeaseAuthority",
    "LeaseError",
    "LeaseExpired",
    "LeaseStorage",
    "LeaseTable",
    "MemoryLeaseStorage",
    "NotYours",
    "OpenedSession",
    "Secret",
    "SessionClosed",
    "SessionPolicy",
    "SessionRow",
    "SessionState",
    "SessionsFrom",
    "SharedAuthority",
    "SharedLeaseStorage",
    "SoleLeaseStorage",
    "Standing",
    "StorageUnavailable",
    "StoreMismatch",
    "TooManyClients",
    "TooManyRefusals",
    "TooManySessions",
    "make_token",
    "open_authority",
    "peer_bound",
    "short_store_id",
    "verify",
]

# Where each name is: whoever asks for it first has that part imported, and no other.
_HOMES = {
    "Authority": "lease_server._authority",
    "BadRequest": "lease_server._errors",
    "BlockExhausted": "lease_server._table",
    "ForkedProcess": "lease_server._errors",
    "Grant": "lease_server._authority",
    "LeaseAuthority": "lease_server._lease_authority",
    "LeaseError": "lease_server._errors",
    "LeaseExpired": "lease_server._errors",
    "LeaseStorage": "lease_server._storage",
    "LeaseTable": "lease_server._table",
    "MemoryLeaseStorage": "lease_server._storage",
    "NotYours": "lease_server._errors",
    "OpenedSession": "lease_server._sessionbook",
    "Secret": "lease_server._tokens",
    "SessionClosed": "lease_server._errors",
    "SessionPolicy": "lease_server._sessions",
    "SessionRow": "lease_server._sessions",
    "SessionState": "lease_server._sessions",
    "SessionsFrom": "lease_server._sessions",
    "SharedAuthority": "lease_server._shared_authority",
    "SharedLeaseStorage": "lease_server._storage",
    "SoleLeaseStorage": "lease_server._storage",
    "Standing": "lease_server._storage",
    "StorageUnavailable": "lease_server._errors",
    "StoreMismatch": "lease_server._errors",
    "TooManyClients": "lease_server._errors",
    "TooManyRefusals": "lease_server._errors",
    "TooManySessions": "lease_server._errors",
    "make_token": "lease_server._tokens",
    "open_authority": "lease_server._shared_authority",
    "peer_bound": "lease_server._tokens",
    "short_store_id": "lease_server._storage",
    "verify": "lease_server._tokens",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, there = home.partition(":")
    found = getattr(import_module(module), there or name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
