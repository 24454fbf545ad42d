"""The events of the lease service: what each means, and what to do."""

from __future__ import annotations

from _rifl_ground.events import Event, Until

# fmt: off
EVENTS = {
    "lease_server": (
        Event("recovered", "info", "clients sessions",
              "At start: this many clients and sessions are known, each with a full new term."),
        Event("session_opened", "info", "client_id name",
              "A named session is opened for the first time."),
        Event("session_closed", "info", "client_id name", "It is closed for good."),
        Event("session_expired", "info", "client_id name", "Its retention is over."),
        Event("secret_rotated", "info", "key_id",
              "Tokens are signed with a new secret after half a term."),
        Event("storage_unavailable", "warning", "error",
              "The store does not answer: ended leases and sessions were not looked for. It "
              "retries.",
              "Bring the store back.", "now"),
        Event("heartbeat_stream_refused", "warning", "peer reason",
              "The server ended a client's stream of heartbeats: one peer has too many, or this "
              "one sends nothing valid.",
              "Look at that client.", "today"),
        Event("lease_server_stopped", "info", "", "`rifl lease-server` ends."),
    ),
}
LOOK = {
    "lease_server.storage": "rifl inspect URL",
    "TooManyClients": "rifl inspect URL",
    "TooManySessions": "rifl inspect URL",
}
ERRORS: dict[str, Until] = {
    "TooManyClients": "now",
    "TooManySessions": "now",
    "TooManyRefusals": "no need",
}
