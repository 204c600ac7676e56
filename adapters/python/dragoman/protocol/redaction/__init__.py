"""Secrets: where they come from, what they look like, and how they are taken out of texts."""
