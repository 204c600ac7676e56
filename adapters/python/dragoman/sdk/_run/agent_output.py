"""An agent's output: bytes into lines, lines through the parser, and what of it is kept for the evidence."""

from collections.abc import Callable, Iterable

from dragoman.protocol.limits import MAX_LINE_BYTES
from dragoman.sdk._encoding.framing import Framing, Splitter, make_splitter
from dragoman.sdk._encoding.lines import HeadTail, Line, LineSplitter
from dragoman.sdk._output.joining import JOINED_FROM, join_logs, plain_log
from dragoman.sdk._output.parser import Output, Parser, Stream, log_event
from dragoman.sdk._run.run import Run
from dragoman.v1 import event_pb2 as pb

_HEAD_BYTES = _TAIL_BYTES = 16 * 1024
_STDERR_TAIL_BYTES = 8 * 1024


class AgentOutput:
    """The output of one attempt.

    Args:
        run: whose it is.
        parser: understands it.
        framing: how standard output is cut into lines.
        budget: bytes that are read; None for no limit.
        emit: takes what the parser made of a line; the line is None at the end.

        on_read: called for each line of standard output with whether the parser failed on it.

    Attributes:
        raw: what could not be parsed of standard output.
        stderr: the end of standard error.
        parser_fault: where the parser raised last; empty if it did not.
        unread_end: whether the parser failed on the last line, or at the end.
    """

    def __init__(
        self,
        run: Run,
        parser: Parser,
        framing: Framing,
        budget: int | None,
        emit: Callable[[list[Output], Line | None], None],
        on_read: Callable[[bool], None],
    ) -> None:
        self._run = run
        self._parser = parser
        self._limit = budget
        self._budget = None if budget is None else max(0, budget - run.turns.output_bytes)
        self._emit = emit
        self._on_read = on_read
        self._splitters: dict[str, Splitter] = {
            "stdout": make_splitter(framing, MAX_LINE_BYTES),
            "stderr": LineSplitter(MAX_LINE_BYTES),
        }
        # The limit is the run's: what its turns before have printed counts, and the notice was theirs.
        self._over_budget = self._budget == 0 and run.turns.output_bytes > 0
        self._logs: list[tuple[Stream, Line, pb.AgentEvent]] = []
        """The last lines of the present piece of output, as far as they are nothing but logs."""
        self.raw = HeadTail(_HEAD_BYTES, _TAIL_BYTES)
        self.stderr = HeadTail(0, _STDERR_TAIL_BYTES)
        self.parser_fault = ""
        self.unread_end = False

    def feed(self, stream: Stream, data: bytes) -> None:
        """Count bytes of output, and pass its lines to the parser."""
        counters = self._run.counters
        if stream == "stdout":
            counters.stdout_bytes += len(data)
        else:
            counters.stderr_bytes += len(data)
        for line in self._splitters[stream].feed(self._within_budget(data)):
            self.line(stream, line)
        if self._logs:
            self._write_logs()

    def end_stream(self, stream: Stream) -> None:
        """Read what was left without a newline."""
        for line in self._splitters[stream].finish():
            self.line(stream, self._decided(line) if self._over_budget else line)
        self._write_logs()

    def finish(self) -> None:
        """Publish what the parser emits at the end of all output."""
        self._emit(self.outputs_of(self._parser.finish, "parser.finish", is_end=True), None)

    def line(self, stream: Stream, line: Line) -> None:
        """Pass one line to the parser."""
        if line.cut_bytes:
            self._write_logs()
            self._run.counters.dropped_bytes += line.cut_bytes
            message = f"A line on {stream} was longer than {MAX_LINE_BYTES} bytes; {line.cut_bytes} bytes were cut."
            self._run.notice(pb.SEVERITY_WARNING, "line_too_long", message)
        is_unread = False
        try:
            outputs = list(self._parser.line(stream, line))
        except Exception as error:  # noqa: BLE001 - whatever an agent prints, its run continues
            self.note_failure(error, "parser.line", "the line is kept as a log")
            outputs, is_unread = [log_event(stream, line)], True
        if stream == "stdout":
            self.unread_end = is_unread
            self._on_read(is_unread)
        log = plain_log(outputs)
        if log is not None and self._parser.report.terminal is None:
            self._logs.append((stream, line, log))
            return
        if self._logs:
            self._write_logs()
        self._emit(outputs, line)
        self._keep(stream, outputs, line)

    def outputs_of(self, call: Callable[[], Iterable[Output]], hook: str, *, is_end: bool = False) -> list[Output]:
        """Return what a hook of the parser yields; nothing if it raises."""
        try:
            return list(call())
        except Exception as error:  # noqa: BLE001 - as above
            self.note_failure(error, hook, "what it would have said is missing")
            self.unread_end |= is_end
            return []

    def answer_failed(self, error: Exception) -> None:
        """Note that an answer could not be put into the agent's form: it waits for one."""
        self.note_failure(error, "encoding of an answer", "the agent got none")
        self._on_read(True)

    def note_failure(self, error: Exception, hook: str, consequence: str) -> None:
        """Report that the parser raised."""
        self.parser_fault = self._run.faults.report(error, self._parser, "parser_failed", hook, consequence)

    def _within_budget(self, data: bytes) -> bytes:
        if self._budget is None:
            return data
        kept = data[: self._budget]
        self._budget -= len(kept)
        dropped = len(data) - len(kept)
        if dropped and not self._over_budget:
            self._over_budget = True
            message = f"The agent's output exceeded limits.output_bytes ({self._limit} bytes)."
            hint = "What follows is thrown away and counted."
            self._run.notice(pb.SEVERITY_WARNING, "output_cut", message, hint)
        self._run.counters.dropped_bytes += dropped
        return kept

    def _decided(self, line: Line) -> Line:
        """Return the line that the budget has cut without what may be the first half of a secret."""
        text = line.data.decode("utf-8", "surrogateescape")
        kept = text[: self._run.redactor.undecided(text)].encode("utf-8", "surrogateescape")
        self._run.counters.dropped_bytes += len(line.data) - len(kept)
        return line._replace(data=kept)

    def _write_logs(self) -> None:
        """Write the logs that wait: each as an event of its own, or joined where the agent is ahead of us."""
        logs, self._logs = self._logs, []
        if len(logs) >= JOINED_FROM:
            stream, line, _ = logs[-1]
            logs = [(stream, line, event) for event in join_logs([event for _, _, event in logs])]
        for stream, line, event in logs:
            self._emit([event], line)
            self._keep(stream, [event], line)

    def _keep(self, stream: Stream, outputs: list[Output], line: Line) -> None:
        """Keep head and tail of the output that was not parsed. Redacted first: a cut may go through a secret."""
        logs = [output.log for output in outputs if isinstance(output, pb.AgentEvent) and output.HasField("log")]
        if stream == "stdout":
            for log in logs:
                self.raw.feed((log.raw or log.text.encode()) + b"\n")
        elif logs:  # they were redacted as they were written
            self.stderr.feed("\n".join(log.text for log in logs).encode() + b"\n")
        else:
            self.stderr.feed(self._run.redactor.text(line.data.decode("utf-8", "replace")).encode() + b"\n")
