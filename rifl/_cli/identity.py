"""Identities as people type them: ``12``, ``12/7``, ``12/0x31``, ``-5/order-7``."""

from __future__ import annotations

from unicodedata import is_normalized

from rifl.core._shared.identity import MAX_SEQ, RpcId, is_key


def candidates(text: str) -> int | list[RpcId]:
    """Return the client id, or the calls, that a text may mean: a seq first.

    A key is meant as text, or after ``0x`` in hexadecimal. Ids below zero are those of
    namespaces, which take keys only.

    Raises ``ValueError``, with a message for people, for a text that means none.
    """
    client, slash, call = text.partition("/")
    namespace = client.startswith("-")
    if not _is_number(client.removeprefix("-"), MAX_SEQ + namespace):
        raise ValueError(f"{text!r} is not CLIENT_ID, CLIENT_ID/SEQ or CLIENT_ID/KEY")
    client_id = int(client)
    if not slash:
        return client_id
    found = []
    if _is_number(call) and not namespace:
        found.append(RpcId(client_id, int(call)))
    try:
        key = bytes.fromhex(call[2:]) if call.startswith("0x") else call.encode()
    except ValueError:
        key = b""
    if is_key(key):
        found.append(RpcId(client_id, None, key))
    if not found:
        raise ValueError(f"{call!r} is neither a seq nor a key of 1 to 255 bytes")
    return found


def shown(rpc_id: RpcId) -> str:
    """Return an identity for people: a key that is text as text, if that means it alone."""
    if rpc_id.key is None:
        return str(rpc_id)
    try:
        text = rpc_id.key.decode()
    except UnicodeDecodeError:
        return str(rpc_id)
    # It breaks no line, table or file of identities, and a terminal copies it unchanged.
    plain = text.isprintable() and not any(each.isspace() for each in text)
    plain = plain and is_normalized("NFC", text)
    other = text.startswith("0x") or (rpc_id.client_id >= 0 and _is_number(text))
    return f"{rpc_id.client_id}/{text}" if plain and not other else str(rpc_id)


def _is_number(text: str, largest: int = MAX_SEQ) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 20 and 1 <= int(text) <= largest
