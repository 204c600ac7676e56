"""opencode's login, with programs that pretend to be opencode."""

from pathlib import Path

import pytest
from dragoman.adapters.opencode import adapter
from dragoman.adapters.opencode.device_login import DeviceLogin
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb
from hypothesis import given
from hypothesis import strategies as st

from tests.adapters.accounts import install, steps

URL = "https://auth.example/codex/device"
PROMPT = api.LoginResponse(prompt=api.LoginPrompt(url=URL, user_code="ABCD-1234"))
DONE = api.LoginResponse(outcome=api.LoginOutcome())
SHOWN = f"printf '┌  Add credential\\n│\\n●  Go to: {URL}\\n│\\n●  Enter code: ABCD-1234\\n\\033[?25l│\\n'; "
ENDED = "printf '◒  Waiting for authorization\\033[999D\\033[J◇  %s\\n\\033[?25h│\\n└  Done\\n\\n' "


async def test_a_code_then_the_outcome(tmp_path: Path) -> None:
    """Its database is made first, as before a run."""
    script = f'echo "$*" >> {tmp_path}/argv; {SHOWN} {ENDED} "Login successful"'
    assert await steps(adapter(), install(tmp_path, "opencode", script), "device_code") == [PROMPT, DONE]
    database, login = (tmp_path / "argv").read_text().splitlines()
    assert database == "db path"
    assert login == "auth login --provider openai --method ChatGPT Pro/Plus (headless)"


@pytest.mark.parametrize(
    ("script", "kind", "text"),
    [
        (f'{SHOWN} {ENDED} "Failed to authorize"', pb.FAILURE_KIND_AUTH_REQUIRED, "not completed"),
        ("echo 'Error: no such provider' >&2", pb.FAILURE_KIND_UPSTREAM_UNAVAILABLE, "no such provider"),
        (SHOWN, pb.FAILURE_KIND_AUTH_REQUIRED, "ended before"),
    ],
)
async def test_a_login_that_fails(script: str, kind: int, text: str, tmp_path: Path) -> None:
    *_, ended = await steps(adapter(), install(tmp_path, "opencode", script))
    assert (ended.outcome.failure.kind, text in ended.outcome.failure.message) == (kind, True)


async def test_no_program(tmp_path: Path) -> None:
    (ended,) = await steps(adapter(), {"PATH": str(tmp_path), "HOME": str(tmp_path)})
    assert ended.outcome.failure.code == "opencode_not_installed"


LINES = (f"●  Go to: {URL}", "●  Enter code: A", "◇  Login successful", "■  Failed to authorize")


@given(st.lists(st.text(max_size=20) | st.sampled_from(LINES), max_size=6))
def test_any_lines_are_steps(lines: list[str]) -> None:
    login, prompted = DeviceLogin(), False
    for event in map(login.step, lines):
        prompted |= event is not None and bool(event.prompt.url)
        assert event is None or prompted or event.outcome.failure.message
    assert login.ended().message
