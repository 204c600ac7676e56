"""The command line, ``dragoman``.

One renderer shows the runs of all agents, as their events are typed once. Standard output carries the agent's
answer and events, standard error what is said about them. The exit code is 0 only if the run succeeded, 1 if it
failed, 2 for a wrong call, 130 if it was cancelled.
"""
