"""The lease service over gRPC: its requests, who asks, and the service of a server."""
