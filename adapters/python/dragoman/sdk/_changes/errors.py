"""Why nothing can be said of a workspace."""


class GitError(Exception):
    """Git failed; the text is its own."""


class TooLargeError(Exception):
    """A workspace has more to record than is reasonable."""
