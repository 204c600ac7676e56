"""From an agent's output to events, failures and the outcome of a run."""
