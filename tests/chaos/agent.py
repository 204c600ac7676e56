"""An agent that numbers what it says and journals it first. Run by path; it needs only the standard library.

It speaks the dialect that ``CHAOS_DIALECT`` names (the ``process`` adapter's JSON lines, Claude Code's, or ACP), and
goes to the state that ``CHAOS_STATE`` names, where it stays until a byte comes through the gate. In ``CHAOS_DIR`` are
``journal``, ``gate`` and ``first`` (FIFOs). What it says has a token ``<number:tag>`` each; the tag is a digest, so
that no token can be taken for another.

It is in the state in the turn that ``CHAOS_TURN`` numbers; in one before it waits for the FIFO ``first``, and in one
behind it just speaks. It notes the name of each input that it takes. With ``CHAOS_SPEND`` it calls as many tools in
all, the first one before the state and the last one to exceed its budget, and then waits until it is stopped.
"""

import contextlib
import hashlib
import json
import os
import re
import select
import subprocess
import sys
from typing import Any

SESSION = "11111111-1111-4111-8111-111111111111"
PACE_S = 0.01
MOST_LINES = 12_000  # two minutes at least: whose turn to be killed is the last waits for all others
LATE_S = 0.05  # how long after its end a turn waits for an input that came too late for it
NAME = re.compile(r"\[(in-[0-9a-f]+)\]")


