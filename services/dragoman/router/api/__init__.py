"""The gRPC services: requests are checked, routed, and answered. No other package serves gRPC."""
