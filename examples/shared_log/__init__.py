"""A shared log under load, while its processes are killed: ``make demo-log`` (examples.md).

- ``work``: what each publisher is to publish, decided beforehand.
- ``publisher``, ``follower``: the processes; the one has a name in the log, the other a database.
- ``engines``: where the log is, and what can be killed there.
- ``audit``: what the followers have, compared with what there was to publish.
- ``python -m examples.shared_log`` runs it all.
"""
