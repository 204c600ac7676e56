"""The scripted agent of the kit as a program: what it received, and formats other than its own."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from dragoman.conformance import Options, Verdict, run_checks, script

WORD = "word-0815"
RECEIVED = f"received={WORD.encode().hex()}"


def perform(folder: Path, *steps: str, arguments: tuple[str, ...] = (), prompt: str = "", **env: str) -> Any:
    """Return the finished program, started as `{script}` starts it."""
    return subprocess.run(
        [sys.executable, "-I", "-S", str(script.__file__), *arguments],
        input=prompt,
        cwd=folder,
        env={"PATH": os.environ["PATH"], script.VARIABLE: "\n".join(steps), **env},
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )


def texts(done: Any) -> list[str]:
    return [frame["text"] for frame in map(json.loads, done.stdout.splitlines()) if frame["type"] == "assistant"]


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_it_finds_what_it_received_wherever_that_is(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    empty = tmp_path / "empty"
    skill = write(tmp_path / "run/skills/one/SKILL.md", f"Remember {WORD}.").parents[1]
    assert texts(perform(empty, RECEIVED)) == ["received: no"]
    assert texts(perform(empty, RECEIVED, prompt=f"Remember {WORD}.")) == ["received: yes"]
    assert texts(perform(empty, RECEIVED, arguments=("--model", WORD))) == ["received: yes"]
    assert texts(perform(empty, RECEIVED, arguments=(f"--system=@{skill}/one/SKILL.md",))) == ["received: yes"]
    assert texts(perform(empty, RECEIVED, AGENT_SKILLS=str(skill))) == ["received: yes"]
    assert texts(perform(skill, RECEIVED)) == ["received: yes"]
    assert texts(perform(empty, RECEIVED, HOME=str(skill))) == ["received: no"], "a home may be of any size"


def test_it_searches_few_files_and_no_large_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script, "_MOST_FILES", 5)
    monkeypatch.setattr(script, "_LARGEST_FILE", 3)
    for name in ("a", "b/a", "c", "d"):
        write(tmp_path / name, f"{name[0]}aa")
    write(tmp_path / "a", "four")
    root = os.fsencode(tmp_path)
    assert list(script._files([b"/no/such/file", root])) == [b"caa"], (
        "a directory counts, and so does what is not read"
    )
    monkeypatch.setattr(script, "_MOST_FILES", 6)
    assert list(script._files([root])) == [b"caa", b"daa", b"baa"]


def test_a_script_in_the_prompt_does_not_give_the_word_away(tmp_path: Path) -> None:
    done = perform(tmp_path, prompt=f"{script.MARK}\n{RECEIVED}\n{script.END}\nHello.")
    assert texts(done) == ["received: no"]


def test_tokens_are_reported_as_far_as_they_are_known(tmp_path: Path) -> None:
    frames = [json.loads(perform(tmp_path, f"usage={counts}").stdout) for counts in ("11,7", "11,", ",7")]
    found = [(frame.get("inputTokens"), frame.get("outputTokens")) for frame in frames]
    assert found == [(11, 7), (11, None), (None, 7)]


def test_a_tool_fails_and_an_agent_exits(tmp_path: Path) -> None:
    done = perform(tmp_path, "tool=list", "failing=list", "exit=7", "say=no more")
    ended = [frame for frame in map(json.loads, done.stdout.splitlines()) if frame["type"] == "tool_result"]
    assert [(frame["content"], frame.get("isError")) for frame in ended] == [("done", None), ("failed", True)]
    assert done.returncode == 7
    assert '"result"' not in done.stdout, "it says nothing of success or failure"


def test_a_format_of_its_own(tmp_path: Path) -> None:
    own = write(
        tmp_path / "format.py",
        "def line(frame):\n"
        "    if frame.get('delta'):\n"
        "        raise NotImplementedError\n"
        "    return {'assistant': f\"- {frame.get('text')}\"}.get(frame['type'], '')\n",
    )
    named: Any = {script.FORMAT_VARIABLE: str(own)}
    assert perform(tmp_path, "say=hello", "tool=list", **named).stdout == "- hello\n"
    done = perform(tmp_path, "piece=hel", **named)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "dragoman-script: step 'piece' not supported by this agent\n"


@pytest.mark.timeout(60)
@pytest.mark.conformance
async def test_what_an_agent_cannot_perform_is_skipped(tmp_path: Path) -> None:
    own = write(tmp_path / "format.py", "def line(frame):\n    raise NotImplementedError\n")
    command = (sys.executable, "-m", "dragoman.cli.main", "adapter", "serve", "process")
    env = {script.FORMAT_VARIABLE: str(own)}
    only = ("run.succeeds", "run.progressive", "tools.results")
    report = await run_checks(Options(command=command, config='{"command": "{script}"}', env=env, only=only))
    assert [item.verdict for item in report.outcomes] == [Verdict.SKIPPED] * 3
    steps = [item.message.rpartition(" ")[2] for item in report.outcomes]
    assert steps == ["'say'", "'say'", "'tool'"]
