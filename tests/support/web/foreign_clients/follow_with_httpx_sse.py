"""Follows a stream with httpx-sse, in several connections: python follow_with_httpx_sse.py URL COUNT.

The library does not reconnect. This program does, with the last ID, as the library's documentation shows. The
environment variable COOKIE is sent along. Prints each connection's IDs as JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys

import httpx
from httpx_sse import aconnect_sse


async def follow(client: httpx.AsyncClient, url: str) -> None:
    ids: list[object] = []
    last_id, retry_s = "", 3.0
    while True:
        headers = {"Cookie": os.environ["COOKIE"]} | ({"Last-Event-ID": last_id} if last_id else {})
        try:
            async with aconnect_sse(client, "GET", url, headers=headers) as source:
                source.response.raise_for_status()
                async for event in source.aiter_sse():
                    last_id = event.id
                    retry_s = retry_s if event.retry is None else event.retry / 1000
                    if event.event == "end":
                        print(json.dumps(ids), flush=True)
                        return
                    # Includes events without data, which should not arrive.
                    ids.append(int(event.id) if event.event == "message" and event.data else event.event)
        except httpx.TransportError:
            pass
        await asyncio.sleep(retry_s)


async def main(url: str, count: int) -> None:
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(timeout=httpx.Timeout(10, read=60), limits=limits) as client:
        await asyncio.gather(*(follow(client, url) for _ in range(count)))


asyncio.run(main(sys.argv[1], int(sys.argv[2])))
