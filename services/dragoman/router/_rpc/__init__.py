"""gRPC on both sides: the services, the connections to adapters, and the pump between them."""
