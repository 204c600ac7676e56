"""The adapters that authors subclass: programs, and agents asked over a network."""
