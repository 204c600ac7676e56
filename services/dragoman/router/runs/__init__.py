"""One run, from its acceptance to its result: attempts, admission, cancellation, its session."""
