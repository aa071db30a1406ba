"""Static files with a hash of their content in the URL, so that browsers cache a file until its content changes.

The hash is in the query (`/static/css/tokens.css?v=1a2b3c4d`), so files are served from their source directories, and
need not be collected or renamed. Browsers cache files without a hash, such as images of a style sheet, only briefly.
"""

from __future__ import annotations

from hashlib import blake2b
from pathlib import Path
from typing import Any

from django.conf import settings
from django.contrib.staticfiles import finders
from django.contrib.staticfiles.storage import StaticFilesStorage
from django.http import HttpRequest, HttpResponse
from whitenoise.middleware import WhiteNoiseMiddleware

IMMUTABLE = f"public, max-age={365 * 24 * 3600}, immutable"


def content_hash(content: bytes) -> str:
    """Return eight hexadecimal digits."""
    return blake2b(content, digest_size=4).hexdigest()


class HashedAddresses(StaticFilesStorage):
    """The storage of `{% static %}`: it hashes each file once per process, or with DEBUG each time."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._urls: dict[str, str] = {}

    def url(self, name: str | None) -> str:
        key = name or ""
        url = self._urls.get(key)
        if url is None or settings.DEBUG:
            url = self._urls[key] = self._hashed_url(key)
        return url

    def _hashed_url(self, name: str) -> str:
        """Return the URL with the hash, or without one if no file has this name."""
        url = super().url(name)
        path = finders.find(name)
        if not isinstance(path, str) or not Path(path).is_file():
            return url
        return f"{url}?v={content_hash(Path(path).read_bytes())}"


class StaticFiles(WhiteNoiseMiddleware):  # type: ignore[misc]
    """WhiteNoise with responses that contain the whole file, and with cache headers for URLs with a hash.

    WhiteNoise's own responses contain open files. Under ASGI, Django warns about them and reads them completely anyway.
    """

    def immutable_file_test(self, path: str, url: str) -> bool:
        """Return False: file names contain no hash, so WhiteNoise need not search for one."""
        return False

    @staticmethod
    def serve(static_file: Any, request: HttpRequest) -> HttpResponse:
        """Return the content of a file. Browsers may cache it for a year if the URL has the hash of the content."""
        query = request.META.get("QUERY_STRING", "")
        # With a hash, conditions such as If-Modified-Since and Range are ignored: WhiteNoise would treat two versions
        # of the same date and size as equal.
        result = static_file.get_response(request.method, {} if query.startswith("v=") else request.META)
        content = b""
        if result.file is not None:
            with result.file as file:
                content = file.read()
        response = HttpResponse(content, status=int(result.status))
        del response.headers["Content-Type"]
        for name, value in result.headers:
            response.headers[name] = value
        if result.file is not None:
            # WhiteNoise has read the size at its start. A file that was replaced since may have another size.
            response.headers["Content-Length"] = str(len(content))
            # The hash of the sent bytes: under the URL of another version, this content must not be cached.
            if query == f"v={content_hash(content)}":
                response.headers["Cache-Control"] = IMMUTABLE
        return response
