"""A deterministic simulation of whole deployments, from one seed (DESIGN §2).

What runs is the product: ``rifl.core``, the client's exchange and state, the
server's engine and answers, the stores' rules and their SQL. What is simulated is
what surrounds them: time, the network, processes and their deaths, disks. One
event loop, one source of randomness; no thread, no socket, no real clock.

``python -m chaos.sim --runs N --seed S`` runs schedules, ``--seed S --trace`` shows
one. What happened is recorded in the form that ``chaos.check`` reads.
"""
