"""The rules of a group: no I/O, no threads, no clock, no randomness.

A replica: ``role`` (follow, take over, lead, step down), ``succession`` (whose turn that is),
``recovery``; and of calls that kill: ``setting_aside``, ``poison``, ``replay_notes``,
``poison_notes``.

A leadership: ``leader`` (places, and what is answered first), ``key_locks``,
``appending``, ``garbage_collection``, ``witness_list``, ``witness_change``,
``witness_upkeep``, ``compaction``, ``housekeeping``, ``read_lease``, ``handover``; ``steps`` is
what several of them ask for.

The log: ``entries``, and the ``state`` that they make.

A witness: ``witness_table`` (when it accepts), ``witness_asking`` (what a replica asks of one),
``start_refusal``. On both sides: ``conflict_keys``, ``witnessed_call``.

A client: ``group_call``, ``recording_choice``, ``pending_records``, ``leader_search``,
``silent_witnesses``.
"""
