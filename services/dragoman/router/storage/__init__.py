"""The run log: runs and sessions that outlive the router's process, on SQLite or PostgreSQL."""
