"""The host calls of one attempt: started on the agent's request, answered, and cancelled with the attempt."""

import asyncio
from collections.abc import Callable, Mapping

from dragoman.protocol.logs import Logger, failure_fields
from dragoman.sdk._output.parser import HostCall
from dragoman.sdk._process.host_services import HostServices
from dragoman.sdk._request.job import Job

_MOST_AT_ONCE = 64
"""An agent that asks for more at once waits for the first to end."""

_log = Logger("dragoman.sdk")


class ClientRequests:
    """The host calls of one attempt.

    Args:
        job: the attempt's.
        environment: the agent's variables; its commands get them too.
        write: writes to the agent's standard input.
    """

    def __init__(self, job: Job, environment: Mapping[str, str], write: Callable[[bytes], None]) -> None:
        self._job = job
        self._environment = environment
        self._write = write
        self._services: HostServices | None = None
        """Made when first needed; few agents want one."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._slots = asyncio.Semaphore(_MOST_AT_ONCE)

    def begin(self, perform: HostCall) -> None:
        """Start a host call; its result is written when it is available."""
        task = asyncio.create_task(self._do(perform))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _host_services(self) -> HostServices:
        if self._services is None:
            settings = self._job.settings
            roots = (settings.cwd, *settings.additional_directories)
            self._services = HostServices(tuple(root for root in roots if root), self._environment)
        return self._services

    async def _do(self, perform: HostCall) -> None:
        try:
            async with self._slots:
                answer = perform.encode(await perform.operation(self._host_services()))
        except Exception as error:  # noqa: BLE001 - the agent waits for an answer, whatever went wrong
            _log.info("operation failed", run_id=self._job.run_id, **failure_fields(error))
            answer = perform.encode(error)
        self._write(answer)

    async def close(self) -> bool:
        """Cancel open calls, and end their processes; return whether all of these are confirmed dead."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return self._services is None or await self._services.close()
