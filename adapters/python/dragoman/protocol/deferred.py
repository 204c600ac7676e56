"""Leaves out what a library imports and never uses, in processes of our own.

protobuf imports its implementation in Python, and what that needs, beside the one in C that it uses: a tenth of what
a sidecar imports beyond gRPC, and nearly a megabyte.
"""

import importlib.util
import sys
from typing import Final

_UNUSED: Final = "google.protobuf.internal.python_message"


def defer_unused_imports() -> None:
    """Have what is never used be executed when it is used, such as where protobuf has no implementation in C.

    To be called before the first import of protobuf, and while there is one thread: a program is to decide for itself
    how it imports, so that no library calls this.
    """
    if _UNUSED in sys.modules:
        return
    spec = importlib.util.find_spec(_UNUSED)
    if spec is None or spec.loader is None:
        return
    spec.loader = importlib.util.LazyLoader(spec.loader)
    module = importlib.util.module_from_spec(spec)
    sys.modules[_UNUSED] = module
    spec.loader.exec_module(module)
    package, _, name = _UNUSED.rpartition(".")
    # Else the import system would look for the module's specification, and so have it executed.
    setattr(sys.modules[package], name, module)
