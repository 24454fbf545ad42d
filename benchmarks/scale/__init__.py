"""The scale of one server: how much it holds, and the cost; ``python -m benchmarks.scale``.

- ``clients``, ``leases``: idle clients and their heartbeats.
- ``startup``: the time until a server answers again; ``filling``: with what it is filled.
- ``keys``: a store of ten million keys; ``keyed_calls``: what a call with a key costs there.
"""
