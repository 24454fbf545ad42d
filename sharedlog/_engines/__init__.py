"""Engines: where a log lives. They give ``_core``'s rules one atomic step (DESIGN-LOG §18).

- ``engine``: the interface; ``opening`` makes and opens them by URL;
  ``checks``: what all of them refuse; ``checksums``: of the keys that a store keeps.
- ``formats``: the check that refuses a newer one.
- ``driving``: carries rules out at one; ``elsewhere``: a log whose rules others carry out.
- ``terms``: keys that are there for a time, and the clocks that this ends by.
- ``lead``: one thread's work for all that wait; ``group_commit``: their appends in one;
  ``waiting``: who waits for one; ``turns``: on connections of the application's.
- ``forks``: what a child inherits.
- ``memory``: for tests; it ends with its process.
- ``sqlite``: in a file, for the processes of one machine.
- ``redis``, ``postgres``: for processes of several machines; ``etcd``: there, kept by a quorum.
- ``owner``: what a group's log and a shared one differ in, over the same engines; ``names``: a
  log's name in its URL.
"""
