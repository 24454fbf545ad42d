"""The player: a log's messages delivered to targets, in order, each once (DESIGN-LOG §15).

- ``declared``: declared targets; ``config``: their file.
- ``player``: what ``sharedlog.Player`` is: an event loop in a thread; ``leading``: one of several.
- ``main_stream``: what is read once for all targets; ``course``: one target, ``delivering``:
  what is sent on one connection to it, ``beginning``: where that begins; ``standing``: what went
  wrong; ``stage``: what courses have in common.
- ``link``: the connection to a target; ``wire``: what travels on it.
- ``letters``: messages that were given up.
- ``outside``: its log, its targets, time and chance, which a simulation has others of.
- ``watching``: what those who watch are told, ``under_way``: of deliveries.
- ``overview``: how the targets are, and were lately; ``status_page``: that, for people, over HTTP.
"""
