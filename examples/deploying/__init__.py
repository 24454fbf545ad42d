"""What a deployment is made of: a Kubernetes manifest, alert rules, a Grafana dashboard."""
