"""``dragoman demo``: a whole run without an agent, a login or a network; and ``make run``, which calls it."""

import os
import re

import pytest
from dragoman.cli.commands.demo import print_next_steps
from dragoman.v1 import adapter_pb2 as pb

from tests.cli.program import Done, dragoman
from tests.tooling.programs import run

READY = pb.Detection(adapter="a", available=True, confidence=pb.DETECTION_CONFIDENCE_CONFIDENT)
ABSENT = pb.Detection(adapter="b", confidence=pb.DETECTION_CONFIDENCE_ABSENT, hint="Install it.")
GENERIC = pb.Detection(adapter="process", available=True, confidence=pb.DETECTION_CONFIDENCE_NOT_APPLICABLE)


@pytest.fixture(scope="module")
async def shown(tmp_path_factory: pytest.TempPathFactory) -> Done:
    home = tmp_path_factory.mktemp("home")
    folder = tmp_path_factory.mktemp("tmp")
    # A proxy that is not there, and a key: neither may decide what the demo does.
    done = await dragoman(
        "demo",
        env={
            **{name: str(home / name) for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME")},
            "HOME": str(home),
            "PATH": str(home),
            "TMPDIR": str(folder),
            "HTTP_PROXY": "http://127.0.0.1:9",
            "OPENAI_API_KEY": "sk-0123456789abcdef",
        },
    )
    assert list(folder.iterdir()) == [], "the workspace is removed"
    assert not list(home.rglob("model_api/*")), "and so is the conversation"
    return done


def test_it_shows_text_tools_a_permission_a_change_and_tokens(shown: Done) -> None:
    assert (shown.code, shown.err) == (0, "")
    story = [
        "I'll look at add.py first.",
        "● Read add.py",
        "The function subtracts where it should add.",
        "● Edit add.py",
        "? Edit ",
        "[dragoman] The agent waits for an answer.",
        "  answered by dragoman demo: allow_once",
        "  ± modify ",
        "  │ -    return a - b",
        "  │ +    return a + b",
        "Fixed: add() now returns the sum.",
        "succeeded in ",
        "[dragoman] Type next:",
    ]
    lines = iter(shown.out.splitlines())
    for expected in story:
        assert any(line.startswith(expected) for line in lines), expected
    assert re.search(
        r"^succeeded in .+ · 1,200 in \+ 2,400 cached / 126 out tokens · .+ · run run-\w+$", shown.out, re.MULTILINE
    )


def test_agents_that_are_ready_come_with_their_commands(capsys: pytest.CaptureFixture[str]) -> None:
    print_next_steps([READY, ABSENT, GENERIC])
    out = capsys.readouterr().out
    assert 'dragoman run a "Say hello in one sentence."\n' in out
    assert " run b" not in out
    assert " run process" not in out


def test_without_any_agent_there_is_a_command_that_works(capsys: pytest.CaptureFixture[str]) -> None:
    print_next_steps([ABSENT, GENERIC])
    out = capsys.readouterr().out
    assert "dragoman detect  # " in out
    assert "dragoman run process 'hello' --config command=cat" in out


@pytest.mark.parametrize(("variable", "missing"), [("AGENT=process", "PROMPT"), ("PROMPT=hi", "AGENT")])
def test_make_run_needs_agent_and_prompt_together(variable: str, missing: str) -> None:
    done = run("make", "--old-file=.venv/.runtime", "run", variable)
    assert done.returncode == 2
    assert f"{missing}: is needed beside " in done.stderr
    assert done.stdout == ""


def test_make_run_runs_the_agent_that_is_named() -> None:
    prompt = """it's a "prompt" for `one` agent"""
    state = os.environ["XDG_STATE_HOME"]
    done = run("make", "--old-file=.venv/.runtime", "run", AGENT="no_such_agent", PROMPT=prompt, XDG_STATE_HOME=state)
    assert done.returncode == 2
    assert "Adapter 'no_such_agent' not found" in done.stderr
