"""The gRPC service that an adapter is served by."""
