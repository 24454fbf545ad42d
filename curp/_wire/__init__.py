"""The wire format of a group's log, snapshots and metadata, to and from core types (DESIGN §7).

- ``entries``: an entry of the log; ``snapshots``: a snapshot, in chunks.
- ``metadata``: what the engine keeps beside the log; ``poison``: of calls that kill.
- ``witnessed_calls``: requests that a witness held.
- ``fields``: what several of these have; ``labels``: trailing metadata of a group's answers.
"""
