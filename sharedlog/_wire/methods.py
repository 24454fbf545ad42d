"""The methods of the log's services, and the bounds of what travels."""

from __future__ import annotations

from typing import Final

SERVICE: Final = "sharedlog.v1.Log"
# Of players.
STEPS: Final = "sharedlog.v1.Steps"
# Metadata in which a caller shows its token.
TOKEN_KEY: Final = "authorization"  # noqa: S105 - the entry's name
TOKEN_PREFIX: Final = "Bearer "  # noqa: S105 - before every token
# A request: an append of a mebibyte, and what is said of its messages.
MOST_REQUEST_BYTES: Final = 2 << 20
# Of a request, with those of messages in it: a player's step has 10,000 keys to put.
MOST_FIELDS: Final = 50_000
# A reply has one message at least, and about so many bytes of them.
REPLY_BYTES: Final = 256 << 10
MOST_REPLY_BYTES: Final = 8 << 20
# Substreams that a player asks a target about in one Connect: of more it asks again.
MOST_ASKED: Final = 1024
