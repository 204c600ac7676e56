"""The run log: what is kept of runs and sessions while no process remembers them. SQLite or PostgreSQL."""
