"""Loading an adapter by its object reference."""

import functools
import importlib
from typing import Any

from dragoman.sdk.adapter import Adapter


def load_adapter(reference: str) -> Adapter:
    """Return the adapter that ``module:attribute`` refers to: the object, or what it returns if it is a function.

    Raises:
        ImportError: the module is not there, or imports one that is not.
        AttributeError: the module has no such attribute.
        SpecError: a file that describes the adapter is wrong.
    """
    module, _, attribute = reference.partition(":")
    imported: Any = importlib.import_module(module)
    found = functools.reduce(getattr, attribute.split("."), imported)
    adapter: Adapter = found() if callable(found) else found
    return adapter
