"""The wire: between the protocol's bytes and the core's types (DESIGN §3; protocol.md).

- ``header``: the entry that names a call, and the fingerprint of its payload.
- ``packed_header``: the same entry, written and read by hand.
- ``labels``: what an answer's metadata say of the call.
- ``metadata``: which entries gRPC can send.
- ``records``: completion records and resolutions.
- ``envelope``: many calls of one method in one RPC.
- ``varint``: protobuf's numbers.
"""
