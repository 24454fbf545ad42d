"""New York's flights of 2013, booked from Spark while everything goes wrong.

``python -m examples.flights``, or ``make demo-spark``.

- ``books``: the service that books; ``job``: the Spark driver; ``cluster``: where it runs.
"""
