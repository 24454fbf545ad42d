"""The ``curp`` command: run a replica, look at a group, change it."""
