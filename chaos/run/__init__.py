"""Real faults: deployments of real processes behind a real Toxiproxy.

``python -m chaos.run`` runs named scenarios, judges what the callers were told with
``chaos.check``, and writes a report.
"""
