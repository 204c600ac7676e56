"""Waiting for the first of several things."""

import asyncio
from typing import Any


async def wait_first(task: "asyncio.Future[Any]", *events: asyncio.Event, timeout_s: float | None = None) -> None:
    """Wait until a task is done, an event is set, or the time is over; then clear the events."""
    waits = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait({task, *waits}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
    for event in events:
        event.clear()
