"""The built-in tools. They only read, and only files and hosts that the agent's settings allow."""

from __future__ import annotations

import codecs
import os
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Annotated, Any

from django.conf import settings as django_settings
from pydantic import Field

from agentops.base.http.address_policy import KIB, HttpPolicy, UrlNotAllowed
from agentops.base.http.guarded_client import HttpAnswer, HttpFailed, HttpRequest, send
from runs.tools.base import Effect, ToolContext, ToolDenied, ToolFailed, ToolResult
from runs.tools.functions import tool
from runs.tools.output import as_output, is_text
from runs.tools.rooted_files import PathNotFound, open_below_root

#: Bytes before and after a slice that are also searched for secrets: four times the size of a private key, the longest
#: kind of secret.
CONTEXT = 64 * 1024


@dataclass(frozen=True)
class Slice:
    """A slice of bytes, decoded as UTF-8 together with the bytes around it."""

    before: str
    text: str
    after: str
    raw: bytes
    #: The end of the slice as an offset in bytes, before a character that the limit would cut.
    end: int

    @classmethod
    def of(cls, data: bytes, begin: int, limit: int) -> Slice:
        """Return the slice of `data` from offset `begin`, of at most `limit` bytes."""
        stop = max(begin, min(begin + limit, len(data)))
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        before = decoder.decode(data[:begin])
        text = decoder.decode(data[begin:stop], final=stop >= len(data))
        stop -= len(decoder.getstate()[0])
        return cls(before, text, decoder.decode(data[stop:], final=True), data[begin:stop], stop)

    def masked_text(self, mask: Callable[[str, str, str], str]) -> str:
        """Return the slice with its secrets masked. For binary data, return a note with the size.

        The note contains a hash only if the slice is all there is: the hash of a few bytes would reveal them.
        """
        if is_text(self.text):
            # In the surroundings, a NUL must end a secret like a newline does. The slice itself contains no NUL.
            return mask(self.text, self.before.replace("\0", "\n"), self.after.replace("\0", "\n"))
        if self.before or self.after:
            return f"[{len(self.raw)} bytes that are not text]"
        return as_output(self.raw)[0]


MAX_FETCH = 1024 * KIB
MAX_READ = 1024 * KIB
MAX_ENTRIES = 1_000
#: The largest integer that every JSON parser reads exactly.
MAX_OFFSET = 2**53 - 1


@tool(effect=Effect.READ, timeout_s=20)
def http_fetch(
    ctx: ToolContext, url: str, max_bytes: Annotated[int, Field(ge=1, le=MAX_FETCH)] = 64 * KIB
) -> ToolResult:
    """Fetch a web page or file with GET, from the hosts this agent may visit. Redirects are not followed.

    Args:
        url: The full https address.
        max_bytes: Maximum number of bytes of the body to read.
    """
    try:
        # Read beyond the limit, to recognise a secret that the limit cuts.
        answer = send(HttpRequest("GET", url), http_policy(ctx, max_bytes + CONTEXT))
    except UrlNotAllowed as error:
        raise ToolDenied(error.code, f"The URL was refused: {error.reason}.") from error
    except HttpFailed as error:
        raise ToolFailed("network_error", str(error), retryable=True) from error
    return ToolResult(_answer_text(ctx, answer, max_bytes), is_error=answer.status >= 300)


@tool(effect=Effect.READ, timeout_s=10)
def read_file(
    ctx: ToolContext,
    path: str,
    offset: Annotated[int, Field(ge=0, le=MAX_OFFSET)] = 0,
    limit: Annotated[int, Field(ge=16, le=MAX_READ)] = 64 * KIB,
) -> ToolResult:
    """Read a text file below the agent's root.

    Args:
        path: Relative to the root, with forward slashes.
        offset: The byte to start at. The last line of a partial answer names the byte to continue at.
        limit: Maximum number of bytes to read.
    """
    first = max(offset - CONTEXT, 0)
    try:
        with open_below_root(ctx.settings.get("root"), path, directory=False) as descriptor:
            size = os.fstat(descriptor).st_size
            data = os.pread(descriptor, offset - first + limit + CONTEXT, first)
    except PathNotFound as error:
        return ToolResult(f"{error}.", is_error=True)
    part = Slice.of(data, offset - first, limit)
    text = part.masked_text(ctx.mask)
    end = first + part.end
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
        root = ctx.settings.get("root")
        with open_below_root(root, path, directory=True) as descriptor, os.scandir(descriptor) as scan:
            entries = [_described(each) for each in islice(scan, MAX_ENTRIES)]
            left_out = sum(1 for _ in scan)
    except PathNotFound as error:
        return ToolResult(f"{error}.", is_error=True)
    return {"entries": sorted(entries, key=lambda each: str(each["name"])), "left_out": left_out}


READ_FILE = replace(read_file, reads_files=True)
LIST_DIR = replace(list_dir, reads_files=True)
BUILTIN = (http_fetch, READ_FILE, LIST_DIR)


def http_policy(ctx: ToolContext, max_bytes: int) -> HttpPolicy:
    """Return the HTTP policy of an agent's settings.

    Without `http_fetch_allow` no host is allowed. Private addresses require AGENTOPS_ALLOW_PRIVATE_SINKS too, so that
    a definition alone cannot give an agent access to the internal network.
    """
    settings = ctx.settings
    private = settings.get("allow_private") is True and bool(django_settings.AGENTOPS_ALLOW_PRIVATE_SINKS)
    return HttpPolicy(
        allowed_hosts=_list_setting(settings, "http_fetch_allow", str),
        allow_http=settings.get("http_fetch_allow_http") is True,
        allow_private=private,
        extra_ports=_list_setting(settings, "http_fetch_ports", int),
        max_bytes=max_bytes,
    )


def _list_setting(settings: Mapping[str, Any], key: str, kind: type) -> Sequence[Any]:
    """Return a setting that is a list of `kind`; empty if it is missing. Raises `ToolDenied`."""
    value = settings.get(key, [])
    if not isinstance(value, list | tuple) or not all(type(each) is kind for each in value):
        raise ToolDenied("url_not_allowed", f"The setting {key!r} must be a list of {kind.__name__}.")
    return value


def _answer_text(ctx: ToolContext, answer: HttpAnswer, max_bytes: int) -> str:
    """Return the status of a response, and its body up to `max_bytes`, as text for the model."""
    head = f"HTTP {answer.status}, {answer.headers.get('content-type', 'no content type')}"
    if 300 <= answer.status < 400:
        head += f", redirects to {answer.headers.get('location', 'nowhere')!r} (not followed)"
    part = Slice.of(answer.body, 0, max_bytes)
    if answer.truncated or part.end < len(answer.body):
        head += f", only the first {part.end} bytes"
    return f"{head}\n\n{part.masked_text(ctx.mask)}"


def _described(entry: os.DirEntry[str]) -> dict[str, str | int | None]:
    name = os.fsencode(entry.name).decode(errors="replace")
    try:
        status = entry.stat(follow_symlinks=False)
    except OSError:
        return {"name": name, "type": "gone", "size": None}
    kinds = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "link"}
    kind = kinds.get(stat.S_IFMT(status.st_mode), "other")
    return {"name": name, "type": kind, "size": status.st_size if kind == "file" else None}
