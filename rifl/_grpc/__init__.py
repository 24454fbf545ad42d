"""What gRPC leaves open: handlers of raw bytes, rich errors, where a caller is."""
