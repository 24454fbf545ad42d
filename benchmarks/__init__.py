"""Side-by-side measurements: what rifl and groups cost, beside plain grpcio.

What ``python -m benchmarks`` measures, in pairs:

- ``cases``: one side beside another, and its targets; ``sides``: one of them;
  ``pairs``: runs in turns; ``callers``: the load.
- ``server``, ``behaviors``: the process that is measured, and its method, some of them ``by_hand``;
  ``databases``: under it.
- ``results``, ``tables``, ``plots``: the figures, kept, as rows and as bars.

Commands of their own:

- ``groups``: what replication costs, by ``served`` servers of the ``keyed`` service; ``ways``: of
  recorded calls; ``recovery``: until a replica leads again; ``slow_log``: over a disk that is slow.
- ``steps``: a call's steps in the shared stores, of which ``postgres_dialect`` has one stand over
  PostgreSQL that is for any SQL database.
- ``scale``: one server that holds much; ``simulated``: a million clients, in virtual time;
  ``store_cpu``: a call at its store or group, a message at its log; ``overload``: what is left
  when something goes wrong; ``spark``: rows from Spark; ``log``: the shared log's engines;
  ``deliver``: a player and its targets; ``consume``: consumers; ``nexmark``: queries of Spark over
  the log.
- ``delay``: a path that is slower.
- ``house``: figures of the tree itself, and its picture.
"""
