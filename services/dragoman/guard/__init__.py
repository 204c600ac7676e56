"""The guard: parent, session keeper and subreaper of exactly one command.

Run as ``python -m dragoman.guard [options] -- command argument...``; :mod:`dragoman.guard.launch`
builds that command line. Nothing here imports more than the standard library, and little of that:
a guard stands before every agent run, so its start-up time is part of every run.
"""
