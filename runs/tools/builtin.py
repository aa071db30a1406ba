"""The tools that come with the system. All of them only read, and only where the agent's settings allow it.
May import libraries, the other modules of `runs.tools`, and one Django setting."""

from __future__ import annotations

import codecs
import os
import stat
from collections.abc import Sequence
from itertools import islice
from typing import Annotated, Any

from django.conf import settings as django_settings
from pydantic import Field

from runs.tools.base import Effect, ToolContext, ToolDenied, ToolFailed, ToolResult
from runs.tools.functions import tool
from runs.tools.guarded_http import HttpAnswer, HttpFailed, HttpRequest, send
from runs.tools.http_policy import KIB, HttpPolicy, UrlNotAllowed
from runs.tools.output import as_output
from runs.tools.rooted_files import NotThere, opened

MAX_FETCH = 1024 * KIB
MAX_READ = 1024 * KIB
MAX_ENTRIES = 1_000


@tool(effect=Effect.READ, timeout_s=20)
def http_fetch(
    ctx: ToolContext, url: str, max_bytes: Annotated[int, Field(ge=1, le=MAX_FETCH)] = 64 * KIB
) -> ToolResult:
    """Fetch a web page or file with GET, from the hosts this agent may visit. Redirects are not followed.

    Args:
        url: The full https address.
        max_bytes: How much of the body to read at most.
    """
    try:
        answer = send(HttpRequest("GET", url), http_policy(ctx, max_bytes))
    except UrlNotAllowed as error:
        raise ToolDenied(error.code, f"The URL was refused: {error.reason}.") from error
    except HttpFailed as error:
        raise ToolFailed("network_error", str(error), retryable=True) from error
    return ToolResult(_told(answer), is_error=answer.status >= 300)


@tool(effect=Effect.READ, timeout_s=10)
def read_file(
    ctx: ToolContext,
    path: str,
    offset: Annotated[int, Field(ge=0)] = 0,
    limit: Annotated[int, Field(ge=16, le=MAX_READ)] = 64 * KIB,
) -> ToolResult:
    """Read a text file below the agent's root.

    Args:
        path: Relative to the root, with forward slashes.
        offset: The byte to start at; the end of a partial answer names the next one.
        limit: How many bytes to read at most.
    """
    try:
        with opened(ctx.settings.get("root"), path, directory=False) as descriptor:
            size = os.fstat(descriptor).st_size
            data = os.pread(descriptor, limit, offset)
    except NotThere as error:
        return ToolResult(f"{error}.", is_error=True)
    end = offset + len(data)
    if end < size:
        # A character cut in two is left for the next call.
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        decoder.decode(data)
        end -= len(decoder.getstate()[0])
    text, _ = as_output(data[: end - offset])
    if offset == 0 and end >= size:
        return ToolResult(text)
    return ToolResult(f"{text}\n[bytes {offset} to {end} of {size}]")


@tool(effect=Effect.READ, timeout_s=10)
def list_dir(ctx: ToolContext, path: str = ".") -> ToolResult | dict[str, Any]:
    """List a directory below the agent's root: the name, type and size of each entry.

    Args:
        path: Relative to the root, with forward slashes.
    """
    try:
        with opened(ctx.settings.get("root"), path, directory=True) as descriptor:
            found = os.scandir(descriptor)
            with found:
                entries = [_entry(each) for each in islice(found, MAX_ENTRIES)]
                left_out = sum(1 for _ in found)
    except NotThere as error:
        return ToolResult(f"{error}.", is_error=True)
    return {"entries": sorted(entries, key=lambda each: str(each["name"])), "left_out": left_out}


BUILTIN = (http_fetch, read_file, list_dir)


def http_policy(ctx: ToolContext, max_bytes: int) -> HttpPolicy:
    """What the agent's settings allow. No allow list allows nothing; private addresses need the
    installation's consent too, so that an agent's definition alone cannot reach into the network it runs in."""
    settings = ctx.settings
    private = settings.get("allow_private") is True and bool(django_settings.AGENTOPS_ALLOW_PRIVATE_SINKS)
    return HttpPolicy(
        allowed_hosts=_listed(settings, "http_fetch_allow", str),
        allow_http=settings.get("http_fetch_allow_http") is True,
        allow_private=private,
        extra_ports=_listed(settings, "http_fetch_ports", int),
        max_bytes=max_bytes,
    )


def _listed(settings: Any, key: str, kind: type) -> Sequence[Any]:
    value = settings.get(key, [])
    if not isinstance(value, list | tuple) or not all(type(each) is kind for each in value):
        raise ToolDenied("url_not_allowed", f"The setting {key!r} must be a list of {kind.__name__}.")
    return value


def _told(answer: HttpAnswer) -> str:
    head = f"HTTP {answer.status}, {answer.headers.get('content-type', 'no content type')}"
    if 300 <= answer.status < 400:
        head += f", redirects to {answer.headers.get('location', 'nowhere')!r} (not followed)"
    if answer.truncated:
        head += f", only the first {len(answer.body)} bytes"
    text, _ = as_output(answer.body)
    return f"{head}\n\n{text}"


def _entry(found: os.DirEntry[str]) -> dict[str, str | int | None]:
    name = os.fsencode(found.name).decode(errors="replace")
    try:
        status = found.stat(follow_symlinks=False)
    except OSError:
        return {"name": name, "type": "gone", "size": None}
    kinds = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "link"}
    kind = kinds.get(stat.S_IFMT(status.st_mode), "other")
    return {"name": name, "type": kind, "size": status.st_size if kind == "file" else None}
