"""How processes of our own import: without looking for garbage meanwhile, and without what is never used.

protobuf imports its implementation in Python, and what that needs, beside the one in C that it uses: a tenth of what
a sidecar imports beyond gRPC, and nearly a megabyte.
"""

import contextlib
import gc
import importlib.util
import sys
from collections.abc import Iterator
from typing import Final

_UNUSED: Final = "google.protobuf.internal.python_message"


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """Import much in the block; a program is to decide that for itself, so that no library calls this.

    Python does not look for garbage meanwhile: it would look through all that is loaded again and again. Nor does it
    later, as that stays. What is never used is executed when it is used, such as where protobuf has no implementation
    in C.
    """
    _defer(_UNUSED)
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def _defer(module_name: str) -> None:
    """Have a module that is not imported yet be executed when an attribute of it is first read.

    Where several threads do that at once, some may find it half executed.
    """
    if module_name in sys.modules:
        return
    spec = importlib.util.find_spec(module_name)
    if spec is None or spec.loader is None:
        return
    spec.loader = importlib.util.LazyLoader(spec.loader)
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    spec.loader.exec_module(module)
    package, _, name = module_name.rpartition(".")
    # Else the import system would look for the module's specification, and so have it executed.
    setattr(sys.modules[package], name, module)