class Agent:
    """What all dialects share."""

    def __init__(self) -> None:
        folder = os.environ["CHAOS_DIR"]
        self.journal = os.open(f"{folder}/journal", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self.gate = os.open(f"{folder}/gate", os.O_RDWR | os.O_NONBLOCK)
        self.state = os.environ["CHAOS_STATE"]
        with open(f"{folder}/journal", encoding="utf-8") as journal:
            notes = [json.loads(line) for line in journal]
        self.number = sum("said" in note for note in notes)
        self.spent = sum("spent" in note for note in notes)
        self.spends = int(os.environ.get("CHAOS_SPEND", "0"))
        self.turn = 1 + sum("done" in note for note in notes)
        self.held_turn = int(os.environ.get("CHAOS_TURN", "1"))
        self.first = f"{folder}/first"
        self.received = b""

    def note(self, **facts: Any) -> None:
        os.write(self.journal, json.dumps(facts).encode() + b"\n")

    def token(self) -> str:
        """Journal the next output, and return its token."""
        self.number += 1
        run = os.environ["CHAOS_RUN"]
        tag = hashlib.sha256(f"{run} {self.number}".encode()).hexdigest()[:8]
        self.note(said=f"<{self.number}:{tag}>")
        return f"<{self.number}:{tag}>"

    def is_open(self, wait_s: float | None) -> bool:
        return bool(select.select([self.gate], [], [], wait_s)[0])

    def take(self, text: str) -> None:
        """Note which input this is, if it is one."""
        for name in NAME.findall(text):
            self.note(took=name)

    def spend(self) -> None:
        """Call a tool that takes no time."""
        self.spent += 1
        self.note(spent=self.spent)
        name = f"spend-{self.spent}"
        self.call("spending", name)
        if self.spent == self.spends:
            self.until_stopped()
            self.note(stopped=True)
            sys.exit(0)
        self.result("spent", name)

    def run(self) -> None:
        self.note(born=os.getpid(), guard=os.getppid())
        self.begin()
        if self.spends and not self.spent:
            self.spend()
        if self.turn < self.held_turn:
            self.speak("at first")
            select.select([os.open(self.first, os.O_RDWR | os.O_NONBLOCK)], [], [])
        else:
            self.work()
        # Before it says so: it may be killed just after that, when all was said.
        self.note(done=True)
        self.end()
        self.leave()

    def work(self) -> None:
        is_held = self.turn == self.held_turn
        if is_held and self.state == "before":
            self.is_open(None)
        self.say(os.environ["CHAOS_SECRET"])
        self.say("hello")
        if is_held:
            getattr(self, f"do_{self.state}")()
        while self.spent < self.spends:
            self.spend()
        for _ in range(3):
            self.say("and more")

    def do_before(self) -> None:
        """Do nothing more."""

    def do_streaming(self) -> None:
        self.note(at="streaming")
        for _ in range(MOST_LINES):
            self.say("x" * 100)
            if self.is_open(PACE_S):
                return

    def do_tool(self) -> None:
        self.call(self.token(), "call-1")
        # The tool is a process of its own, in a session of its own.
        with subprocess.Popen(["sleep", "1000"], start_new_session=True, stdin=subprocess.DEVNULL) as tool:
            self.note(at="tool", tool=tool.pid)
            self.is_open(None)
            tool.kill()
        self.result(self.token(), "call-1")

    def do_input(self) -> None:
        self.note(at="input")
        self.say(f"answered {self.ask()}")

    def do_finishing(self) -> None:
        self.note(at="finishing")
        self.is_open(None)

    def send(self, **message: Any) -> None:
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()

    def read(self) -> dict[str, Any]:
        while b"\n" not in self.received:
            data = os.read(0, 1 << 16)
            if not data:
                self.note(deserted=True)
                sys.exit(0)
            self.received += data
        line, _, self.received = self.received.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        return message

    def has_input(self, wait_s: float) -> bool:
        return b"\n" in self.received or bool(select.select([0], [], [], wait_s)[0])

    def begin(self) -> None:
        raise NotImplementedError

    def say(self, text: str) -> None:
        """Say something with a token."""
        self.speak(f"{self.token()} {text}")

    def speak(self, text: str) -> None:
        raise NotImplementedError

    def call(self, text: str, name: str) -> None:
        raise NotImplementedError

    def result(self, text: str, name: str) -> None:
        raise NotImplementedError

    def ask(self) -> str:
        raise NotImplementedError

    def end(self) -> None:
        raise NotImplementedError

    def until_stopped(self) -> None:
        """Wait to be stopped, and say that one is."""

    def leave(self) -> None:
        """End by oneself."""


class Plain(Agent):
    """The ``process`` adapter's JSON lines."""

    def begin(self) -> None:
        sys.stdin.read()

    def speak(self, text: str) -> None:
        self.send(type="assistant", text=text)

    def call(self, text: str, name: str) -> None:
        self.send(type="tool_call", id=name, name="sleep", input={"what": text})

    def result(self, text: str, name: str) -> None:
        self.send(type="tool_result", toolUseId=name, content=text)

    def end(self) -> None:
        self.send(type="result", text="done", isError=False)


class Claude(Agent):
    """Claude Code's stream-json."""

    def begin(self) -> None:
        while (message := self.read()).get("type") != "user":
            pass
        self.take(str(message["message"]["content"]))
        self.inputs: list[dict[str, Any]] = []
        self.send(type="system", subtype="init", session_id=SESSION, model="m", cwd=os.getcwd(), tools=["Bash"])  # noqa: PTH109 - a text is wanted

    def speak(self, text: str) -> None:
        self._listen()
        self._assistant({"type": "text", "text": text})

    def _listen(self, wait_s: float = 0.0) -> bool:
        """Take inputs that have come, between two calls of the model; return whether there were any."""
        while self.has_input(wait_s):
            self._receive(self.read())
        taken, self.inputs = self.inputs, []
        for message in taken:
            self.take(str(message["message"]["content"]))
            self.send(type="command_lifecycle", command_uuid=message["uuid"], state="started", session_id=SESSION)
        return bool(taken)

    def _receive(self, message: dict[str, Any]) -> None:
        if message.get("type") == "user":
            self.send(type="command_lifecycle", command_uuid=message["uuid"], state="queued", session_id=SESSION)
            self.inputs.append(message)

    def _assistant(self, block: dict[str, Any]) -> None:
        message = {"id": f"m-{self.number}", "model": "m", "role": "assistant", "content": [block]}
        self.send(type="assistant", message=message, session_id=SESSION)

    def call(self, text: str, name: str) -> None:
        self._assistant({"type": "tool_use", "id": name, "name": "Bash", "input": {"command": text}})

    def result(self, text: str, name: str) -> None:
        block = {"type": "tool_result", "tool_use_id": name, "content": text}
        self.send(type="user", message={"role": "user", "content": [block]}, session_id=SESSION)

    def ask(self) -> str:
        asked = {"subtype": "can_use_tool", "tool_name": "Bash", "input": {"command": "ls"}, "tool_use_id": "call-2"}
        self.send(type="control_request", request_id="r-1", request=asked)
        while (answer := self.read()).get("type") != "control_response":
            self._receive(answer)
        return str(answer["response"]["response"]["behavior"])

    def end(self) -> None:
        self.send(type="result", subtype="success", is_error=False, result="done", session_id=SESSION)

    def until_stopped(self) -> None:
        while (message := self.read()).get("type") != "control_request":
            self._receive(message)
        response = {"subtype": "success", "request_id": message["request_id"], "response": {}}
        self.send(type="control_response", response=response)
        aborted = {"is_error": True, "terminal_reason": "aborted_tools", "session_id": SESSION}
        self.send(type="result", subtype="error_during_execution", **aborted)

    def leave(self) -> None:
        # One that came after the last call of the model begins another turn of this process.
        while self._listen(LATE_S):
            self.say("and another turn")
            self.note(done=True)
            self.end()


class Acp(Agent):
    """The Agent Client Protocol."""

    def _await(self, method: str) -> dict[str, Any]:
        while (message := self.read()).get("method") != method:
            pass
        return message

    def _answer(self, message: dict[str, Any], result: dict[str, Any]) -> None:
        self.send(jsonrpc="2.0", id=message["id"], result=result)

    def begin(self) -> None:
        able = {"protocolVersion": 1, "agentCapabilities": {"loadSession": True}, "authMethods": []}
        self._answer(self._await("initialize"), {**able, "agentInfo": {"name": "Chaos", "version": "0.1"}})
        if self.turn == 1:
            self._answer(self._await("session/new"), {"sessionId": SESSION})
        else:
            self._answer(self._await("session/load"), {})
        self.prompt = self._await("session/prompt")
        self.take(self.prompt["params"]["prompt"][0]["text"])

    def _update(self, what: str, **fields: Any) -> None:
        params = {"sessionId": SESSION, "update": {"sessionUpdate": what, **fields}}
        self.send(jsonrpc="2.0", method="session/update", params=params)

    def speak(self, text: str) -> None:
        self._update("agent_message_chunk", content={"type": "text", "text": f"{text}\n"})

    def call(self, text: str, name: str) -> None:
        fields = {"kind": "execute", "status": "in_progress", "rawInput": {"command": text}}
        self._update("tool_call", toolCallId=name, title="sleep", **fields)

    def result(self, text: str, name: str) -> None:
        content = [{"type": "content", "content": {"type": "text", "text": text}}]
        self._update("tool_call_update", toolCallId=name, status="completed", content=content)

    def ask(self) -> str:
        options = [{"optionId": "once", "kind": "allow_once", "name": "Once"}]
        options.append({"optionId": "no", "kind": "reject_once", "name": "No"})
        call = {"toolCallId": "call-2", "title": "Run ls", "kind": "execute", "rawInput": {"command": "ls"}}
        params = {"sessionId": SESSION, "toolCall": call, "options": options}
        self.send(jsonrpc="2.0", id=77, method="session/request_permission", params=params)
        while (answer := self.read()).get("id") != 77:
            pass
        return json.dumps(answer.get("result", answer.get("error")))

    def end(self) -> None:
        self._answer(self.prompt, {"stopReason": "end_turn"})

    def until_stopped(self) -> None:
        self._await("session/cancel")
        self._answer(self.prompt, {"stopReason": "cancelled"})

    def leave(self) -> None:
        with contextlib.suppress(SystemExit):
            while True:
                self.read()


DIALECTS = {"process": Plain, "claude_code": Claude, "acp": Acp}


def main() -> None:
    if "--version" in sys.argv:
        print("2.1.330 (Claude Code)")
        return
    if "auth" in sys.argv[1:2]:
        print('{"loggedIn": true}')
        return
    DIALECTS[os.environ["CHAOS_DIALECT"]]().run()


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        main()
