"""Images that go with a prompt, in the words of each agent that takes them."""

import base64
import json
from pathlib import Path

from dragoman.adapters import openclaw
from dragoman.adapters.claude_code.adapter import ClaudeCodeAdapter
from dragoman.adapters.codex.adapter import CodexAdapter
from dragoman.adapters.codex.plan import turn_params
from dragoman.adapters.copilot.adapter import CopilotAdapter
from dragoman.adapters.copilot.plan import attached
from dragoman.adapters.model_api import openai_chat
from dragoman.adapters.model_api.reply import Message
from dragoman.adapters.model_api.transcripts import image_block
from dragoman.adapters.openclaw.plan import turn
from dragoman.adapters.pi.adapter import PiAdapter
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


def test_copilot_gets_them_as_blobs() -> None:
    job = job_of(CopilotAdapter(), request_of(prompt="Look."), attachments=FILES)
    assert attached(job.images) == {
        "attachments": [
            {"type": "blob", "data": FILES[1].base64, "mimeType": "image/png", "displayName": "shot.png"},
        ]
    }
    assert attached(job_of(CopilotAdapter(), request_of(), attachments=FILES[:1]).images) == {}


def test_openclaw_gets_them_with_the_turn() -> None:
    job = job_of(openclaw.adapter(), request_of(prompt="Look."), attachments=FILES)
    assert json.loads(turn(job))["params"]["attachments"] == [
        {"type": "image", "mimeType": "image/png", "fileName": "shot.png", "content": FILES[1].base64}
    ]


def test_an_old_pi_gets_them_by_path() -> None:
    job = job_of(PiAdapter(), request_of(prompt="Look."), attachments=FILES, version="0.73.1")
    assert [word for word in PiAdapter().plan(job).argv if word.startswith("@")] == ["@/files/shot.png"]


def test_chat_completions_have_them_as_data() -> None:
    image = image_block("image/png", FILES[1].base64)
    messages: list[Message] = [{"role": "user", "content": [image, {"type": "text", "text": "Look."}]}]
    sent = openai_chat.arguments("m", "", messages, [], {})["messages"]
    url = f"data:image/png;base64,{FILES[1].base64}"
    content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "Look."}]
    assert sent == [{"role": "user", "content": content}]


def test_codex_gets_them_by_path() -> None:
    job = job_of(CodexAdapter(), request_of(prompt="Look."), attachments=FILES)
    assert turn_params(job, "t")["input"] == [
        {"type": "text", "text": job.prompt},
        {"type": "localImage", "path": "/files/shot.png"},
    ]
