"""A consumer in the simulator: processes of it, the log, the store, and a service they call.

What runs is the product's consumer, from ``Work`` inward: threads of it are ``strands``, of which
one runs at a time, in virtual time (DESIGN-LOG §14). What is simulated is what is between it and
its log, its store and services, and the processes that die.

- ``schedule``: what is published, what the consumer is, and faults, drawn from a seed.
- ``stage``: what all processes of a run share; ``cast``: their store, and what they call;
  ``names``: those of streams.
- ``process``: one of the consumer's, through its lives; ``handler``: what its functions do.
- ``strands``: its threads; ``engine``: its way to the log; ``wire``: to a server.
- ``database``: the user's tables; ``sqlite_store``: the way to them in a file, ``server_store``:
  to them at a server, ``sql_server``: that; ``redis_store``: the way to a Redis, ``redis_data``:
  that; ``log_state``: the state that the log has in their place.
- ``service``: what handlers call; ``operator``: who lets shards go on.
- ``judge``: one run over what was committed; ``counting``: attempts of what fails; ``run``: one
  schedule.
"""
