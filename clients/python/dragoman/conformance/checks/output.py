"""The agent's output and environment: sizes, encodings, floods, secrets."""

import hashlib
import re
import secrets

from dragoman.conformance.check import Violation, check, expect
from dragoman.conformance.kit import SECRET_VARIABLE, Kit, expect_outcome, need_duty, run_in_time
from dragoman.conformance.streams import Stream, texts
from dragoman.protocol.limits import MAX_EVENT_BYTES
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb

_SECRET = "k7Qz-9fRw2-conformance-Xy31"  # noqa: S105 - no secret
_PATIENCE_S = 6.0
_TRACE = re.compile(r"(?<!\w)(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-([0-9a-f]{2})(?!\w)")
"""A ``traceparent``: https://www.w3.org/TR/trace-context/#traceparent-header. The groups: trace ID, flags."""


@check("output.long-line")
async def long_line(kit: Kit) -> None:
    """Print one line of 200 KB."""
    stream = await kit.run(kit.request("line=200000", "say=afterwards"))
    expect(stream.text.count("x") >= 200_000, f"{stream.text.count('x')} of 200,000 bytes of a line arrived")
    expect("afterwards" in stream.text, "what follows a long line is missing")


@check("output.huge-line")
async def huge_line(kit: Kit) -> None:
    """Print one line of 2 MB."""
    stream = await kit.run(kit.request("line=2000000", "say=after the huge line"))
    expect("after the huge line" in stream.text, "what follows a line of 2 MB is missing")
    sizes = [message.ByteSize() for message in stream.messages]
    expect(max(sizes) <= MAX_EVENT_BYTES, f"a line of 2 MB makes an event of {max(sizes)} bytes")


@check("output.cut-utf8")
async def cut_utf8(kit: Kit) -> None:
    """Print half a character."""
    stream = await kit.run(kit.request("raw=61e2820a", "say=afterwards"))
    expect("afterwards" in stream.text, "what follows an invalid character is missing")
    expect("a\ufffd" in stream.text, "bytes that are not UTF-8 are not replaced by U+FFFD")


@check("output.unicode")
async def unicode(kit: Kit) -> None:
    """Print characters beyond ASCII, and the separator U+2028."""
    stream = await kit.run(kit.request("say=grüße 🎈 \u2028 zurück"))
    expect("grüße 🎈 \u2028 zurück" in stream.text, f"the text arrived as {stream.text[:100]!r}")


@check("output.stderr")
async def stderr(kit: Kit) -> None:
    """Print on standard error."""
    stream = await kit.run(kit.request("err=a word on stderr", "say=hello"))
    expect("a word on stderr" in stream.text, "a line on standard error is in no event")


@check("output.background-child")
async def background_child(kit: Kit) -> None:
    """Leave a child that holds standard output, and end."""
    request = kit.request("say=hello", "child")
    await run_in_time(kit, request, _PATIENCE_S, "a child that holds standard output keeps the run alive")


@check("output.slow-reader")
async def slow_reader(kit: Kit) -> None:
    """Stop reading for as long as another reader needs for a run of 2 MB."""
    request = kit.request("flood=5000", "say=the end")
    slow = kit.execute(request)
    await slow.read()
    fast = await kit.attach(request.run_id, hold=True).rest()
    expect("the end" in fast.text, "the other reader did not get the end")
    await slow.rest()
    expect("the end" in slow.text, "the slow reader did not get the end")


@check("prompt.large")
async def large_prompt(kit: Kit) -> None:
    """Send a prompt of 1 MB."""
    request = kit.request("prompt", model="MOCK_TEXT", prompt="p" * 1_000_000)
    data = request.prompt.encode()
    stream = await kit.run(request)
    if kit.setup.agent == "model":  # a real agent may put words of its own around it
        arrived = any(request.prompt in text for text in kit.setup.model_requests())
        expect(arrived, f"the prompt is in no request of the agent to its model: {stream.result.failure.message}")
        return
    due = f"bytes={len(data)} sha256={hashlib.sha256(data).hexdigest()}"
    expect(due in stream.text, f"the agent got {stream.text[:100]!r}, not {due!r}")


@check("environment.passed")
async def passed(kit: Kit) -> None:
    """Send a variable."""
    request = kit.request("env=CONFORMANCE_WORD")
    request.env["CONFORMANCE_WORD"] = "passed"
    stream = await kit.run(request)
    expect("passed" in stream.text, "a variable of env does not reach the agent")


