"""Generated code: records that a group's log keeps in etcd. See proto/curp/log/_etcd/v1."""
