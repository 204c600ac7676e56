"""Every field of the contract is used: what answers and events hold is written, what requests hold is read.

Names are looked for in the syntax of the hand-written sources, as types are not known there: a field counts as used
if something of its name is. Where a message of the contract is made by its constructor, only its own fields count.
"""

import ast
from collections.abc import Iterable
from itertools import chain

import pytest
from dragoman.v1 import adapter_pb2, event_pb2, router_pb2
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from .programs import ROOT

FILES = (adapter_pb2.DESCRIPTOR, event_pb2.DESCRIPTOR, router_pb2.DESCRIPTOR)
SOURCES = ("services", "adapters/python", "clients/python")
GENERATED = ROOT / "adapters/python/dragoman/v1"
FILLS = {"CopyFrom", "MergeFrom", "SetInParent", "GetCurrentTime", "FromDatetime", "FromTimedelta", "FromNanoseconds"}
FILLS |= {"add", "append", "extend", "update"}
"""Methods that write into the field they are called on."""

UNUSED = {
    "Batching.max_delay": "servers delay no event; what is ready at the same time is one batch",
    "Capabilities.instructions_path_key": "adapters of this SDK read the key that leaving it empty means",
}
"""Field -> why nothing uses it."""


class Uses(ast.NodeVisitor):
    """The names that one source reads and writes."""

    def __init__(self, messages: set[str]) -> None:
        self.read: set[str] = set()
        self.written: set[str] = set()
        self._messages = messages
        self._targets: set[ast.expr] = set()

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if not isinstance(node.ctx, ast.Load):
            self._write(node)
        elif node not in self._targets:
            self.read.add(node.attr)
        self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        if not isinstance(node.ctx, ast.Load):
            self._write(node.value)
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if isinstance(node.target, ast.Attribute):
            self.read.add(node.target.attr)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        owner = f"{called}." if called in self._messages else ""
        self.written.update(f"{owner}{keyword.arg}" for keyword in node.keywords if keyword.arg)
        if isinstance(node.func, ast.Attribute) and called in FILLS:
            self._write(node.func.value)
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str):  # of HasField, WhichOneof, setattr, a table of names
            self.read.add(node.value)
            self.written.add(node.value)

    def _write(self, node: ast.expr) -> None:
        """Count a target as written, and whatever it is in: ``a.b.c = 1`` writes ``b`` too."""
        while isinstance(node, ast.Attribute | ast.Subscript):
            self._targets.add(node)
            if isinstance(node, ast.Attribute):
                self.written.add(node.attr)
            node = node.value


def closure(roots: Iterable[Descriptor]) -> set[str]:
    """Return the names of these messages of the contract, and of those in them."""
    found: set[str] = set()
    waiting = list(roots)
    while waiting:
        message = waiting.pop()
        if message.file in FILES and message.name not in found:
            found.add(message.name)
            waiting += [field.message_type for field in message.fields if field.message_type is not None]
    return found


METHODS = [method for file in FILES for service in file.services_by_name.values() for method in service.methods]
REQUESTS = closure(method.input_type for method in METHODS)
ANSWERS = closure(method.output_type for method in METHODS)
FIELDS = {
    f"{message.name}.{field.name}": (message, field)
    for file in FILES
    for message in file.message_types_by_name.values()
    for field in message.fields
}


@pytest.fixture(scope="module")
def uses() -> Uses:
    found = Uses({message.name for message, _ in FIELDS.values()})
    for source in chain.from_iterable((ROOT / folder).rglob("*.py") for folder in SOURCES):
        if GENERATED not in source.parents:
            found.visit(ast.parse(source.read_text(encoding="utf-8")))
    return found


def is_used(uses: Uses, message: Descriptor, field: FieldDescriptor) -> bool:
    is_read = message.name in REQUESTS and field.name in uses.read
    is_written = not uses.written.isdisjoint({field.name, f"{message.name}.{field.name}"})
    return is_read or (message.name in ANSWERS and is_written)


def test_each_message_is_in_a_request_or_an_answer() -> None:
    assert {message.name for message, _ in FIELDS.values()} <= REQUESTS | ANSWERS


def test_each_field_is_used(uses: Uses) -> None:
    """Red? Use the field, or say in ``UNUSED`` why nothing does; a field that is used again leaves it."""
    unused = {name for name, (message, field) in FIELDS.items() if not is_used(uses, message, field)}
    assert unused == UNUSED.keys()


@pytest.mark.parametrize(
    ("source", "read", "written"),
    [
        ("x.cwd", {"cwd"}, set()),
        ("x.cwd = 1", set(), {"cwd"}),
        ("x.usage.turns += 1", {"turns"}, {"usage", "turns"}),
        ("x.files[0].path = 1", set(), {"files", "path"}),
        ("x.env[name] = 1", set(), {"env"}),
        ("x.items.add(note=1)", {"add"}, {"items", "note"}),
        ("pb.Notice(code=1)", {"Notice"}, {"Notice.code"}),
        ("x.HasField('limits')", {"HasField", "limits"}, {"limits"}),
    ],
)
def test_what_counts_as_a_use(source: str, read: set[str], written: set[str]) -> None:
    found = Uses({"Notice"})
    found.visit(ast.parse(source))
    assert (found.read, found.written) == (read, written)
