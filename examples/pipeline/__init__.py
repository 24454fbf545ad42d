"""Calls, events, Spark, services, each once: ``make demo-pipeline``.

- ``rides``: the service that is called: a ride, its event and the answer are one transaction.
- ``job``: the Spark driver: what each rider pays for an hour's rides, from one stream to another.
- ``player``: the process that calls billing with that; ``billing``: an unchanged service.
- ``fleet``: the four as processes, which are killed; ``callers``: threads that call.
- ``audit``: the services' tables and the streams, compared with what was asked for.
- ``python -m examples.pipeline`` runs it all.
"""
