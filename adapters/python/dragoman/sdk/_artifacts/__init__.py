"""Artifacts: the files that an agent leaves to its caller, found and kept."""