@check("environment.run-id")
async def run_id(kit: Kit) -> None:
    """Read PREFIX_RUN_ID."""
    request = kit.request("env=CONFORMANCE_RUN_ID")
    request.brand.env_prefix = "CONFORMANCE"
    request.brand.name = "Conformance"
    stream = await kit.run(request)
    expect(request.run_id in stream.text, "CONFORMANCE_RUN_ID does not reach the agent")


@check("environment.trace")
async def trace(kit: Kit) -> None:
    """Call with a trace, and read TRACEPARENT."""
    trace_id = secrets.token_hex(16)
    found = _TRACE.search(await _output_with(kit, f"00-{trace_id}-{secrets.token_hex(8)}-01"))
    if found is None:
        raise Violation("no TRACEPARENT of the W3C's form reaches the agent")
    expect(found[1] == trace_id, f"the agent's trace is {found[1]}, not the caller's {trace_id}")
    expect(found[2] == "01", f"the flags of the agent's trace are {found[2]}, not the caller's 01")


@check("environment.no-trace")
async def no_trace(kit: Kit) -> None:
    """Call without a trace, and with what is none: the agent gets nothing, or a trace that begins with its run."""
    trace_id, span_id = secrets.token_hex(16), secrets.token_hex(8)
    malformed = (f"00-{trace_id}-{span_id}", f"00-{trace_id}-{'0' * 16}-01", f"ff-{trace_id}-{span_id}-01")
    known = {trace_id}
    for sent in ("", *malformed):
        output = await _output_with(kit, sent)
        expect(not sent or sent not in output, f"the agent gets a traceparent that is none: {sent}")
        if found := _TRACE.search(output):
            expect(found[1] not in known, f"without a trace, the agent gets that of another call: {found[0]}")
            known.add(found[1])


async def _output_with(kit: Kit, traceparent: str) -> str:
    """Return what an agent says that reads its TRACEPARENT, in a call with this ``traceparent``."""
    stream = await kit.execute(kit.request("say=trace:", "env=TRACEPARENT", "say=."), trace=traceparent).rest()
    why = f"with traceparent {traceparent!r} the run fails: {stream.result.failure.message}"
    expect_outcome(stream.result, pb.OUTCOME_SUCCEEDED, why)
    return stream.text


@check("secrets.echo")
async def echo(kit: Kit) -> None:
    """Have the agent say a secret of env."""
    await _no_secret(kit, "env")


@check("secrets.split")
async def split(kit: Kit) -> None:
    """Have the agent say a secret in two writes."""
    await _no_secret(kit, "split")


async def _no_secret(kit: Kit, step: str) -> None:
    need_duty(kit, api.DUTY_REDACTION)
    model = f"MOCK_SECRET_TEXT secret={_SECRET}" if step == "env" else ""
    request = kit.request("say=before", f"{step}={SECRET_VARIABLE}", "say=after", model=model)
    request.env[SECRET_VARIABLE] = _SECRET
    stream = await kit.run(request)
    due = "remember it" if kit.setup.agent == "model" else "after"
    expect(due in stream.text, "what follows a secret is missing")
    _expect_none_leaks(stream, "a secret of env")


def _expect_none_leaks(stream: Stream, what: str) -> None:
    expect(_SECRET not in stream.text, f"{what} is in the stream in clear")
    events = [event for event in stream.events if not event.HasField("started")]  # for which secrets.started is
    leaks = {str(event.WhichOneof("body")) for event in events if any(_SECRET in text for text in texts(event))}
    expect(not leaks, f"{what} is in clear in {', '.join(sorted(leaks))}")


@check("secrets.started")
async def in_started(kit: Kit) -> None:
    """Look for a secret in `started`."""
    request = kit.request("say=hello", model="MOCK_TEXT")
    request.env[SECRET_VARIABLE] = _SECRET
    if kit.has(pb.FEATURE_AUTH_TOKEN):
        request.auth_token = _SECRET
    stream = await kit.run(request)
    data = b"".join(event.SerializeToString() for event in stream.of("started"))
    expect(_SECRET.encode() not in data, "started contains a secret")


@check("secrets.auth-token")
async def auth_token(kit: Kit) -> None:
    """Send a token for the caller's API."""
    need_duty(kit, api.DUTY_REDACTION)
    request = kit.request("env=DRAGOMAN_API_KEY", "say=after")
    request.auth_token = _SECRET
    stream = await kit.run(request)
    _expect_none_leaks(stream, "the token")
    expect("redacted" in stream.text, "the token does not reach the agent")
