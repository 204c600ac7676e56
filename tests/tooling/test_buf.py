"""The contract as buf sees it: style, format, nothing broken; and the baseline it is compared with is today's."""

from pathlib import Path

import pytest

from .programs import HERE, ROOT, program, run

PROTO = ROOT / "proto"


@pytest.mark.parametrize(
    "arguments",
    [
        ["lint", "proto"],
        ["format", "--diff", "--exit-code", "proto"],
        ["breaking", "proto", "--against", "proto/baseline.binpb"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_buf_has_nothing_to_say(arguments: list[str], tmp_path: Path) -> None:
    done = run(program(HERE / "buf"), *arguments, HOME=str(tmp_path))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_baseline_has_every_addition(tmp_path: Path) -> None:
    """What was added but is not in the baseline could be broken unseen: ``make proto-baseline`` takes it in."""
    image = tmp_path / "now.binpb"
    done = run(
        *(program(HERE / "buf"), "build", "proto", "--exclude-source-info", "--output", str(image)),
        HOME=str(tmp_path),
    )
    assert done.returncode == 0, done.stderr
    assert image.read_bytes() == (PROTO / "baseline.binpb").read_bytes()


def test_only_the_two_documented_rules_are_excepted_and_only_in_one_file() -> None:
    """Which RPCs use the exceptions is held by tests/protocol/test_contract.py."""
    lines = [line.strip() for line in (PROTO / "buf.yaml").read_text(encoding="utf-8").splitlines()]
    start = lines.index("ignore_only:")
    assert lines[start + 1 : lines.index("breaking:")] == [
        "RPC_RESPONSE_STANDARD_NAME:",
        "- dragoman/v1/adapter.proto",
        "RPC_REQUEST_RESPONSE_UNIQUE:",
        "- dragoman/v1/adapter.proto",
    ]
    assert not any(line.startswith(("ignore:", "except:", "disallow_comment_ignores: false")) for line in lines)
    sources = "".join(path.read_text(encoding="utf-8") for path in PROTO.glob("dragoman/v1/*.proto"))
    assert "buf:lint:ignore" not in sources


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("  string run_id = 100;", "  string run_id = 108;"),
        ("  fixed64 sequence = 1;", "  uint64 sequence = 1;"),
        ("  OUTCOME_LOST = 5;\n", ""),
        ("  OUTCOME_LOST = 5;", "  OUTCOME_GONE = 5;"),
    ],
)
def test_a_break_would_be_seen(tmp_path: Path, old: str, new: str) -> None:
    copy = tmp_path / "proto"
    (copy / "dragoman/v1").mkdir(parents=True)
    for path in ("buf.yaml", "dragoman/v1/adapter.proto", "dragoman/v1/event.proto", "dragoman/v1/router.proto"):
        (copy / path).write_bytes((PROTO / path).read_bytes())
    event = copy / "dragoman/v1/event.proto"
    text = event.read_text(encoding="utf-8")
    assert text.count(old) == 1
    event.write_text(text.replace(old, new), encoding="utf-8")
    done = run(
        *(program(HERE / "buf"), "breaking", str(copy), "--against", str(PROTO / "baseline.binpb")),
        HOME=str(tmp_path),
    )
    assert done.returncode == 100, done.stderr
    assert "event.proto" in done.stdout
