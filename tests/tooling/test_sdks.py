"""The table of what each SDK does: true of the Python SDK, and in the words of the contract's table of duties."""

from dragoman.protocol.duties import ALL_DUTIES, duties
from dragoman.v1 import adapter_pb2 as api

from tests.sdks import SDKS


def test_the_python_sdk_declares_what_the_documentation_says() -> None:
    assert SDKS["Python"]["declares"] == [api.Duty.Name(duty) for duty in ALL_DUTIES]


def test_it_names_what_the_contract_leaves_open() -> None:
    known = {rule.name for rule in duties() if rule.who == "optional"}
    for name, sdk in SDKS.items():
        assert set(sdk["optional"]) <= known, name
        assert set(sdk["declares"]) <= set(api.Duty.keys()), name
