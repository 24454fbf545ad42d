"""What a client issues, retries and acknowledges.

- ``request_tracker``: which of the client's calls are answered, and the first that is not.
- ``client_session``, ``client_lease``: its identity, as long as that lives.
- ``invocation``, ``call_flow``, ``attempt``, ``retry``, ``targets``: one call, from attempt to
  attempt.
- ``batch_flow``, ``batch_steps``, ``batch_limits``, ``stream_attempts``: batches and streams.
"""
