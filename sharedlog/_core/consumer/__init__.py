"""A consumer's rules: no I/O, no threads, no clock (DESIGN-LOG §14).

- ``members``: the processes of a consumer, who share its shards by leases in the log.
- ``shard``: one substream's: taken over (T1), one transaction after the other (T2, T3, T5).
- ``keeping``: by what it commits them, ``one_file``: in a database that has the log;
  ``holding``: its hold, which follows that; ``in_log``: the log in the place of a database, with a
  ``state`` in memory, its ``changelog`` and ``snapshots``.
- ``reconciling``: a store that a log knows less of than it has done.
- ``checkpoint``: what its store keeps of it; ``outputs``: what it is to append to the log;
  ``travelling``: what of that is more than one append.
- ``operating``: what people do with it, and are told; ``observer``: who is told what it does.
- ``names``: those by which its log knows it.
- ``calls``: the handlers' calls to other services, each once (T6); ``call_keys``: in the log.
- ``asked``: the steps that are asked of a store and of handlers, beside those of the log.
"""
