"""Which router a command talks to: the named one, this user's, or one in this process."""
