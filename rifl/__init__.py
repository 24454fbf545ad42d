"""Exactly-once RPC for Python gRPC."""
