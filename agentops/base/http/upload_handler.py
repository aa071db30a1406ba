"""Django upload handler that stores files in temporary files without a name."""

from __future__ import annotations

from tempfile import SpooledTemporaryFile
from typing import IO, Any

from django.core.files.uploadedfile import UploadedFile
from django.core.files.uploadhandler import FileUploadHandler

#: Maximum bytes of a file that stays in memory.
MEMORY_BYTES = 64 * 1024


class NamelessFileHandler(FileUploadHandler):
    """Write a file to disk without a name, so that it disappears with the process, even if that is killed."""

    #: The file that is being received.
    _content: IO[bytes] | None = None

    def new_file(self, *args: Any, **kwargs: Any) -> None:
        super().new_file(*args, **kwargs)
        self.upload_interrupted()
        self._content = SpooledTemporaryFile(max_size=MEMORY_BYTES)  # noqa: SIM115 - closed below

    def receive_data_chunk(self, raw_data: bytes, start: int) -> None:
        assert self._content is not None
        self._content.write(raw_data)

    def file_complete(self, file_size: int) -> UploadedFile[bytes]:
        content, self._content = self._content, None  # Django closes it with the request
        assert content is not None
        content.seek(0)
        return UploadedFile(content, self.file_name, self.content_type, file_size, self.charset)

    def upload_interrupted(self) -> None:
        if self._content is not None:
            self._content.close()

    def __del__(self) -> None:
        # Django does not report a form that ends within a file.
        self.upload_interrupted()
