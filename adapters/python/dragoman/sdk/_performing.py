"""What an attempt does for its agent, beside the agent's own process: begun, answered, and cancelled with it."""

import asyncio
from collections.abc import Callable, Mapping

import structlog
from dragoman.protocol.logs import failure_fields
from dragoman.sdk._job import Job
from dragoman.sdk._parser import Perform
from dragoman.sdk._workbench import Workbench

_MOST_AT_ONCE = 64
"""An agent that asks for more at once waits for the first to end."""

_log = structlog.get_logger("dragoman.sdk")


class Performing:
    """The operations of one attempt.

    Args:
        job: the attempt's.
        environment: the agent's variables; its commands get them too.
        write: writes to the agent's standard input.
    """

    def __init__(self, job: Job, environment: Mapping[str, str], write: Callable[[bytes], None]) -> None:
        self._job = job
        self._environment = environment
        self._write = write
        self._bench: Workbench | None = None
        """Made when first needed; few agents want one."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._places = asyncio.Semaphore(_MOST_AT_ONCE)

    def begin(self, perform: Perform) -> None:
        """Do something; what comes of it is written when it is there."""
        task = asyncio.create_task(self._do(perform))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _workbench(self) -> Workbench:
        if self._bench is None:
            settings = self._job.settings
            roots = (settings.cwd, *settings.additional_directories)
            self._bench = Workbench(tuple(root for root in roots if root), self._environment)
        return self._bench

    async def _do(self, perform: Perform) -> None:
        try:
            async with self._places:
                answer = perform.encode(await perform.operation(self._workbench()))
        except Exception as error:  # noqa: BLE001 - the agent waits for an answer, whatever went wrong
            _log.info("operation failed", run_id=self._job.run_id, **failure_fields(error))
            answer = perform.encode(error)
        self._write(answer)

    async def close(self) -> bool:
        """Cancel what goes on, and end what was started; tell whether every process of it is proven gone."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return self._bench is None or await self._bench.close()
