"""Generated code: what we speak with etcd, and keep in it. See proto/curp/log/_etcd/v1."""
