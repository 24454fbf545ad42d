"""A deterministic simulation of whole deployments, from one seed (DESIGN §2).

What runs is the product: ``rifl.core``, the client's exchange and state, the
server's engine and its shell for ``grpc.aio``, the stores' rules and their SQL. What is
simulated is what surrounds them: time, the network, processes and their deaths, disks. One
event loop, one source of randomness; no thread, no socket, no real clock.

Nothing of the product is written here again: the same mistake would be in both. Each module
says in its first line what it is: an oracle, which knows by itself what must be; a model of the
world; a driver of the product's own code; or machinery of the simulator.

``python -m chaos.sim --runs N --seed S`` runs schedules, ``--seed S --trace`` shows
one. What happened is recorded in the form that ``chaos.check`` reads.

What goes wrong:

- ``faults``: each fault, and the points where it can strike; what struck is counted there.
- ``planned``: what a schedule is made of.
- ``schedule``: a schedule, drawn from a seed: ``call_schedule``, ``fault_schedule``, with
  ``shared_keys``, ``stream_schedule``, ``unclaimed_schedule``, and ``coincidences``, which are
  ``server_coincidences`` and ``group_coincidences``: a ``changed_schedule`` each. At rare points
  faults strike ``in_turn``, by ``turns``.
- ``fault_coverage``: which faults each kind of deployment meets, and must meet.

What it goes wrong in:

- ``run``: one schedule: it strikes the faults, and judges; ``result``: what came of it;
  ``world``, ``loop``, ``service``: its parts, its time and processes, and its accounts.
- ``network``, ``stream_network``, ``disk``: what is between processes, and under SQLite;
  ``event_loop``: what a process runs on.
- ``deployments``: one server, in memory or on a disk; ``replicas``: several over a shared store
  (``store_server``, ``shared_data``, ``store_leases``); ``group``, ``machine``, ``witness``: a
  group; ``log``: a log, with its writers and followers; ``query``: Spark's queries over one;
  ``player``: a player of one, and its targets; ``consumer``: a consumer of one, and its store.
- ``server``: a server process through its lives: ``server_life`` (one of them), ``shell`` (the
  product's), ``accounts_handler`` (what a call does there), and what it is asked: ``call_server``,
  ``lease_calls``; ``known_clients``: whom it has to know.
- ``client``: a client process through its lives: ``client_life`` (one of them), its calls
  (``client_exchange``, ``batch_client``, ``stream_client``, ``group_client``), ``resolution``;
  ``session``: of several; ``plain_caller``: who calls without any of it.

Around runs: ``pool`` (many), ``shrink`` (a smaller one that fails), ``report``, ``code_coverage``.
"""
