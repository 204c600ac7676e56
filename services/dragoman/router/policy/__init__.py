"""Decisions without I/O: fallback, circuit breaker, concurrency limits, sessions."""
