"""Identities as people type them: ``12``, ``12/7``, ``12/6f7264``, ``12/0x31``, ``-5/order-7``."""

from __future__ import annotations

from rifl.core._shared.identity import MAX_SEQ, RpcId, is_key


def candidates(text: str) -> int | list[RpcId]:
    """Return the client id, or the calls, that a text may mean: a seq first.

    A key is meant in hexadecimal, as ids are shown, or as the text that it is. Ids below
    zero are those of namespaces, which take keys only.

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
        key = bytes.fromhex(call.removeprefix("0x"))
    except ValueError:
        key = b""
    for each in (key, b"" if call.startswith("0x") else call.encode()):
        if is_key(each):
            found.append(RpcId(client_id, None, each))
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
    named = f"{rpc_id.client_id}/{text}"
    # Nor does it break a line, a table or a file of identities.
    plain = text.isprintable() and not any(each.isspace() for each in text)
    return named if plain and candidates(named) == [rpc_id] else str(rpc_id)


def _is_number(text: str, largest: int = MAX_SEQ) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 20 and 1 <= int(text) <= largest
