"""Reports for programs and for the web: JSON, JUnit, HTML."""

import html
import re
from xml.etree import ElementTree as ET

from dragoman.conformance.runner import Outcome, Progress, Report, Verdict, declared_features

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem; color: #222 }
table { border-collapse: collapse; width: 100%; margin-bottom: 2rem }
th, td { text-align: left; vertical-align: top; padding: .3rem .6rem; border-bottom: 1px solid #ddd }
.passed, .yes { color: #17692d } .failed, .error { color: #b3261e; font-weight: 600 } .skipped, .no { color: #777 }
"""

_NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What no XML 1.0 document may contain, not even as a reference."""


def as_json(report: Report) -> dict[str, object]:
    """Return the report as JSON values."""
    described = report.described
    return {
        "target": report.target,
        "kind": "router" if report.is_router else "adapter",
        "adapter": described.adapter,
        "version": described.version,
        "revision": described.revision,
        "passed": report.count(Verdict.PASSED),
        "failed": report.count(Verdict.FAILED),
        "skipped": report.count(Verdict.SKIPPED),
        "errors": report.count(Verdict.ERROR),
        "declared_not_examined": list(report.unexamined),
        "stale_expected_failures": list(report.stale),
        "exit_code": report.exit_code,
        "stopped": report.stopped,
        "duration_s": round(report.duration_s, 3),
        "features": declared_features(report),
        "checks": [_check(outcome) for outcome in report.outcomes],
    }


def progress_as_json(progress: Progress, outcome: Outcome) -> dict[str, object]:
    """Return JSON values of an outcome, with how many rules are done, and of how many."""
    return {**_check(outcome), "done": progress.done, "total": progress.total}


def _check(outcome: Outcome) -> dict[str, object]:
    rule = outcome.rule
    return {
        "id": rule.id,
        "level": rule.level.value,
        "rule": rule.text,
        "place": rule.place,
        "verdict": outcome.verdict.value,
        "message": outcome.message,
        "expected": outcome.is_expected,
        "duration_s": round(outcome.duration_s, 3),
    }


def as_junit(report: Report) -> str:
    """Return the report as JUnit's XML. An expected failure counts as skipped, a stale one as a failure."""
    suite = ET.Element("testsuite", name="dragoman conformance", time=f"{report.duration_s:.3f}")
    failures = skipped = errors = 0
    for outcome in report.outcomes:
        topic, _, name = outcome.rule.id.partition(".")
        case = ET.SubElement(suite, "testcase", classname=topic, name=name, time=f"{outcome.duration_s:.3f}")
        message = _NOT_IN_XML.sub("\ufffd", outcome.message)
        if outcome.verdict is Verdict.ERROR:
            errors += 1
            ET.SubElement(case, "error", message=message)
        elif outcome in report.violations:
            failures += 1
            ET.SubElement(case, "failure", message=message).text = outcome.rule.text
        elif outcome.verdict is not Verdict.PASSED:
            skipped += 1
            ET.SubElement(case, "skipped", message=f"{outcome.verdict}: {message}")
    for rule_id in report.stale:
        failures += 1
        case = ET.SubElement(suite, "testcase", classname="expected-failures", name=rule_id)
        ET.SubElement(case, "failure", message="is expected to fail, and did not fail")
    if report.stopped:
        errors += 1
        case = ET.SubElement(suite, "testcase", classname="target", name="lives")
        ET.SubElement(case, "error", message=_NOT_IN_XML.sub("\ufffd", report.stopped))
    counts = {"tests": len(suite), "failures": failures, "errors": errors, "skipped": skipped}
    suite.attrib.update({name: str(count) for name, count in counts.items()})
    return ET.tostring(suite, encoding="unicode", xml_declaration=True)


def as_html(report: Report) -> str:
    """Return the report as a page: what the adapter supports, and what became of each rule."""
    described = report.described
    title = html.escape(f"{described.label or described.adapter} {described.version}".strip())
    counts = ", ".join(f"{report.count(verdict)} {verdict.value}" for verdict in Verdict)
    supported = "".join(
        f'<tr><td>{name}</td><td class="{"yes" if is_declared else "no"}">{"yes" if is_declared else "no"}</td></tr>'
        for name, is_declared in declared_features(report).items()
    )
    stopped = f'<pre class="failed">Not finished: {html.escape(report.stopped)}</pre>\n' if report.stopped else ""
    rows = "".join(
        "<tr>"
        f"<td><code>{outcome.rule.id}</code></td><td>{outcome.rule.level}</td>"
        f'<td class="{outcome.verdict}">{outcome.verdict}{" (expected)" if outcome.is_expected else ""}</td>'
        f"<td>{html.escape(outcome.rule.text)}<br><small>{html.escape(outcome.message)}</small></td>"
        f"<td>{html.escape(outcome.rule.place)}</td>"
        "</tr>"
        for outcome in report.outcomes
    )
    return (
        f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>Conformance of {title}</title>'
        f"<style>{_STYLE}</style>\n<h1>Conformance of {title}</h1>\n"
        f"<p>Revision {described.revision}: {counts}.</p>\n{stopped}"
        f"<h2>Support</h2>\n<table><tr><th>feature</th><th>declared</th></tr>{supported}</table>\n"
        "<h2>Rules</h2>\n<table><tr><th>rule</th><th>level</th><th>verdict</th><th></th><th>contract</th></tr>"
        f"{rows}</table></html>\n"
    )
