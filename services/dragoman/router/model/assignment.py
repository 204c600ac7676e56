"""Where a run is, as the run log keeps it for the router that may have to recover the run."""

import json
from typing import Final, TypeAlias

from msgspec import Struct


class Unassigned(Struct, frozen=True):
    """No adapter process has had the run."""


class Dispatched(Struct, frozen=True):
    """An adapter process has the run, or was about to get it."""

    address: str
    instance_id: str
    is_bound: bool = False
    """Whether only the router that sent it there can follow it: that one does what the adapter leaves to it."""
    is_registered: bool = False
    """Whether the adapter registered at the router: another router learns of it from here."""


class BetweenAttempts(Struct, frozen=True):
    """An attempt has failed, and the next one has not begun."""


Assignment: TypeAlias = Unassigned | Dispatched | BetweenAttempts

_BETWEEN: Final = {"between": "attempts"}


def encode_place(assignment: Assignment, router: str) -> str:
    """Return the stored form of an assignment.

    Args:
        assignment: where the run is.
        router: the address at which other routers reach its owner; empty if there is none.
    """
    match assignment:
        case Unassigned():
            place = {}
        case Dispatched(address, instance_id, is_bound, is_registered):
            facts = {"bound": is_bound, "registered": is_registered}
            place = {"address": address, "instance_id": instance_id}
            place |= {name: "1" for name, is_so in facts.items() if is_so}
        case _:
            place = _BETWEEN
    return json.dumps({**place, "router": router})


def decode_place(place: str) -> tuple[Assignment, str]:
    """Return the assignment and the owner's address of a stored form, which any release may have written."""
    stored: dict[str, str] = json.loads(place)
    router = stored.get("router", "")
    if "address" in stored:
        instance_id, is_registered = stored.get("instance_id", ""), "registered" in stored
        return Dispatched(stored["address"], instance_id, "bound" in stored, is_registered), router
    return BetweenAttempts() if "between" in stored else Unassigned(), router
