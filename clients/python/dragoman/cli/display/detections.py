"""Detected agents, one line each, and the command to run one."""

import shlex
from collections.abc import Iterable, Sequence

from dragoman.cli.display.style import Segment, Style
from dragoman.cli.display.text import ago, enum_label, one_line
from dragoman.v1 import adapter_pb2 as pb

_OLD_S = 60.0
_NOT_LOGGED_IN = frozenset({pb.AUTH_STATE_MISSING, pb.AUTH_STATE_EXPIRED})


def is_ready(detection: pb.Detection) -> bool:
    """Return whether a run of this agent can be expected to work."""
    return detection.available and detection.auth not in _NOT_LOGGED_IN


def is_generic(detection: pb.Detection) -> bool:
    """Return whether the adapter runs what a request names, e.g. any command, so that there is nothing to detect."""
    return detection.confidence == pb.DETECTION_CONFIDENCE_NOT_APPLICABLE


def lines(detections: Iterable[pb.Detection], now: float) -> list[list[Segment]]:
    """Return one line per agent, e.g. ``✓ claude_code v2.1.330 (auth: ok)``, and its problems below.

    Generic adapters, which have no agent until a request names one, come last.

    Args:
        detections: what was detected.
        now: the time, in seconds since the epoch; what was cached a minute ago or longer is shown with its age.
    """
    out: list[list[Segment]] = []
    for detection in sorted(detections, key=is_generic):
        ready = is_ready(detection)
        mark = Segment("✓ ", Style.ASSISTANT) if ready else Segment("✗ ", Style.ERROR)
        version = one_line(detection.version, 40)
        if version[:1].isdigit():
            version = f"v{version}"
        name = " ".join(part for part in (one_line(detection.adapter, 60), version) if part)
        what = _facts(detection) if ready else _obstacles(detection)
        out.append([mark, Segment(f"{name} ({what}{_age(detection, now)})")])
        for problem in detection.problems:
            if problem.message != detection.message:
                hint = problem.hint if problem.hint != detection.hint else ""  # shown above
                out.append([Segment(f"    ! {_joined(problem.message, hint)}", Style.TOOL)])
    return out


def summary(detections: Sequence[pb.Detection], now: float) -> list[Segment]:
    """Return how many agents are ready, and how to detect again if that may have changed since."""
    is_old = any(_age(detection, now) for detection in detections)
    return [Segment(f"{counted(detections)}{'; --refresh detects again' if is_old else ''}")]


def _age(detection: pb.Detection, now: float) -> str:
    """Return how old an answer of a router's cache is; empty if it is new, or of a generic adapter."""
    age_s = now - detection.detected_at.ToNanoseconds() / 1e9
    if not detection.cached or not detection.HasField("detected_at") or is_generic(detection) or age_s < _OLD_S:
        return ""
    return f", detected {ago(age_s)}"


def report(detections: Sequence[pb.Detection], now: float) -> list[list[Segment]]:
    """Return a router's report of the detected agents: one line each, and how many are ready."""
    report_lines = [*lines(detections, now), [Segment(f"router ready; {counted(detections)}", Style.SYSTEM)]]
    return [[Segment("[dragoman] ", Style.FAINT), *line] for line in report_lines]


def _facts(detection: pb.Detection) -> str:
    if is_generic(detection) and detection.message:
        return f"generic: {_clause(detection.message)}"
    facts: list[str] = []
    if detection.auth == pb.AUTH_STATE_NOT_NEEDED:
        facts.append("no login needed")
    elif detection.auth != pb.AUTH_STATE_UNSPECIFIED:
        method = f", {one_line(detection.auth_method, 40)}" if detection.auth_method else ""
        facts.append(f"auth: {enum_label(pb.AuthState.DESCRIPTOR, detection.auth, 'AUTH_STATE_')}{method}")
    selected = "/".join(one_line(part, 80) for part in (detection.provider, detection.model) if part)
    if selected:
        facts.append(f"model {selected}" if detection.model else f"provider {selected}")
    if detection.skills_dir:
        facts.append(f"skills dir {one_line(detection.skills_dir, 200)}")
    if detection.confidence == pb.DETECTION_CONFIDENCE_EXECUTABLE_ONLY:
        facts.append("no config dir yet")
    if detection.hint:
        facts.append(_clause(detection.hint))
    return ", ".join(facts) or _clause(detection.message) or "available"


def _obstacles(detection: pb.Detection) -> str:
    if detection.confidence == pb.DETECTION_CONFIDENCE_ABSENT:
        what = "not installed, or not on PATH"
    elif detection.confidence == pb.DETECTION_CONFIDENCE_CONFIG_ONLY:
        what = f"not on PATH, though {one_line(detection.config_dir, 200)} exists"
    elif detection.auth == pb.AUTH_STATE_EXPIRED:
        what = "installed but its login has expired"
    elif detection.auth == pb.AUTH_STATE_MISSING:
        what = "installed but not authenticated"
    else:
        what = detection.message or "not available"
    return _joined(what, detection.hint)


def _joined(what: str, hint: str) -> str:
    """Return the problem and the hint as one text: two sentences, or two clauses of one."""
    first, second = _clause(what), _clause(hint)
    if not first or not second:
        return first or second
    return f"{first}{'.' if second[0].isupper() else ';'} {second}"


def _clause(sentence: str) -> str:
    """Return a sentence as part of a longer one."""
    return one_line(sentence, 300).removesuffix(".")


def counted(detections: Sequence[pb.Detection]) -> str:
    """Return how many agents are ready, e.g. ``2 of 3 agents available, and 1 generic adapter``."""
    agents = [detection for detection in detections if not is_generic(detection)]
    generic = len(detections) - len(agents)
    ready = sum(map(is_ready, agents))
    facts = [f"{ready} of {len(agents)} agent{'' if len(agents) == 1 else 's'} available"] if agents else []
    facts += [f"{generic} generic adapter{'' if generic == 1 else 's'}"] if generic else []
    return ", and ".join(facts) or "no adapters"


def next_command(detection: pb.Detection) -> str:
    """Return the command that runs this agent."""
    adapter = shlex.quote(one_line(detection.adapter, 60))
    if is_generic(detection):
        return f"dragoman describe {adapter}"
    return f'dragoman run {adapter} "Say hello in one sentence."'
