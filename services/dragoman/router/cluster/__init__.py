"""Several routers with one run log: failover, and calls forwarded to the router that owns a run."""
