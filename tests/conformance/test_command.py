"""``dragoman conformance`` as a user runs it, against the adapter ``process``."""

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from dragoman.conformance import RULES

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
    report = json.loads(whole.stdout)
    wrong = {item["id"]: item["message"] for item in report["checks"] if item["verdict"] in {"failed", "error"}}
    assert wrong == {}
    assert whole.returncode == report["exit_code"] == 0
    assert (report["adapter"], report["kind"], report["revision"]) == ("process", "adapter", 1)
    skipped = {item["id"]: item["message"] for item in report["checks"] if item["verdict"] == "skipped"}
    missing = {name for name, why in skipped.items() if not why.endswith("is not declared")}
    assert missing == {"describe.aliases"}
    assert report["passed"] + report["skipped"] == len(RULES)


def test_the_reports_have_every_rule(whole: "subprocess.CompletedProcess[str]", folder: Path) -> None:
    report = json.loads(whole.stdout)
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
