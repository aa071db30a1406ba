"""Files that are generated while they are sent."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from django.http import StreamingHttpResponse


@dataclass(frozen=True)
class ExportFile:
    """A file: its name, its media type, and its text in portions of bounded size. The text can be read once."""

    name: str
    media_type: str
    portions: Iterator[str]


def download(file: ExportFile) -> StreamingHttpResponse:
    """Return the response that sends a file portion by portion.

    Each portion is generated on a thread that is shared with other requests: see agentops.base.http.lanes.
    """
    response = StreamingHttpResponse(file.portions, content_type=file.media_type)
    response.headers["Content-Disposition"] = f'attachment; filename="{file.name}"'
    return response
