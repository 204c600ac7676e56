"""The process adapter's word of itself, and from its config to a command line."""

from pathlib import Path
from typing import Any

import pytest
from dragoman.adapters.process import adapter
from dragoman.protocol.errors import DragomanError
from dragoman.sdk import Plan
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb

from tests.adapters.jobs import job_of

PROMPT = "Say \N{LATIN SMALL LETTER E WITH ACUTE}."


def planned(cwd: Path, config: dict[str, Any]) -> Plan:
    run_request = api.ExecuteRequest(run_id="run-1", prompt=PROMPT)
    run_request.workspace.cwd = str(cwd)
    run_request.brand.env_prefix = "PAPERCLIP"
    run_request.config.update({"command": "/bin/tool", **config})
    job = job_of(adapter(), run_request, executable="/bin/tool")
    return adapter().plan(job)


@pytest.mark.parametrize("config", [{}, {"promptVia": "stdin"}])
def test_the_prompt_goes_to_standard_input(tmp_path: Path, config: dict[str, Any]) -> None:
    plan = planned(tmp_path, {"args": ["-x"], **config})
    assert (plan.argv, plan.stdin) == (("/bin/tool", "-x"), PROMPT.encode())
    assert not plan.keep_stdin_open


def test_the_prompt_goes_into_a_file(tmp_path: Path) -> None:
    plan = planned(tmp_path, {"promptVia": "file", "args": ["{{promptFile}}", "{{runId}}"]})
    assert plan.argv == ("/bin/tool", "/run/dir/prompt.txt", "run-1")
    assert (plan.stdin, plan.files) == (b"", {"prompt.txt": PROMPT.encode()})
    assert plan.env == {"PAPERCLIP_PROMPT_FILE": "/run/dir/prompt.txt"}


def test_the_prompt_goes_into_the_arguments(tmp_path: Path) -> None:
    plan = planned(tmp_path, {"promptVia": "args", "args": ["--say={{prompt}}", "{{cwd}}"]})
    assert plan.argv == ("/bin/tool", f"--say={PROMPT}", str(tmp_path))
    assert plan.stdin == b""


def test_there_may_be_no_prompt(tmp_path: Path) -> None:
    assert planned(tmp_path, {"promptVia": "none"}).stdin == b""


@pytest.mark.parametrize(
    ("config", "path"),
    [
        ({"promptVia": "telepathy"}, "config.promptVia"),
        ({"output": "xml"}, "config.output"),
        ({"arg": []}, "config.arg"),
        ({"args": [1]}, "config.args[0]"),
        ({"command": ""}, "config.command"),
    ],
)
def test_a_wrong_key_is_refused_with_its_path(tmp_path: Path, config: dict[str, Any], path: str) -> None:
    with pytest.raises(DragomanError) as refused:
        planned(tmp_path, config)
    assert [item.path for item in refused.value.violations] == [path]


def test_it_keeps_no_permissions() -> None:
    assert adapter().describe().capabilities.permission_mode == pb.PERMISSION_MODE_NONE
