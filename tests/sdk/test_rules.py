"""What adapters refuse in one set of words."""

from collections.abc import Iterable, Iterator

import pytest
from dragoman.protocol.errors import DragomanError, FieldViolation, Reason
from dragoman.sdk import Settings, capabilities, rules
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.sdk.agents.test_in_process import Asked
from tests.sdk.schemas import config_schema

NAME = "is missing, or the same as another's"
WAY = "give stdio.command or http.url"
STDIO = api.McpStdio(command="words")
HTTP = api.McpHttp(url="https://mcp.example/")

SERVERS = st.lists(
    st.builds(
        lambda name, way: api.McpServer(name=name, **way),
        st.sampled_from(["", "a", "b", "c"]),
        st.sampled_from(
            [{}, {"stdio": STDIO}, {"http": HTTP}, {"stdio": api.McpStdio(args=["-v"])}, {"http": api.McpHttp()}]
        ),
    ),
    max_size=6,
)


def described(violations: Iterable[FieldViolation]) -> dict[str, str]:
    return {item.path: item.description for item in violations}


@pytest.mark.parametrize("prompt", ["", " ", "\n\t ", "\u3000"])
def test_a_prompt_of_blanks_is_refused(prompt: str) -> None:
    assert described(rules.blank_prompt(api.ExecuteRequest(prompt=prompt))) == {"prompt": "must not be blank"}


@pytest.mark.parametrize(
    "request_", [api.ExecuteRequest(), api.ExecuteRequest(prompt="."), api.ExecuteRequest(prompt_template=" ")]
)
def test_no_prompt_and_a_template_are_no_blank_prompt(request_: api.ExecuteRequest) -> None:
    assert described(rules.blank_prompt(request_)) == {}


def test_words_that_would_be_options_are_reported_each_by_its_field() -> None:
    values = {"model": "--yolo", "config.a": "", "config.b": "a-b", "permissions.native_mode": "-"}
    refused = "must not begin with '-': it would be taken for an option"
    assert described(rules.read_as_options(values)) == {"model": refused, "permissions.native_mode": refused}


@pytest.mark.parametrize(
    ("mode", "modes", "problem"),
    [
        ("", ("plan", "ask"), None),
        ("", (), None),
        ("ask", ("plan", "ask"), None),
        ("Ask", ("plan", "ask"), "must be one of plan, ask, or absent"),
        ("pla", ("plan",), "must be plan, or absent"),
        ("plan", (), "there is none to choose; leave it out"),
    ],
)
def test_only_modes_that_there_are_can_be_chosen(mode: str, modes: tuple[str, ...], problem: str | None) -> None:
    expected = {} if problem is None else {"permissions.native_mode": problem}
    assert described(rules.native_mode(pb.Permissions(native_mode=mode), modes)) == expected


def test_every_wrong_mcp_server_is_reported_by_its_position() -> None:
    servers = [
        api.McpServer(name="a", stdio=STDIO),
        api.McpServer(name="a", http=HTTP),
        api.McpServer(),
        api.McpServer(name="b", http=api.McpHttp(headers={"k": "v"})),
    ]
    assert described(rules.wrong_mcp_servers(servers)) == {
        "mcp_servers[1].name": NAME,
        "mcp_servers[2].name": NAME,
        "mcp_servers[2]": WAY,
        "mcp_servers[3]": WAY,
    }


@settings(max_examples=100)
@given(SERVERS)
def test_without_the_reported_servers_all_is_well(servers: list[api.McpServer]) -> None:
    wrong = described(rules.wrong_mcp_servers(servers))
    blamed = {int(path.removeprefix("mcp_servers[").partition("]")[0]) for path in wrong}
    left = [server for index, server in enumerate(servers) if index not in blamed]
    assert described(rules.wrong_mcp_servers(left)) == {}
    assert len({server.name for server in left}) == len(left)
    assert all(server.name and (server.stdio.command or server.http.url) for server in left)
    # No server is blamed without a reason.
    assert set(range(len(servers))) - blamed == {
        index for index in range(len(servers)) if not _is_wrong(servers, index)
    }


def _is_wrong(servers: list[api.McpServer], index: int) -> bool:
    server = servers[index]
    is_double = server.name in {other.name for other in servers[:index]}
    return is_double or not server.name or not (server.stdio.command or server.http.url)


class Particular(Asked):
    """Refuses a thing of its own."""

    spec = replace(
        Asked.spec,
        config_schema=config_schema({}),
        capabilities=capabilities(pb.FEATURE_PROMPT, pb.FEATURE_MCP_SERVERS),
    )

    def wrong_fields(self, request: api.ExecuteRequest, settings: Settings) -> Iterator[FieldViolation]:
        del settings
        yield from rules.blank_prompt(request)


def test_common_and_particular_violations_are_reported_at_once() -> None:
    with pytest.raises(DragomanError) as caught:
        Particular().accept(api.ExecuteRequest(prompt=" ", mcp_servers=[api.McpServer(name="a")]))
    assert caught.value.reason is Reason.INVALID_REQUEST
    assert described(caught.value.violations) == {"mcp_servers[0]": WAY, "prompt": "must not be blank"}


class Choosing(Asked):
    """Has a choice of models and modes."""

    spec = replace(
        Asked.spec,
        capabilities=capabilities(pb.FEATURE_PROMPT, pb.FEATURE_MODEL_CHOICE, pb.FEATURE_PERMISSION_REQUESTS),
    )


def test_a_model_or_a_mode_is_never_read_as_an_option() -> None:
    request = api.ExecuteRequest(prompt="x", model="--help", permissions=pb.Permissions(native_mode="-x"))
    with pytest.raises(DragomanError) as caught:
        Choosing().accept(request)
    message = "must not begin with '-': it would be taken for an option"
    assert described(caught.value.violations) == {"model": message, "permissions.native_mode": message}


@pytest.mark.parametrize(("text", "is_one"), [("ses_a1", True), ("ses_", False), ("xses_a1", False)])
def test_session_ids_match_the_declared_pattern(text: str, is_one: bool) -> None:
    adapter = Choosing()
    adapter.spec = replace(Choosing.spec, session_id_pattern="ses_[a-z0-9]+")
    assert adapter.is_session_id(text) is is_one
