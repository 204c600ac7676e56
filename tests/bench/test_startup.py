"""Which process is which, for the memory of each."""

from dragoman.router.adapters.discovery import entry_point_specs

from .startup import COMMAND, kind_of


def test_a_process_is_known_by_the_command_that_starts_it() -> None:
    launches = [spec.launch for spec in entry_point_specs()]
    assert {kind_of(launch.command) for launch in launches if launch is not None} == {"sidecar"}
    assert kind_of([*COMMAND, "serve"]) == "router"
