"""The parts of a deployment: a Kubernetes manifest, alert rules, a Grafana dashboard."""
