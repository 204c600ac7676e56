"""``dragoman demo``: a whole run that needs no agent, no login and no network.

The adapter ``model_api`` does the work, and the test kit's scripted model server stands in for the model's API.
"""

import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click
from dragoman.cli.connection.connect import run_connected
from dragoman.cli.display import detections
from dragoman.cli.display.printing import print_lines
from dragoman.cli.display.screen import Screen
from dragoman.cli.display.style import Segment, Style
from dragoman.cli.interaction.run_view import RunView
from dragoman.client import Client, RunStream, execute_request
from dragoman.testkit.model_server import ModelServer
from dragoman.testkit.model_server.script import Delivery, Reply, Scenario, Step, Text, Thinking, Tool
from dragoman.testkit.profiles.model_api import MODEL_API_ANTHROPIC
from dragoman.v1 import adapter_pb2 as pb
from dragoman.v1 import event_pb2

_PROMPT: Final = "Fix the bug in add.py."
_FILE: Final = "add.py"
_BUGGY: Final = "def add(a, b):\n    return a - b\n"
_PACED: Final = Delivery(pace_ms=15)
_SCRIPT: Final = Scenario(
    "DEFAULT",
    "reads a file, corrects it, and says so",
    (
        Step((Reply((Text("I'll look at add.py first."), Tool("read", {"path": _FILE})), delivery=_PACED),)),
        Step(
            (
                Reply(
                    (
                        Thinking("The function subtracts where it should add."),
                        Text("It subtracts. I'll change that."),
                        Tool("edit", {"path": _FILE, "old": "a - b", "new": "a + b"}),
                    ),
                    delivery=_PACED,
                ),
            )
        ),
        Step((Reply((Text("Fixed: add() now returns the sum."),), delivery=_PACED),)),
    ),
)


@click.command("demo")
def demo_command() -> int:
    """Show a whole run, offline: text, tool calls, a permission, a change to a file, token counts.

    A scripted model stands in for a real one, in a temporary directory. Spends nothing and needs no agent.
    """
    for name in ("NO_PROXY", "no_proxy"):  # the sidecar inherits it, and the model's stand-in is on this machine
        os.environ[name] = ",".join(filter(None, (os.environ.get(name), "127.0.0.1")))
    return run_connected(None, _demonstrate)


async def _demonstrate(client: Client) -> int:
    _print("A run with the adapter model_api. The model is a script of the test kit; the rest is real.")
    with tempfile.TemporaryDirectory(prefix="dragoman-demo-") as folder:
        workspace = Path(folder) / "workspace"
        workspace.mkdir()
        (workspace / _FILE).write_text(_BUGGY, encoding="utf-8")
        async with ModelServer([_SCRIPT], tools=MODEL_API_ANTHROPIC.tools) as model:
            stream = client.execute(_request(workspace, model.url))
            async with _AnsweringScreen(stream) as screen:
                code = await RunView(stream, screen).run()
    print_next_steps(await client.detect())
    return code


def _request(workspace: Path, model_url: str) -> pb.ExecuteRequest:
    env = {
        "ANTHROPIC_BASE_URL": model_url,
        "ANTHROPIC_API_KEY": "not-a-real-key",
        "XDG_STATE_HOME": str(workspace.parent),
    }
    request = execute_request(
        "model_api", _PROMPT, cwd=str(workspace), config={"provider": "anthropic", "thinking": True}, env=env
    )
    request.permissions.interactive = True
    return request


class _AnsweringScreen(Screen):
    """A screen that also answers what the agent asks."""

    def __init__(self, stream: RunStream) -> None:
        super().__init__()
        self._stream = stream

    async def show(self, event: event_pb2.AgentEvent) -> None:
        """Show an event; allow what it asks for, once."""
        await super().show(event)
        if event.HasField("input_request"):
            allowing = [
                option
                for option in event.input_request.options
                if option.kind == event_pb2.INPUT_OPTION_KIND_ALLOW_ONCE
            ]
            await self.flush()
            _print("The agent waits for an answer. 'dragoman run' asks you; here the demo allows it.")
            answer = event_pb2.InputAnswer(option_ids=[allowing[0].id])
            await self._stream.respond(event.input_request.id, answer, responder="dragoman demo")


def _print(text: str, style: Style = Style.SYSTEM) -> None:
    print_lines([[Segment("[dragoman] ", Style.FAINT), Segment(text, style)]])


def print_next_steps(found: Sequence[pb.Detection]) -> None:
    """Print what to type next: a run of each agent that is ready."""
    program = _program()
    agents = [one for one in found if not detections.is_generic(one)]
    ready = [one for one in agents if detections.is_ready(one)]
    _print("Type next:")
    _print(f"  {program} detect  # the agents on this machine, and how to get the others", Style.STRONG)
    for one in ready:
        _print(f"  {detections.next_command(one).replace('dragoman', program, 1)}", Style.STRONG)
    if not ready:
        _print(f"  {program} run process 'hello' --config command=cat  # any command as an agent", Style.STRONG)


def _program() -> str:
    """Return how this program is called here: `make run` does not put it on the PATH."""
    beside = Path(sys.executable).with_name("dragoman")
    if shutil.which("dragoman") is not None or not beside.exists():
        return "dragoman"
    return str(beside.relative_to(Path.cwd()) if beside.is_relative_to(Path.cwd()) else beside)
