"""The rules of a group: no I/O, no threads, no clock, no randomness.

A replica: ``role`` (follow, take over, lead, step down), ``succession`` (whose turn that is),
``recovery``, ``setting_aside``, ``poison``, ``replays`` and ``notes`` (calls that kill).

A leadership: ``leader`` (places, and what is answered first), ``unsynced``, ``key_locks``,
``appending``, ``garbage_collection``, ``witness_change``, ``upkeep``, ``compaction``,
``housekeeping``, ``read_lease``, ``handover``; ``steps`` is what several of them ask for.

The log: ``entries``, and the ``state`` that they make.

A witness: ``witness_table``, ``not_started``. On both sides: ``conflict_keys``.

A client: ``group_call``, ``way_choice``, ``record_line``, ``leader_search``, ``suspects``.
"""
