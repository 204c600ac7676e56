"""What protobuf imports and does not use."""

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize(("implementation", "executed"), [("upb", "False"), ("python", "True")])
def test_the_implementation_in_python_is_executed_where_it_is_used(implementation: str, executed: str) -> None:
    program = (
        "import sys\nfrom dragoman.protocol.importing import importing\nwith importing():\n"
        "    from dragoman.v1 import event_pb2\nprint('google.protobuf.text_format' in sys.modules)\n"
        "print(event_pb2.AgentEvent.FromString(event_pb2.AgentEvent(sequence=3).SerializeToString()).sequence)"
    )
    environment = {**os.environ, "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": implementation}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=50)
    assert done.stdout.split() == [executed, "3"]


def test_what_is_imported_already_is_left_alone() -> None:
    program = (
        "import gc, sys, google.protobuf.descriptor_pool\nfrom dragoman.protocol.importing import importing\n"
        "module = sys.modules['google.protobuf.internal.python_message']\n"
        "with importing():\n    print(gc.isenabled())\n"
        "print(sys.modules['google.protobuf.internal.python_message'] is module, gc.isenabled())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=50)
    assert done.stdout == "False\nTrue True\n"
