"""One run: its events, its questions to the caller, its attempts, and how they are stopped."""
