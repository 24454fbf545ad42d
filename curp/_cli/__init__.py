"""The ``curp`` command: run a replica, look at a group, change it.

- ``command``: arguments and errors; ``operator_client``: what replicas are asked.
- ``init``, ``serve``, ``status``, ``forget``, ``upgrade``, ``recover``, ``poison``: its
  subcommands; the witness's is ``curp.witness``, the log's ``curp.log``.
"""
