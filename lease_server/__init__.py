"""Client ids and their leases: the tables, the authorities, and what they need kept.

The ground floor (DESIGN §2): imports nothing of rifl and nothing of gRPC. A server that
hosts leases makes a ``LeaseAuthority`` over its storage and gives it to
``rifl.add_lease_service``; ``python -m lease_server`` runs the service alone.

- ``_table``, ``_blocks``: who has a lease until when; ids reserved in blocks.
- ``_sessions``, ``_sessionbook``, ``_series``, ``_session_secret``: clients with names.
- ``_tokens``, ``_keyring``, ``_signer``: what a client shows for its id.
- ``_authority``: all of it, in one process; ``_shared``: in a storage of several servers.
- ``_storage``: what is kept; ``_errors``, ``_events``: what is refused and told; ``_forks``.
"""

from lease_server._authority import Grant, LeaseAuthority
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
from lease_server._sessionbook import OpenedSession
from lease_server._sessions import SessionPolicy, SessionRow, SessionsFrom, SessionState
from lease_server._shared import (
    Authority,
    SharedAuthority,
    SharedLeaseStorage,
    Standing,
    open_authority,
)
from lease_server._storage import LeaseStorage, MemoryLeaseStorage, short_store_id
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
