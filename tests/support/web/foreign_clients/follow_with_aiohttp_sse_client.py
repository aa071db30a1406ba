"""Follows a stream with aiohttp-sse-client, in several connections: python follow_with_aiohttp_sse_client.py URL COUNT.

The library reconnects after a complete response, but not after a cut one. Then this program reconnects with the last
ID. The environment variable COOKIE is sent along. Prints each connection's IDs as JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys

import aiohttp
from aiohttp_sse_client.client import EventSource


async def follow(session: aiohttp.ClientSession, url: str) -> None:
    ids: list[object] = []
    last_id = ""
    while True:
        headers = {"Cookie": os.environ["COOKIE"]} | ({"Last-Event-ID": last_id} if last_id else {})
        try:
            async with EventSource(url, session=session, headers=headers) as source:
                async for event in source:
                    if event.type == "end":
                        print(json.dumps(ids), flush=True)
                        return
                    last_id = event.last_event_id
                    ids.append(int(last_id) if event.type in (None, "message") else event.type)
        except aiohttp.ClientError:
            pass
        await asyncio.sleep(1)


async def main(url: str, count: int) -> None:
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=60)
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as session:
        await asyncio.gather(*(follow(session, url) for _ in range(count)))


asyncio.run(main(sys.argv[1], int(sys.argv[2])))
