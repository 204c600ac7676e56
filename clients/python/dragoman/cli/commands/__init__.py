"""The commands, each loaded when it is used."""
