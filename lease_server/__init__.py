"""Client ids and their leases: the table, the authority, and the gRPC service.

The ground floor (DESIGN §2): imports nothing of rifl. A server that hosts it makes
a ``LeaseAuthority`` over its storage and calls ``add_lease_service``;
``python -m lease_server`` runs it alone.
"""

from lease_server.authority import Grant, LeaseAuthority
from lease_server.errors import (
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
from lease_server.peer import peer_of
from lease_server.service import SERVICE_NAME, add_lease_service
from lease_server.sessionbook import OpenedSession
from lease_server.sessions import SessionPolicy, SessionRow, SessionsFrom, SessionState
from lease_server.shared import (
    Authority,
    SharedAuthority,
    SharedLeaseStorage,
    Standing,
    open_authority,
)
from lease_server.storage import LeaseStorage, MemoryLeaseStorage, short_store_id
from lease_server.table import BlockExhausted, LeaseTable
from lease_server.tokens import Secret, make_token, peer_bound, verify

__all__ = [
    "SERVICE_NAME",
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
    "add_lease_service",
    "make_token",
    "open_authority",
    "peer_bound",
    "peer_of",
    "short_store_id",
    "verify",
]
