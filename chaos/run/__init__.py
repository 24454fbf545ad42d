"""Real faults: deployments of real processes behind a real Toxiproxy.

``python -m chaos.run`` runs named scenarios, judges what the callers were told with
``chaos.check``, and writes a report.

- ``scenario``, ``scenario_files``: what runs, breaks and must hold (``scenarios/``).
- ``runs``: several scenarios at once; ``run``: one of them; ``strikes``: when each fault comes,
  ``fault_threads``: who strikes it, ``faults``: how, and how it is mended.
- ``deployment``: its members: ``servers``, ``group``, ``shared_log``, ``clients``,
  ``players``, ``consumers``, ``log_clients``, ``spark_job``, ``redis``, ``postgresql``,
  ``etcd_member``, ``etcd_log``, each a ``process`` behind a path of ``toxiproxy``, on a ``disk``
  or by a ``wall_clock`` that is wrong, or a ``slow_disk`` (both ``preloaded``);
  ``peer_paths`` are those between nodes of an etcd.
  ``service``, ``driver``, ``caller``, ``publisher``, ``follower``, ``keeper``, ``target``,
  ``consumer`` and ``ledger`` run in these processes; they know of ``streams``, and write ``notes``,
  or what was ``taken``, or ``consumed``.
- ``judge``, ``pauses``: what came of it; ``report``, ``page``, ``timeline``: how it is shown.
"""
