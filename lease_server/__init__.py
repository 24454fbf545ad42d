"""Client ids and their leases: the tables, the authorities, and what they need kept.

It imports nothing of rifl (DESIGN §2) and nothing of gRPC. A server that hosts leases makes a
``LeaseAuthority`` over its storage and gives it to ``rifl.add_lease_service``. The command
``rifl lease-server`` runs the service alone. Its refusals are ``rifl.core.RiflError``.

- ``_authority``: what a server asks of an authority; ``_storage_authority``: the rules that all
  over a storage share, ids reserved many at a time, and the signer of tokens.
- ``_lease_authority``: leases in one server's memory; ``_shared_authority``: in the storage.
- ``_table``: leases and when they end; ``_holders``: whom they count for, and how many may.
- ``_sessions``: named sessions and their bounds; ``_session_table``: all of one server;
  ``_sessionbook``: kept durable.
- ``_series``: numbered sessions; ``_session_secret``: what opens one without a peer.
- ``_tokens``: tokens; ``_keyring``: the secrets that sign them.
- ``_storage``: what is kept; ``_errors``: refusals; ``_forked``: refusals in forked children.
- ``_events``: the table of events.
"""

from typing import TYPE_CHECKING

from _rifl_ground.exports import exported

if TYPE_CHECKING:
    from _rifl_ground.refusals import BadHeader as BadHeader
    from _rifl_ground.refusals import ForkedProcess as ForkedProcess
    from _rifl_ground.refusals import LeaseExpired as LeaseExpired
    from _rifl_ground.refusals import NotYours as NotYours
    from _rifl_ground.refusals import RiflError as RiflError
    from _rifl_ground.refusals import SessionClosed as SessionClosed
    from _rifl_ground.refusals import StoreMismatch as StoreMismatch
    from lease_server._authority import Authority as Authority
    from lease_server._authority import Grant as Grant
    from lease_server._errors import StorageUnavailable as StorageUnavailable
    from lease_server._errors import TooManyClients as TooManyClients
    from lease_server._errors import TooManyRefusals as TooManyRefusals
    from lease_server._errors import TooManySessions as TooManySessions
    from lease_server._lease_authority import LeaseAuthority as LeaseAuthority
    from lease_server._sessionbook import OpenedSession as OpenedSession
    from lease_server._sessions import SessionPolicy as SessionPolicy
    from lease_server._sessions import SessionRow as SessionRow
    from lease_server._sessions import SessionsFrom as SessionsFrom
    from lease_server._sessions import SessionState as SessionState
    from lease_server._shared_authority import SharedAuthority as SharedAuthority
    from lease_server._shared_authority import open_authority as open_authority
    from lease_server._storage import Acknowledgements as Acknowledgements
    from lease_server._storage import LeaseStorage as LeaseStorage
    from lease_server._storage import MemoryLeaseStorage as MemoryLeaseStorage
    from lease_server._storage import SharedLeaseStorage as SharedLeaseStorage
    from lease_server._storage import SoleLeaseStorage as SoleLeaseStorage
    from lease_server._storage import Standing as Standing
    from lease_server._storage import short_store_id as short_store_id
    from lease_server._table import BlockExhausted as BlockExhausted
    from lease_server._table import LeaseTable as LeaseTable
    from lease_server._tokens import Secret as Secret
    from lease_server._tokens import make_token as make_token
    from lease_server._tokens import peer_bound as peer_bound
    from lease_server._tokens import verify as verify
else:
    __all__, __getattr__, __dir__ = exported(
        __name__,
        {
            "_rifl_ground.refusals": (
                "BadHeader ForkedProcess LeaseExpired NotYours RiflError SessionClosed "
                "StoreMismatch"
            ),
            "lease_server._authority": "Authority Grant",
            "lease_server._errors": (
                "StorageUnavailable TooManyClients TooManyRefusals TooManySessions"
            ),
            "lease_server._lease_authority": "LeaseAuthority",
            "lease_server._sessionbook": "OpenedSession",
            "lease_server._sessions": "SessionPolicy SessionRow SessionState SessionsFrom",
            "lease_server._shared_authority": "SharedAuthority open_authority",
            "lease_server._storage": (
                "Acknowledgements LeaseStorage MemoryLeaseStorage SharedLeaseStorage "
                "SoleLeaseStorage Standing short_store_id"
            ),
            "lease_server._table": "BlockExhausted LeaseTable",
            "lease_server._tokens": "Secret make_token peer_bound verify",
        },
    )
