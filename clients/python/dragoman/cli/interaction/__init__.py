"""One run at a terminal: its events, its questions, Ctrl-C."""
