"""The player's rules: what each of its targets is sent, and when (DESIGN-LOG §15).

- ``item``: a message on its way; ``feeder``: the states of one target, what waits for it here, and
  what was sent and is not answered.
- ``feeding``: a target's feeder, and those of substreams whose messages fail.
- ``trouble``: what it was cut off for; ``failing``: messages that fail, and targets that stop;
  ``backoff``: when it is tried again.
- ``indexes``: what a target says of itself, held against the log, and where the main stream begins.
- ``deaths``: processes that ended, and how much may be in flight by that.
- ``stores``: in which store each target's index is.
- ``holding``: holds that follow what is acknowledged.
- ``deadletters``: messages that were given up; ``rows``: what operators wish, and what is told;
  ``headline``: what is wrong with a target.
- ``observer``: who watches; ``reach``: what of a log a player may read and write.
"""
