"""Everything the scripted model says, in each vendor's words; the scenarios that ship; and how each agent is run."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from dragoman.testkit.model_server.api import ModelApi
from dragoman.testkit.model_server.conversation import Conversation
from dragoman.testkit.model_server.scenarios import DEFAULT, SCENARIOS
from dragoman.testkit.model_server.script import Cause, Failure, Reply, Text, Thinking, Tool, Usage
from dragoman.testkit.model_server.server import APIS
from dragoman.testkit.profiles import PROFILES

from tests.golden import assert_golden

GOLDEN = Path(__file__).parent / "golden"
ASKED = Conversation(
    user_texts=("Hello",),
    prompt="Hello",
    tools=("shell", "patch"),
    text_tools=("patch",),
    model="m-1",
    stream_usage=True,
)
USAGE = Usage(input=3, output=5, cache_read=7, cache_write=11)
REPLIES = {
    "text": Reply((Text("Some words, é.", chunk=8),), usage=USAGE),
    "thinking": Reply((Thinking("Let me see.", chunk=0), Text("Yes.")), usage=USAGE),
    "tools": Reply((Text("Now."), Tool("shell", {"command": "ls"}, chunk=9), Tool("shell", {})), usage=USAGE),
    "a tool that takes text": Reply((Tool("patch", {"input": "*** Begin"}),), usage=USAGE),
    "refusal": Reply((Text("No."),), stop="refusal", usage=USAGE),
    "max_tokens": Reply((Text("And th"),), stop="max_tokens", usage=USAGE),
    "no cache": Reply((Text("Hi."),), usage=Usage(input=1, output=1, cache_read=0, cache_write=0)),
}


def streamed(
    api: ModelApi, reply: Reply, asked: Conversation = ASKED, ending: Failure | None = None
) -> Iterator[str]:
    return (event.decode().rstrip().replace("\n", " | ") for event in api.events(reply, asked, 2, ending))


def answers(api: ModelApi) -> Iterator[str]:
    for name, reply in REPLIES.items():
        yield f"## {name}"
        yield from streamed(api, reply)
        yield f"whole: {json.dumps(api.whole(reply, ASKED, 2), ensure_ascii=False)}"
    yield "## without usage"
    silent = msgspec.structs.replace(ASKED, stream_usage=False)
    yield from streamed(api, REPLIES["text"], silent)
    for cause in get_args(Cause):
        yield f"## {cause}"
        for failure in (Failure(cause), Failure(cause, message="Words.", retry_after_s=9)):
            answer = api.failure(failure, ASKED)
            yield f"{answer.status} {json.dumps(answer.body, ensure_ascii=False)} {dict(answer.headers)}"
    yield "## an error in a stream"
    passing: tuple[Cause, ...] = ("overloaded", "rate_limited", "quota")
    for cause in passing:
        yield from streamed(api, REPLIES["text"], ending=Failure(cause, retry_after_s=9))


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)
def test_an_api_answers_as_its_vendor_does(api: ModelApi) -> None:
    text = "\n".join(answers(api))
    text = re.sub(r'("(?:created|created_at|createTime)": )("[^"]*"|[0-9.]+)', r"\1TIME", text)
    assert_golden(GOLDEN / f"{api.name}.txt", text + "\n")


def shown(value: Any) -> str:
    return json.dumps(msgspec.to_builtins(value), ensure_ascii=False)


def scenario_lines() -> Iterator[str]:
    for one in (DEFAULT, *SCENARIOS):
        yield f"## {one.name} {dict(one.arguments)}: {one.summary}"
        yield from (re.sub(r"( word\d{4})+", " words", shown(step)) for step in one.steps)


def test_the_scenarios_that_ship() -> None:
    assert_golden(GOLDEN / "scenarios.txt", "\n".join(scenario_lines()) + "\n")


def profile_lines() -> Iterator[str]:
    for name, profile in PROFILES.items():
        yield f"## {name}"
        for key, value in msgspec.to_builtins(profile).items():
            items = value.items() if isinstance(value, dict) else [("", value)]
            yield from (f"{key} {item}: {json.dumps(what, ensure_ascii=False)}" for item, what in items)


def test_how_each_agent_is_run() -> None:
    assert_golden(GOLDEN / "profiles.txt", "\n".join(profile_lines()) + "\n")
