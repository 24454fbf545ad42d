"""Stores that several server replicas share (DESIGN §4 to §6).

A store of this kind is a ``SharedStore`` over a ``Backend``, which only carries
out ``Request``s, each one atomic step, blocking or awaiting. Where things live:

- A client is known if its row is in the store, and only then: a grant writes it
  (one small write, so that every replica knows the client at once), expiry and
  close remove it with all records, for good. The row is the lease: a replica that
  finds it renews it, and only a sweep ends it.
- A lease is due a term after it was last seen, by the store's clock. A
  replica sweeps only after it has watched the store without a gap for a full term,
  so that a restart of the store or of a replica gives every client a full new term.
- A call in progress holds its attempt token and the incarnation of the replica
  that runs it. Replicas beat; one whose beats stood still while another watched
  is taken for dead. That is a guess: what follows from it is decided by the
  store, conditional on the attempt token that was seen.

- ``store``: the face. The rules are ``claims``: who runs a call, and ``settlement``: how it ends;
  ``unclaimed``: first attempts that run before they are decided about.
- ``requests``: what the rules ask; ``backend``, ``steps``: who carries it out.
- ``transactions``: handlers' own, with a fenced record in them.
- ``attempts``: this replica's calls; ``refusing``: why it takes no new ones.
- ``held_answers``: whose the large answers are that this replica counts.
- ``stalls``: clients whose row a foreign session has locked.
- ``heartbeat``, ``replicas``, ``presence``: who lives; ``lease_watch``: when leases may end;
  ``counting_turn``: who counts for all.
"""

from rifl._stores.shared.attempts import SharedAttempt
from rifl._stores.shared.backend import (
    Backend,
    BackendError,
    NotCarriedOut,
    WentBackwards,
)
from rifl._stores.shared.replicas import Replicas
from rifl._stores.shared.requests import (
    Abandon,
    Claim,
    Claimed,
    CountBeat,
    Ending,
    Finish,
    Finished,
    Found,
    Look,
)
from rifl._stores.shared.steps import Steps
from rifl._stores.shared.store import SharedStore

__all__ = [
    "Abandon",
    "Backend",
    "BackendError",
    "Claim",
    "Claimed",
    "CountBeat",
    "Ending",
    "Finish",
    "Finished",
    "Found",
    "Look",
    "NotCarriedOut",
    "Replicas",
    "SharedAttempt",
    "SharedStore",
    "Steps",
    "WentBackwards",
]
