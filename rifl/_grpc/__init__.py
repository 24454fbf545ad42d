"""gRPC beside its own API: handlers of raw bytes, rich errors, codes, callers' addresses."""
