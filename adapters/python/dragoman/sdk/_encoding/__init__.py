"""Lines, JSON and protobuf values: how what comes from outside is read."""
