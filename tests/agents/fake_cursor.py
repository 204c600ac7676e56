#!/usr/bin/env python3
"""A stand-in for `cursor-agent`, which no package registry has: it says what Cursor's documentation says it says.

Frames, options and the meaning of `--force` are those of cursor.com/docs/cli (output format, parameters, headless,
permissions). What the documentation leaves open is made up: the words of errors, how chats are kept, and the model,
which is an OpenAI-compatible one at FAKE_CURSOR_MODEL_URL. It proves the adapter, never Cursor.

Standard library only.
"""

import argparse
import http.client
import json
import os
import subprocess
import sys
import urllib.parse
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TOOLS = {
    "write": ("writeToolCall", {"path": "path", "fileText": "fileText"}),
    "read": ("readToolCall", {"path": "path"}),
    "shell": ("shellToolCall", {"command": "command"}),
}


def say(frame: dict[str, Any]) -> None:
    print(json.dumps(frame, ensure_ascii=False), flush=True)


class FailedError(Exception):
    """The run ends with words on standard error."""


class Chat:
    """A chat, kept in a file."""

    def __init__(self, resumed: str) -> None:
        folder = Path(os.environ.get("CURSOR_CONFIG_DIR") or Path.home() / ".cursor") / "chats"
        folder.mkdir(parents=True, exist_ok=True)
        self.id = resumed or str(uuid.uuid4())
        self.path = folder / f"{self.id}.json"
        if resumed and not self.path.exists():
            raise FailedError(f"Error: Chat {resumed} not found")
        self.messages: list[dict[str, Any]] = json.loads(self.path.read_text()) if resumed else []
        if self.messages and self.messages[-1].get("tool_calls"):
            del self.messages[-1]  # it was stopped before its tools had answered

    def add(self, message: dict[str, Any]) -> None:
        self.messages.append(message)
        whole = self.path.with_suffix(".new")  # it may be killed at any moment
        whole.write_text(json.dumps(self.messages))
        whole.replace(self.path)


class Agent:
    """One run."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.chat = Chat(options.resume)
        self.text = ""

    def frame(self, kind: str, **fields: Any) -> None:
        say({"type": kind, **fields, "session_id": self.chat.id})

    def run(self, prompt: str) -> None:
        model = self.options.model or "auto"
        source = "env" if os.environ.get("CURSOR_API_KEY") else "login"
        self.frame(
            "system", subtype="init", apiKeySource=source, cwd=str(Path.cwd()), model=model, permissionMode="default"
        )
        self.frame("user", message={"role": "user", "content": [{"type": "text", "text": prompt}]})
        self.chat.add({"role": "user", "content": prompt})
        while calls := self.turn(model):
            for call in calls:
                self.use(call)
        self.frame(
            "result", subtype="success", is_error=False, duration_ms=1, duration_api_ms=1, result=self.text,
            request_id=str(uuid.uuid4()),
        )  # fmt: skip

    def turn(self, model: str) -> list[dict[str, str]]:
        text = ""
        calls: dict[int, dict[str, str]] = {}
        for chunk in self.ask(model):
            delta = (chunk.get("choices") or [{}])[0].get("delta", {})
            words = delta.get("content") or ""
            if words:
                text += words
                self.frame("assistant", message=_message(words), timestamp_ms=1)
            for part in delta.get("tool_calls") or []:
                call = calls.setdefault(part["index"], {"id": "", "name": "", "arguments": ""})
                call["id"] += part.get("id") or ""
                call["name"] += part["function"].get("name") or ""
                call["arguments"] += part["function"].get("arguments") or ""
        if text:
            marks = {"model_call_id": "call-1", "timestamp_ms": 1} if calls else {}
            self.frame("assistant", message=_message(text), **marks)
        self.text += text
        asked = [
            {"id": call["id"], "type": "function", "function": {"name": call["name"], "arguments": call["arguments"]}}
            for call in calls.values()
        ]
        self.chat.add({"role": "assistant", "content": text, **({"tool_calls": asked} if asked else {})})
        return list(calls.values())

    def ask(self, model: str) -> Iterator[dict[str, Any]]:
        url = urllib.parse.urlsplit(os.environ["FAKE_CURSOR_MODEL_URL"])
        link = http.client.HTTPConnection(url.hostname or "", url.port)
        functions = [
            {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in TOOLS
        ]
        body = {"model": model, "messages": self.chat.messages, "stream": True, "tools": functions}
        key = os.environ.get("CURSOR_API_KEY", "")
        link.request("POST", "/v1/chat/completions", json.dumps(body), {"Authorization": f"Bearer {key}"})
        answer = link.getresponse()
        if answer.status != 200:
            error = json.loads(answer.read()).get("error", {})
            raise FailedError(f"Error: {answer.status} {error.get('message', answer.reason)}")
        ended = False
        for line in answer:
            data = line.decode().strip().removeprefix("data: ")
            ended = ended or data == "[DONE]"
            if data and not ended:
                yield json.loads(data)
        if not ended:
            raise FailedError("Error: Connection lost: stream closed before its end")

    def use(self, call: dict[str, str]) -> None:
        key, _ = TOOLS.get(call["name"], (f"{call['name']}ToolCall", {}))
        arguments = json.loads(call["arguments"] or "{}")
        shown = {"args": {**arguments, "toolCallId": call["id"]}}
        self.frame("tool_call", subtype="started", call_id=call["id"], tool_call={key: shown})
        result = self.result(call["name"], arguments)
        ended = {key: {**shown, "result": result}}
        self.frame("tool_call", subtype="completed", call_id=call["id"], tool_call=ended)
        outcome = next(iter(result.values()))
        content = (
            outcome.get("content")
            or outcome.get("stdout")
            or outcome.get("error")
            or outcome.get("reason")
            or "Done."
        )
        self.chat.add({"role": "tool", "tool_call_id": call["id"], "content": content})

    def result(self, name: str, arguments: dict[str, Any]) -> dict[str, dict[str, Any]]:
        if name != "read" and not self.options.force:
            return {"rejected": {"reason": "Only proposed: this run may not change anything."}}
        try:
            if name == "write":
                path = Path(arguments["path"])
                path.write_text(arguments["fileText"])
                return {"success": {"path": str(path.absolute()), "linesCreated": 1, "fileSize": path.stat().st_size}}
            if name == "read":
                content = Path(arguments["path"]).read_text()
                return {"success": {"content": content, "isEmpty": not content, "totalChars": len(content)}}
            done = subprocess.run(["bash", "-c", arguments["command"]], capture_output=True, text=True, check=False)
        except OSError as error:
            return {"error": {"error": str(error)}}
        return {"success": {"exitCode": done.returncode, "stdout": done.stdout, "stderr": done.stderr}}


def _message(words: str) -> dict[str, Any]:
    return {"role": "assistant", "content": [{"type": "text", "text": words}]}


def main() -> int:
    if "--version" in sys.argv:
        print("2026.01.01-fake")
        return 0
    if sys.argv[1:] == ["status"]:
        print("Not logged in")
        return 0
    parser = argparse.ArgumentParser()
    for flag in ("--print", "--stream-partial-output", "--trust", "--force"):
        parser.add_argument(flag, action="store_true")
    for option in ("--output-format", "--resume", "--model", "--mode", "--workspace", "--sandbox"):
        parser.add_argument(option, default="")
    options = parser.parse_args()
    try:
        Agent(options).run(sys.stdin.buffer.read().decode())
    except FailedError as failure:
        print(failure, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
