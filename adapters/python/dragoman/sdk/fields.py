"""Reading JSON that nobody vouches for, for adapter authors: ``from dragoman.sdk import fields``."""

from dragoman.sdk._fields import Fields, count, inner, number, objects, text

__all__ = ["Fields", "count", "inner", "number", "objects", "text"]
