"""Looking for an agent's program, its version and its login, and checking a set-up."""
