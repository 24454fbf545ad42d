"""The log's rules: no I/O, no threads, no clock, no randomness (DESIGN-LOG §12 to §14).

- ``commit``: the one step in which an engine judges and writes; every rule is built on it.
- ``incarnation``: what a log says of itself; ``catalog``: its streams; ``stream_schema``: their
  values' columns.
- ``streams``, ``position``: names, substreams, places in them; ``names``: the log's own names.
- ``envelope``, ``message``: what is published, and what a reader gets; ``sealing``: the user's
  encryption of both; ``publishing``: the messages of one append.
- ``entry``: what an entry says of the append that it belongs to.
- ``draft``: a transaction on its way; ``dead_letters``: messages that were given up, as read.
- ``named``: producers whose seqs go on over restarts; ``sweeping``: who is retired; ``within``:
  appends in transactions of the application's; ``outbox``: messages that wait in its database.
- ``producers``: appends once (L3); ``fences``: zombies kept out (L4); ``spans``: what is pending,
  markers and retiring (C1, C2), ``homes``: which of it a consumer's store decides.
- ``reading``: what is committed, in its order (C3, C4); ``merging``: several substreams as one;
  ``uncommitted``: what is not, too; ``following``: a reader that goes on from where it was;
  ``ranges``: what several readers share.
- ``steps``: what the rules ask of a log; ``calling``: a call of a rule, which another process
  carries out.
- ``holds``: what followers have not done is kept; ``trim`` takes the rest away, and ``whole`` is
  what stays (L6); ``times``: where a moment is.
- ``duty``: what one of several processes does; ``roster``: the producers; ``restoring``: after a
  backup; ``verifying``: what a log has, held against its rules, and by ``tag_index`` against
  its index, by ``kept_keys`` against its keys.
- ``player``: what targets are sent, and when (§15).
- ``consumer``: consume, process, produce (§14); ``query``: batches of many tasks (§16).
- Of a target: ``target_index``, how far it is in a substream; ``target_delivery``, whether one
  follows that; ``target_taking``, its way to an effect and an answer, by ``target_steps`` from a
  ``target_seat``; ``target_methods``, what may be called.
- ``observer``: who watches; ``reporting``: what a log says of itself to them.
- ``errors``: what is refused, and whether it was appended; ``arguments``: of users, whose type is
  another than asked for.
"""
