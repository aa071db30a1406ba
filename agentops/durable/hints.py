"""Listens to the site's hints that a run of the project has changed. They only save waiting: polling finds all."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import aclosing

from agentops.client.connection import pause_s
from agentops.client.errors import AgentopsError
from agentops.client.event_stream import FrameParser
from agentops.durable.wire import WorkSite

log = logging.getLogger("agentops.durable")


async def follow_hints(site: WorkSite, on_hint: Callable[[str], None]) -> None:
    """Call `on_hint` with the ID of each run that has changed, and with "" when a connection opens. Does not end."""
    failures = 0
    while True:
        parser = FrameParser()
        try:
            async with aclosing(site.stream()) as chunks:
                async for chunk in chunks:
                    if not chunk:
                        failures = 0
                        on_hint("")
                    for frame in parser.feed(chunk):
                        if frame.name == "run":
                            on_hint(frame.data.strip())
            pause = parser.retry_s
        except AgentopsError as error:
            if not failures:
                log.info("agentops: no hints of new runs, which are found by polling: %s", error)
            pause = pause_s(failures)
            failures += 1
        await asyncio.sleep(pause)
