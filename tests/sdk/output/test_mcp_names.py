"""Whose tool a name means, in the ways that agents join the names of server and tool."""

import pytest
from dragoman.sdk.parsing import mcp_server_of
from hypothesis import given
from hypothesis import strategies as st

SERVERS = ("words", "words_de", "my-files", "Über server", "read")


@pytest.mark.parametrize(
    ("name", "server"),
    [
        ("mcp__words__say", "words"),
        ("mcp_words_say", "words"),
        ("mcp__words.say", "words"),
        ("words_say", "words"),
        ("words__say", "words"),
        ("words-say", "words"),
        ("words.say", "words"),
        ("words/say", "words"),
        # The longest name that fits.
        ("mcp__words_de__say", "words_de"),
        ("words_de_say", "words_de"),
        # Characters that agents replace.
        ("mcp__my_files__list", "my-files"),
        ("my-files-list", "my-files"),
        ("mcp__MY_FILES__list", "my-files"),
        ("mcp___ber_server__x", "Über server"),
        # Of a server that the request does not name, or shortened: known to be one, not whose.
        ("mcp__elsewhere__say", ""),
        ("mcp_wor...say", ""),
        ("mcp__words", ""),
        # None of the request's servers.
        ("say", None),
        ("words", None),
        ("words_", None),
        ("wordsmith_say", None),
        ("bash", None),
        ("mcp", None),
        ("", None),
    ],
)
def test_the_server_is_known_by_the_name(name: str, server: str | None) -> None:
    assert mcp_server_of(name, SERVERS) == server


def test_an_agents_own_tool_is_no_servers_that_is_called_alike() -> None:
    assert mcp_server_of("read_file", SERVERS) == "read"
    assert mcp_server_of("read_file", SERVERS, unprefixed=False) is None
    assert mcp_server_of("mcp__read__file", SERVERS, unprefixed=False) == "read"


@given(st.text(), st.lists(st.text(), max_size=3))
def test_no_name_makes_it_raise(name: str, servers: list[str]) -> None:
    assert mcp_server_of(name, servers) in {None, "", *servers}
