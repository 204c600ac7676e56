"""``dragoman conformance`` as a user runs it, against the adapter ``process``."""

import asyncio
import contextlib
import json
import os
import pty
import re
import secrets
import signal
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from dragoman.cli.commands.conformance import progress_line
from dragoman.conformance import RULES, Outcome, Progress, Report, Verdict
from dragoman.conformance.launch import left_running
from dragoman.conformance.reports import as_junit
from dragoman.v1 import adapter_pb2 as api

pytestmark = pytest.mark.timeout(180)

DRAGOMAN = (sys.executable, "-m", "dragoman.cli.main")
PROCESS = ("--", *DRAGOMAN, "adapter", "serve", "process")
SCRIPTED = '{"command": "{script}", "output": "jsonl"}'


def conformance(*arguments: str | Path) -> "subprocess.CompletedProcess[str]":
    command = [*DRAGOMAN, "conformance", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=170)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("reports")


@pytest.fixture(scope="module")
def whole(folder: Path) -> "subprocess.CompletedProcess[str]":
    reports = ("--json", "--junit", folder / "junit.xml", "--html", folder / "page.html")
    return conformance("--config", SCRIPTED, *reports, *PROCESS)


def test_the_adapter_process_conforms(whole: "subprocess.CompletedProcess[str]") -> None:
    report = json.loads(whole.stdout.splitlines()[-1])
    wrong = {item["id"]: item["message"] for item in report["checks"] if item["verdict"] in {"failed", "error"}}
    assert wrong == {}
    assert whole.returncode == report["exit_code"] == 0
    assert (report["adapter"], report["kind"], report["revision"]) == ("process", "adapter", 1)
    skipped = {item["id"]: item["message"] for item in report["checks"] if item["verdict"] == "skipped"}
    missing = {name for name, why in skipped.items() if not why.endswith("is not declared")}
    of_routers = {name for name in RULES if name.startswith(("registration.", "router."))}
    unseen = {"describe.aliases", "events.input-resolved", "send.settled"}
    assert missing == {*unseen, "unsupported.attachments", "unsupported.changes", *of_routers}
    assert skipped["router.session"] == "an adapter serves no RouterService"
    assert report["passed"] + report["skipped"] == len(RULES)


def test_each_rule_is_a_line_of_json_as_soon_as_it_is_examined(whole: "subprocess.CompletedProcess[str]") -> None:
    *lines, report = map(json.loads, whole.stdout.splitlines())
    assert {line["id"] for line in lines} == set(RULES)
    assert [(line["done"], line["total"]) for line in lines] == [(n + 1, len(RULES)) for n in range(len(RULES))]
    outcomes = {line["id"]: line["verdict"] for line in lines}
    assert outcomes == {item["id"]: item["verdict"] for item in report["checks"]}


def test_the_last_line_counts_the_verdicts() -> None:
    last = conformance("--only", "describe.", *PROCESS).stdout.splitlines()[-1]
    assert re.fullmatch(r"process \S+, revision 1: \d+ passed, \d+ skipped in [\d.]+ s", last)


def test_a_terminal_shows_how_far_it_is() -> None:
    """The command in a pseudo-terminal: what runs, and how many of how many."""
    controller, terminal = pty.openpty()
    command = [*DRAGOMAN, "conformance", "--only", "server.", *PROCESS]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=terminal) as kit:
        os.close(terminal)
        shown = bytearray()
        with contextlib.suppress(OSError):  # the other end is closed
            while data := os.read(controller, 4096):
                shown += data
        assert kit.wait() == 0
    os.close(controller)
    lines = shown.decode().split("\r\x1b[K")
    assert lines[1] == "0 of 4  server.health"
    assert lines[-2:] == ["4 of 4  ", ""]


def test_a_line_fits_the_terminal() -> None:
    progress = Progress(12, 140, ("cancel.stops", "run.orphan"))
    assert progress_line(progress, 80) == "12 of 140  cancel.stops, run.orphan"
    assert progress_line(progress, 20) == "12 of 140  cancel.…"


def test_the_reports_have_every_rule(whole: "subprocess.CompletedProcess[str]", folder: Path) -> None:
    report = json.loads(whole.stdout.splitlines()[-1])
    assert [item["id"] for item in report["checks"]] == list(RULES)
    suite = ET.parse(folder / "junit.xml").getroot()
    assert len(suite.findall("testcase")) == len(RULES)
    assert (suite.get("failures"), suite.get("skipped")) == ("0", str(report["skipped"]))
    page = (folder / "page.html").read_text()
    assert all(f"<code>{name}</code>" in page for name in RULES)
    assert '<td>prompt</td><td class="yes">yes</td>' in page


def test_an_expected_failure_that_passes_is_stale(tmp_path: Path) -> None:
    listed = tmp_path / "expected"
    listed.write_text("# none\nserver.health  # long repaired\n")
    done = conformance("--only", "server.", "--expected-failures", listed, *PROCESS)
    assert done.returncode == 1
    assert "server.health is expected to fail, and did not fail" in done.stdout
    listed.write_text("server.no-such-rule\n")
    done = conformance("--expected-failures", listed, *PROCESS)
    assert (done.returncode, "no rule 'server.no-such-rule'" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (("--", "/no/such/program"), "cannot be started"),
        (("--", "false"), "the command exited with code 1"),
        (("unix:/no/such/socket",), "Describe failed"),
    ],
)
def test_a_target_that_cannot_be_examined_is_not_its_fault(target: tuple[str, ...], message: str) -> None:
    done = conformance(*target)
    assert done.returncode == 3
    assert message in done.stderr


