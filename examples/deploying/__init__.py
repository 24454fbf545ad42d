"""The parts of a deployment: a Kubernetes manifest, alert rules, a Grafana dashboard.

``server`` is the bank that the manifest starts.
"""
