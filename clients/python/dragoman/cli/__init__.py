"""The command line, ``dragoman``.

One renderer shows the runs of all agents, because events have the same types for all of them. Standard output
carries the agent's answer and events, standard error notices and errors. The exit code is 0 only if the run
succeeded, 1 if it failed, 2 for wrong usage, 130 if it was cancelled.
"""
