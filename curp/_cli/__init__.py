"""The ``curp`` command: run a replica, look at a group, change it.

- ``command``: arguments and errors; ``operator_client``: what replicas are asked.
- ``serve``, ``status``, ``recover``, ``poison``: subcommands; the others are in ``command``; the
  witness's is ``curp.witness``, the log's ``curp.log``.
"""