def test_without_a_scripted_agent_checks_are_skipped_with_the_reason() -> None:
    done = conformance("--only", "run.succeeds", *PROCESS)
    assert done.returncode == 0
    assert "skipped   run.succeeds  no scripted agent is configured (say, …)" in done.stdout


def test_what_is_declared_and_not_examined_is_named() -> None:
    rules = ("--only", "settings.", "--only", "unsupported.fork")
    done = conformance(*rules, *PROCESS)
    assert done.returncode == 0
    assert "declared, not examined: FEATURE_WORKSPACE\n" in done.stdout
    report = json.loads(conformance(*rules, "--json", *PROCESS).stdout.splitlines()[-1])
    assert report["declared_not_examined"] == ["FEATURE_WORKSPACE"]
    assert "not examined" not in conformance("--config", SCRIPTED, *rules, *PROCESS).stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--only", "server.", "--only", "nosuch."), "no rule is 'nosuch.' or begins so"),
        (("--junit", "/no/such/folder/junit.xml"), "the file '/no/such/folder/junit.xml' cannot be written"),
        (("--html", "/no/such/folder/page.html"), "the file '/no/such/folder/page.html' cannot be written"),
        (("--log", "/no/such/folder/log"), "the file '/no/such/folder/log' cannot be written"),
    ],
)
def test_wrong_options_are_refused_before_the_run(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    started = tmp_path / "started"
    done = conformance(*arguments, "--", "touch", started)
    assert done.returncode == 2
    assert message in done.stderr
    assert not started.exists()


def test_a_log_of_a_server_at_an_address_is_refused(tmp_path: Path) -> None:
    done = conformance("--log", tmp_path / "log", f"unix:{tmp_path}/x.sock")
    assert done.returncode == 2
    assert "--log keeps what a COMMAND prints; a server at an address prints elsewhere" in done.stderr


def test_control_characters_leave_the_junit_report_readable() -> None:
    rule = RULES["run.succeeds"]
    printed = "\x1b[31mred\x00\ufffe\ud800 <&> grüße \U0001f600\ttab"
    outcomes = tuple(Outcome(rule, verdict, printed) for verdict in Verdict)
    text = as_junit(Report("target", api.DescribeResponse(), False, outcomes, (), 1.0))
    found = [item.get("message") for case in ET.fromstring(text.encode()) for item in case]
    shown = "\ufffd[31mred\ufffd\ufffd\ufffd <&> grüße \U0001f600\ttab"
    assert found == [shown, f"skipped: {shown}", shown]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_target_with_the_kit(number: signal.Signals) -> None:
    rules = ("--only", "limits.wall", "--only", "server.", "--json")
    command = [*DRAGOMAN, "conformance", "--config", SCRIPTED, *rules, *PROCESS]
    mark = secrets.token_hex(8)
    env = {**os.environ, "CONFORMANCE_TEST": mark}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=env) as kit:
        assert kit.stdout is not None
        kit.stdout.readline()
        kit.send_signal(number)
        kit.wait(30)
    assert kit.returncode == 128 + number
    assert asyncio.run(left_running(mark, "CONFORMANCE_TEST", 0.0)) == []


DIES = """\
import asyncio, os
from dragoman.sdk import Run
from tests.conformance.scripted import ScriptedAdapter, serving

class Dying(ScriptedAdapter):
    async def execute(self, run: Run):
        if "call=" in run.request.env["DRAGOMAN_SCRIPT"]:
            print("Segmentation fault, as if", flush=True)
            os._exit(41)
        return await super().execute(run)

async def main():
    async with serving(os.environ["DRAGOMAN_LISTEN"], Dying()):
        await asyncio.Event().wait()

asyncio.run(main())
"""


RAISES = """\
import asyncio, os
from dragoman.sdk import Run
from tests.conformance.scripted import ScriptedAdapter, serving

class Raising(ScriptedAdapter):
    async def execute(self, run: Run):
        raise KeyError("no such key")

async def main():
    async with serving(os.environ["DRAGOMAN_LISTEN"], Raising()):
        print("serving", flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


def test_what_a_target_prints_is_kept_where_the_log_names_a_file(tmp_path: Path) -> None:
    target = ("--agent", "script", "--only", "run.succeeds", "--", sys.executable, "-c", RAISES)
    done = conformance(*target)
    assert done.returncode == 1
    assert done.stderr == "--log FILE keeps what the target prints, such as the traces of its failures.\n"
    done = conformance("--log", tmp_path / "log", *target)
    assert (done.returncode, done.stderr) == (1, "")
    log = (tmp_path / "log").read_text()
    assert log.startswith("serving\n")
    assert "KeyError" in log


def test_a_target_that_dies_is_one_message(tmp_path: Path) -> None:
    only = [
        word for name in ("server.", "run.", "limits.tool-call", "cancel.", "attach.") for word in ("--only", name)
    ]
    junit, page = tmp_path / "junit.xml", tmp_path / "page.html"
    reports = ("--json", "--junit", junit, "--html", page)
    done = conformance("--agent", "script", *only, *reports, "--", sys.executable, "-c", DIES)
    assert done.returncode == 3
    message = "the target exited with code 41 while the kit examined "
    error = json.loads(done.stderr)["error"]["message"]
    assert error.startswith(message)
    assert "limits.tool-call" in error.partition(". It printed last:\n")[0]
    assert "Segmentation fault, as if" in error
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["stopped"] == error
    assert report["failed"] == 0
    assert {item["id"] for item in report["checks"]} >= {"server.health", "run.succeeds"}
    assert message in page.read_text()
    (case,) = [case for case in ET.parse(junit).getroot() if case.get("classname") == "target"]
    assert message in str(case[0].get("message"))
