"""What was detected, one line per agent, and what can be typed next."""

import shlex
from collections.abc import Iterable, Sequence

from dragoman.cli._style import Segment, Style
from dragoman.cli._text import one_line, word
from dragoman.v1 import adapter_pb2 as pb

_NOT_LOGGED_IN = frozenset({pb.AUTH_STATE_MISSING, pb.AUTH_STATE_EXPIRED})


def is_ready(found: pb.Detection) -> bool:
    """Tell whether a run of this agent can be expected to work."""
    return found.available and found.auth not in _NOT_LOGGED_IN


def lines(detections: Iterable[pb.Detection]) -> list[list[Segment]]:
    """Return one line per agent, e.g. ``✓ claude_code v2.1.330 (auth: ok)``, and its problems below."""
    out: list[list[Segment]] = []
    for found in detections:
        ready = is_ready(found)
        mark = Segment("✓ ", Style.ASSISTANT) if ready else Segment("✗ ", Style.ERROR)
        version = one_line(found.version, 40)
        if version[:1].isdigit():
            version = f"v{version}"
        name = " ".join(part for part in (one_line(found.adapter, 60), version) if part)
        out.append([mark, Segment(f"{name} ({_facts(found) if ready else _obstacles(found)})")])
        for problem in found.problems:
            if problem.message != found.message:
                hint = problem.hint if problem.hint != found.hint else ""  # told above
                out.append([Segment(f"    ! {_joined(problem.message, hint)}", Style.TOOL)])
    return out


def _facts(found: pb.Detection) -> str:
    facts: list[str] = []
    if found.auth == pb.AUTH_STATE_NOT_NEEDED:
        facts.append("no login needed")
    elif found.auth != pb.AUTH_STATE_UNSPECIFIED:
        method = f", {one_line(found.auth_method, 40)}" if found.auth_method else ""
        facts.append(f"auth: {word(pb.AuthState.DESCRIPTOR, found.auth, 'AUTH_STATE_')}{method}")
    if found.skills_dir:
        facts.append(f"skills dir {one_line(found.skills_dir, 200)}")
    if found.confidence == pb.DETECTION_CONFIDENCE_EXECUTABLE_ONLY:
        facts.append("no config dir yet")
    if found.hint:
        facts.append(_clause(found.hint))
    return ", ".join(facts) or _clause(found.message) or "available"


def _obstacles(found: pb.Detection) -> str:
    if found.confidence == pb.DETECTION_CONFIDENCE_ABSENT:
        what = "not installed"
    elif found.confidence == pb.DETECTION_CONFIDENCE_CONFIG_ONLY:
        what = f"not on PATH, though {one_line(found.config_dir, 200)} exists"
    elif found.auth == pb.AUTH_STATE_EXPIRED:
        what = "installed but its login has expired"
    elif found.auth == pb.AUTH_STATE_MISSING:
        what = "installed but not authenticated"
    else:
        what = found.message or "not available"
    return _joined(what, found.hint)


def _joined(what: str, hint: str) -> str:
    """Return what is wrong and what to do as one text: two sentences, or two clauses of one."""
    first, second = _clause(what), _clause(hint)
    if not first or not second:
        return first or second
    return f"{first}{'.' if second[0].isupper() else ';'} {second}"


def _clause(sentence: str) -> str:
    """Return a sentence as a part of a longer one."""
    return one_line(sentence, 300).removesuffix(".")


def counted(detections: Sequence[pb.Detection]) -> str:
    """Return how many agents are ready, e.g. ``2 of 3 agents available``."""
    ready = sum(is_ready(found) for found in detections)
    return f"{ready} of {len(detections)} agent{'' if len(detections) == 1 else 's'} available"


def next_command(found: pb.Detection) -> str:
    """Return what to type to run this agent."""
    adapter = shlex.quote(one_line(found.adapter, 60))
    if found.confidence == pb.DETECTION_CONFIDENCE_NOT_APPLICABLE:
        return f"dragoman describe {adapter}"
    return f'dragoman run {adapter} "Say hello in one sentence."'
