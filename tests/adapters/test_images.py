"""Images that go with a prompt, in the words of each agent that takes them."""

import base64
import json
from pathlib import Path

from dragoman.adapters.claude_code.adapter import ClaudeCodeAdapter
from dragoman.adapters.codex.adapter import CodexAdapter
from dragoman.adapters.codex.plan import turn_params
from dragoman.sdk.run import AttachedFile

from tests.adapters.jobs import job_of, request_of

FILES = (
    AttachedFile("notes.txt", "text/plain", Path("/files/notes.txt"), 3),
    AttachedFile("shot.png", "image/png", Path("/files/shot.png"), 8, b"\x89PNG\r\n\x1a\n"),
)


def test_claude_code_gets_them_as_blocks() -> None:
    adapter = ClaudeCodeAdapter()
    job = job_of(adapter, request_of(prompt="Look."), attachments=FILES)
    (line,) = adapter.plan(job).stdin.splitlines()
    image, text = json.loads(line)["message"]["content"]
    assert (image["source"]["media_type"], base64.b64decode(image["source"]["data"])) == ("image/png", FILES[1].image)
    assert text == {"type": "text", "text": job.prompt}


def test_codex_gets_them_by_path() -> None:
    job = job_of(CodexAdapter(), request_of(prompt="Look."), attachments=FILES)
    assert turn_params(job, "t")["input"] == [
        {"type": "text", "text": job.prompt},
        {"type": "localImage", "path": "/files/shot.png"},
    ]
