"""Generated code: etcd's messages, and what a log keeps there. See its directory of proto/."""
