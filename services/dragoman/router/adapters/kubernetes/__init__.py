"""Adapters that Kubernetes Services expose, found by a watch of their EndpointSlices."""
