"""A first look: what ``make run`` runs, as ``python -m dragoman.cli.tour``.

It starts a router with its sidecars, says which agents it found, and runs a small program through all of it:
client, router, sidecar, child. With ``AGENT`` and ``PROMPT`` in the environment that agent is run instead; nothing
else here spends anything.
"""

import asyncio
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from dragoman.cli import _detected
from dragoman.cli._connect import connected
from dragoman.cli._drive import Drive, is_interactive
from dragoman.cli._failures import as_text
from dragoman.cli._problem import ProblemError
from dragoman.cli._screen import Screen
from dragoman.cli._show import print_lines
from dragoman.cli._style import Segment, Style
from dragoman.cli._summary import EXIT_USAGE
from dragoman.cli._text import one_line
from dragoman.cli.commands.run import Wishes, request_for
from dragoman.client import Client, execute_request
from dragoman.v1 import adapter_pb2 as pb
from dragoman.v1 import event_pb2

_PROGRAM = Path(__file__).with_name("tour_program.py")
_TASK = "Show a stranger how a run looks."


def _say(text: str, style: Style = Style.SYSTEM) -> None:
    print_lines([[Segment("[dragoman] ", Style.FAINT), Segment(text, style)]])


class _TourScreen(Screen):
    """A screen that also says who the processes are, once the child is there."""

    def __init__(self, client: Client, adapter: str) -> None:
        super().__init__(debug=False)
        self._client = client
        self._adapter = adapter
        self.pids: dict[str, int] = {}
        """Process ids by role."""

    async def show(self, event: event_pb2.AgentEvent) -> None:
        """Show one event, and the processes when the agent runs."""
        await super().show(event)
        if event.WhichOneof("body") == "state" and event.state.HasField("pid"):
            await self.flush()
            await self._show_pids(event.state.pid)

    async def _show_pids(self, child: int) -> None:
        listed = await self._client.list_adapters()
        self.pids["router (this process)"] = listed.router_pid
        for entry in listed.adapters:
            if entry.adapter == self._adapter:
                self.pids["guard"] = entry.guard_pid
                self.pids["sidecar"] = entry.pid
        self.pids["child"] = child
        _say("processes: " + ", ".join(f"{role} {pid}" for role, pid in self.pids.items()))


async def tour(environ: Mapping[str, str]) -> int:
    """Give the tour and return the exit code.

    Args:
        environ: ``AGENT`` and ``PROMPT`` ask for a real agent.
    """
    agent, prompt = environ.get("AGENT", ""), environ.get("PROMPT", "")
    if bool(agent) != bool(prompt):
        sys.stderr.write("error: AGENT and PROMPT go together: make run AGENT=claude_code PROMPT='Say hello.'\n")
        return EXIT_USAGE
    try:
        async with connected(None) as client:
            return await _tour(client, agent, prompt)
    except ProblemError as problem:
        sys.stderr.write(as_text(problem.complaint))
        return problem.complaint.exit_code


async def _tour(client: Client, agent: str, prompt: str) -> int:
    _say(f"router listening on {client.address}")
    _say("detecting agents…")
    found = await client.detect()
    print_lines([[Segment("[dragoman] ", Style.FAINT), *line] for line in _detected.lines(found)])
    _say(f"router ready; {_detected.counted(found)}")
    if agent:
        described = await client.describe(agent)
        request = request_for(Wishes(agent, prompt), described, interactive=is_interactive())
        _say(f"running {agent}, as you asked")
    else:
        request = _demonstration()
        _say(f"a run through gRPC: the process adapter and a small program, {_PROGRAM.name}")
    async with _TourScreen(client, request.adapter) as screen:
        drive = Drive(client.execute(request), screen, interactive=request.permissions.interactive)
        code = await drive.run()
    if not agent:
        type_next(found)
    return code


def _demonstration() -> pb.ExecuteRequest:
    config = {"command": sys.executable, "args": ["-u", str(_PROGRAM)]}
    return execute_request("process", _TASK, cwd=str(Path.cwd()), config=config)


def type_next(found: Sequence[pb.Detection]) -> None:
    """Say what can be typed next, and what would make more agents ready."""
    agents = [item for item in found if item.confidence != pb.DETECTION_CONFIDENCE_NOT_APPLICABLE]
    ready = [item for item in agents if _detected.is_ready(item)]
    _say("type next (these use your own account and spend your tokens):" if ready else "type next:")
    for item in ready:
        _say(f"  make run AGENT={item.adapter} PROMPT='Say hello in one sentence.'", Style.STRONG)
        _say(f"  {_here(_detected.next_command(item))}", Style.STRONG)
    if not ready:
        for item in agents:
            name, todo = one_line(item.adapter, 60), one_line(item.hint or item.message, 300)
            _say(f"  {name}: {todo}  (then make run again)")
    _say(f"  {_here('dragoman run process --config command=ls')} --config 'args=[\"-l\"]'", Style.STRONG)
    _say(f"  {_here('dragoman serve --listen 127.0.0.1:7777')}", Style.STRONG)


def _here(command: str) -> str:
    """Return a command as it can be typed here: `make run` puts nothing on the PATH."""
    program = Path(sys.executable).parent / "dragoman"
    if shutil.which("dragoman") is not None or not program.exists():
        return command
    shown = program.relative_to(Path.cwd()) if program.is_relative_to(Path.cwd()) else program
    return command.replace("dragoman", str(shown), 1)


if __name__ == "__main__":
    sys.exit(asyncio.run(tour(os.environ)))
