"""Static files under addresses with a hash of their content, so browsers keep each until its content changes.

The hash is in the query (`/static/css/tokens.css?v=1a2b3c4d`): the files are served from their source directories, and
nothing is collected or renamed. Browsers cache files loaded without a hash, such as images of a style sheet, only
briefly.
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
        """Return the plain URL for a name that is not a file, or that another server serves."""
        url = super().url(name)
        path = finders.find(name)
        if not isinstance(path, str) or not Path(path).is_file():
            return url
        return f"{url}?v={content_hash(Path(path).read_bytes())}"


class StaticFiles(WhiteNoiseMiddleware):  # type: ignore[misc]
    """WhiteNoise, which responds with the content of small files, and says how long browsers cache it.

    Under ASGI Django would warn about its open files, and read them completely anyway.
    """

    def immutable_file_test(self, path: str, url: str) -> bool:
        """Return False: no name contains a hash. WhiteNoise would look for one in each, with the storage."""
        return False

    @staticmethod
    def serve(static_file: Any, request: HttpRequest) -> HttpResponse:
        query = request.META.get("QUERY_STRING", "")
        # Completely and without conditions: WhiteNoise treats files of the same date and size as equal.
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
            # WhiteNoise read the size at the start; a replaced file has a different one.
            response.headers["Content-Length"] = str(len(content))
            # The URL of another version must not cache this content, so the hash is computed from the sent bytes.
            if query == f"v={content_hash(content)}":
                response.headers["Cache-Control"] = IMMUTABLE
        return response
