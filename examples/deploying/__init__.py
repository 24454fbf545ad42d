"""The parts of a deployment: manifests for Kubernetes, alert rules, a Grafana dashboard.

``server`` is the bank that kubernetes.yaml starts, ``deposits`` the job of Spark that spark.yaml
starts.
"""
