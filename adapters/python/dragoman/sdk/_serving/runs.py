"""The runs that an adapter's server knows: live ones, and finished ones for a while."""

import asyncio
import math
import os.path
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from dragoman.protocol.errors import DragomanError, Reason
from dragoman.protocol.identity import RequestDigests
from dragoman.protocol.limits import MAX_RETAINED_RUNS, RETAIN_FINISHED_S
from dragoman.protocol.observer import Level
from dragoman.sdk._run.run import Run
from dragoman.v1 import adapter_pb2 as pb
from msgspec import Struct

_RETAINED_BYTES = 256 * 1024 * 1024
"""What the events of finished runs may take of the memory, all together."""
_RETAINED_ARTIFACT_BYTES = 1024 * 1024 * 1024
"""What the artifacts of runs may take of the disk, all together."""


class _Entry(Struct):
    run: Run
    digest: bytes
    forget: asyncio.TimerHandle | None = None
    """Set when the run has ended."""


class RunTable:
    """Runs by their ids."""

    def __init__(self) -> None:
        self._digests = RequestDigests()
        self._runs: dict[str, _Entry] = {}
        self._ended_events = 0

    def __iter__(self) -> Iterator[Run]:
        return (entry.run for entry in self._runs.values())

    def find(self, run_id: str) -> Run:
        """Return a run.

        Raises:
            DragomanError: RUN_NOT_FOUND.
        """
        entry = self._runs.get(run_id)
        if entry is None:
            raise DragomanError(
                Reason.RUN_NOT_FOUND, f"run {run_id!r} not found; it may have expired, or another adapter has it"
            )
        return entry.run

    def known(self, request: pb.ExecuteRequest) -> Run | None:
        """Return the run that a request would start again; None if there is none.

        Raises:
            DragomanError: RUN_ID_REUSED, if it had another request.
        """
        entry = self._runs.get(request.run_id) if request.run_id else None
        if entry is None:
            return None
        if entry.forget is not None and request.relay.first_sequence > entry.run.result_sequence:
            # It is over, and a router begins the next attempt; it holds what came before.
            self._forget(request.run_id)
            return None
        if entry.digest != self._digests.digest(request):
            raise DragomanError(
                Reason.RUN_ID_REUSED,
                f"run {request.run_id!r} exists with another request; choose another id",
                {"run_id": request.run_id},
            )
        return entry.run

    def add(self, run: Run) -> None:
        """Know a run from now on."""
        self._runs[run.run_id] = _Entry(run, self._digests.digest(run.request))

    def retire(self, run: Run) -> None:
        """Keep a finished run for its time, and no more of them than there is room for."""
        self._ended_events += _events(run)
        run.request.ClearField("attachments")  # they were laid out, and no attempt follows
        loop = asyncio.get_running_loop()
        self._runs[run.run_id].forget = loop.call_later(RETAIN_FINISHED_S, self._forget, run.run_id)
        self._forget_oldest()

    def levels(self, adapter: str) -> list[Level]:
        """Return what is to be measured of the runs now."""
        live = [entry.run for entry in self._runs.values() if entry.forget is None]
        events = self._ended_events + sum(map(_events, live))
        return [
            Level("live_runs", "Runs that have not ended.", {adapter: len(live)}),
            Level("events", "Events of runs, without those that are not kept.", {adapter: events}, is_total=True),
        ]

    def _forget(self, run_id: str) -> None:
        entry = self._runs.pop(run_id)
        if entry.run.files is not None:
            entry.run.files.drop()
        if entry.forget is not None:
            entry.forget.cancel()  # it would keep the run's events alive

    def _forget_oldest(self) -> None:
        """Forget the runs that were accepted first among those that have ended, while there are too many."""
        finished = [entry.run for entry in self._runs.values() if entry.forget is not None]
        kept_bytes = sum(_kept_bytes(run) for run in finished)
        for number, run in enumerate(finished[:-1]):
            if len(finished) - number <= MAX_RETAINED_RUNS and kept_bytes <= _RETAINED_BYTES:
                break
            kept_bytes -= _kept_bytes(run)
            self._forget(run.run_id)
        self._drop_oldest_artifacts()

    def _drop_oldest_artifacts(self) -> None:
        kept = [run.files for run in self if run.files is not None and run.files.kept_bytes]
        total = sum(files.kept_bytes for files in kept)
        for files in kept[:-1]:
            if total <= _RETAINED_ARTIFACT_BYTES:
                break
            total -= files.kept_bytes
            files.drop()


def _kept_bytes(run: Run) -> int:
    return run.event_buffer.kept_bytes + (run.changes.kept_bytes if run.changes else 0)


def overlapping(run: Run, root: str, runs: Iterable[Run], directory_of: Callable[[Any], str]) -> Iterator[str]:
    """Yield the ids of other runs that worked below a directory while this one did."""
    began, ended = run.accepted_at, _ended_at(run)
    for other in runs:
        directory = directory_of(other.accepted)
        if other is run or not directory or not Path(os.path.realpath(directory)).is_relative_to(root):
            continue
        if other.accepted_at < ended and began < _ended_at(other):
            yield other.run_id


def _ended_at(run: Run) -> float:
    return run.accepted_at + run.result.duration.ToNanoseconds() / 1e9 if run.result is not None else math.inf


def _events(run: Run) -> int:
    return run.event_buffer.last_sequence - run.first_sequence + 1
