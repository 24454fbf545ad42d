"""Faults on purpose: what the demo, the fault runs and the tests break things with.

- ``sim``: the simulator; ``run``: real processes; ``check`` judges the histories of both.
- ``model``: the protocol of a group, searched whole.
- ``faulty_path``, ``fault_plan``: a path that breaks, and when.
- ``redis_server``, ``postgres_server``, ``mariadb_server``, ``etcd_cluster``,
  ``group_processes``, ``ports``: what is broken; ``programs``: which of these servers' programs
  the machine has.
"""
