"""An ACP agent that does what its command line says. Run by path; it needs only the standard library.

Usage: pretender.py SETUP STEPS, both JSON. SETUP: {"able": {...}, "auth": bool, "history": [text], "unknown": bool}.
STEPS: what to do when prompted, each a list:
    ["say", TEXT]  ["echo"] (says the prompt)  ["update", KIND, FIELDS]
    ["call", METHOD, PARAMS] (asks the client, and says the answer as JSON)  ["start", METHOD, PARAMS] (does not wait)
    ["wait"] (until cancelled, then ends as cancelled)  ["hang"] (hears nothing)  ["crash", CODE]
    ["end", REASON]  ["error", CODE, TEXT]
In PARAMS the text "$last.KEY" stands for a value of the last answer.
"""

import json
import os
import signal
import sys
from typing import Any

SESSION = "pretended-1"


class Pretender:
    """One conversation."""

    def __init__(self, setup: dict[str, Any], steps: list[list[Any]]) -> None:
        self.setup, self.steps = setup, steps
        self.last: dict[str, Any] = {}
        self.asked = 0
        self.cancelled = False

    def send(self, **message: Any) -> None:
        print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)

    def update(self, kind: str, **fields: Any) -> None:
        params = {"sessionId": SESSION, "update": {"sessionUpdate": kind, **fields}}
        self.send(method="session/update", params=params)

    def say(self, text: str) -> None:
        self.update("agent_message_chunk", content={"type": "text", "text": text})

    def read(self) -> dict[str, Any]:
        line = sys.stdin.readline()
        if not line:
            sys.exit(0)
        message: dict[str, Any] = json.loads(line)
        self.cancelled = self.cancelled or message.get("method") == "session/cancel"
        return message

    def run(self) -> None:
        while True:
            message = self.read()
            if "id" in message and "method" in message:
                self.answer(message["id"], message["method"], message.get("params") or {})

    def answer(self, request_id: Any, method: str, params: dict[str, Any]) -> None:
        if method == "initialize":
            result = {"protocolVersion": 1, "agentCapabilities": self.setup.get("able", {})}
            info = {"name": "Pretender", "version": "0.1"}
            ways = [{"id": "pretend", "name": "Pretend", "description": "Run `pretend login`"}]
            self.send(id=request_id, result={**result, "agentInfo": info, "authMethods": ways})
        elif method == "session/prompt":
            self.turn(request_id, params["prompt"][0]["text"])
        elif self.setup.get("auth"):
            self.send(id=request_id, error={"code": -32000, "message": "Authentication required"})
        elif method != "session/new" and self.setup.get("unknown"):
            self.send(id=request_id, error={"code": -32002, "message": "Resource not found"})
        else:
            for text in self.setup.get("history", []) if method == "session/load" else []:
                self.say(text)
            self.send(id=request_id, result={"sessionId": SESSION} if method == "session/new" else {})

    def turn(self, request_id: Any, prompt: str) -> None:
        for step, *arguments in self.steps:
            if step == "echo":
                self.say(prompt)
            elif step == "end":
                self.send(id=request_id, result={"stopReason": arguments[0]})
                return
            elif step == "error":
                self.send(id=request_id, error={"code": arguments[0], "message": arguments[1]})
                return
            elif step == "wait":
                while not self.cancelled:
                    self.read()
                self.send(id=request_id, result={"stopReason": "cancelled"})
                return
            else:
                self.step(step, arguments)
        self.send(id=request_id, result={"stopReason": "end_turn"})

    def step(self, step: str, arguments: list[Any]) -> None:
        if step == "say":
            self.say(arguments[0])
        elif step == "update":
            self.update(arguments[0], **arguments[1])
        elif step in {"call", "start"}:
            self.ask(arguments[0], arguments[1], waits=step == "call")
        elif step == "crash":
            sys.exit(arguments[0])
        elif step == "hang":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            while True:
                signal.pause()

    def ask(self, method: str, params: dict[str, Any], *, waits: bool) -> None:
        filled = {key: self.filled(value) for key, value in params.items()}
        self.asked += 1
        self.send(id=self.asked, method=method, params={"sessionId": SESSION, **filled})
        while waits:
            message = self.read()
            if message.get("id") == self.asked and "method" not in message:
                self.last = message.get("result") or {}
                self.say(json.dumps(message.get("result", message.get("error"))) + "\n")
                return

    def filled(self, value: Any) -> Any:
        if isinstance(value, str) and value.startswith("$last."):
            return self.last[value.removeprefix("$last.")]
        return value.replace("$cwd", os.getcwd()) if isinstance(value, str) else value  # noqa: PTH109 - a text is wanted


if __name__ == "__main__":
    Pretender(json.loads(sys.argv[1]), json.loads(sys.argv[2])).run()
