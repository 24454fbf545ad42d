"""The client's rules: what is issued, retried and acknowledged (RIFL §3.2; DESIGN §3).

- ``request_tracker``: the client's calls that are incomplete, and the first of them.
- ``client_lease``: a client id and its term.
- ``silence``: when a connection is asked for a sign of life, and replaced.
- ``client_session``: a channel's identities, what it acknowledges, and when its lease is asked
  for and renewed.
- ``invocation``, ``issued_call``: a call before it has an identity, and with it.
- ``call_flow``: one call from begin to end; ``answer`` judges what an attempt was answered,
  ``retry`` says how long to wait, ``retry_budget`` whether there is a token for it, ``targets``
  where to go next, and ``one_store`` whose turn it is among those over one store.
- ``batch_flow``, ``batch_rpc``: a batch from begin to end, what becomes of each of its items, and
  the RPCs they go in.
- ``stream_attempts``: streams over several attempts.
"""
