"""Scale in virtual time, with the product's own rules: ``python -m benchmarks.simulated``.

Clients are those of the simulator (``chaos.sim``): the product's state, lease keeper, targets and
exchanges. Calls and leases are decided by the product's ``ClientTable`` and ``LeaseTable``. What
is modelled is the world: the network, the places of servers, how long handlers take, a store that
is silent.

- ``shard``: the servers of one shard; ``crowd``: its clients, and who counts.
- ``parts``: what happens to them, and what is found.
"""
