"""What a permission of Copilot's is about, as rules see it."""

import pytest
from dragoman.adapters.copilot.tools import subject


@pytest.mark.parametrize(
    ("url", "host"),
    [("https://docs.example:8443/a", "docs.example"), ("docs.example/a", ""), ("http://[broken", ""), ("", "")],
)
def test_a_permission_to_fetch_names_the_host_if_there_is_one(url: str, host: str) -> None:
    assert subject({"kind": "url", "url": url}, {}, "web_fetch").host == host
