"""A form that ends within a file leaves no open file."""

from __future__ import annotations

import gc
import warnings
from contextlib import suppress

import pytest
from django.core.files.uploadhandler import FileUploadHandler
from django.http.multipartparser import MultiPartParserError
from django.test import RequestFactory

from agentops.base.http.request_bodies import MEMORY_BYTES, NamelessFileHandler

BEGIN = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n'


@pytest.mark.parametrize(
    "part", [b"\r\n" + b"x" * (MEMORY_BYTES + 1), b"Content-Transfer-Encoding: base64\r\n\r\n!!!\r\n"]
)
def test_form_that_ends_within_a_file_closes_it(part: bytes) -> None:
    request = RequestFactory().post("/", BEGIN + part, content_type="multipart/form-data; boundary=b")
    handlers: list[FileUploadHandler] = [NamelessFileHandler(request)]
    request.upload_handlers = handlers
    with warnings.catch_warnings():
        warnings.simplefilter("error", ResourceWarning)
        with suppress(MultiPartParserError):
            assert not request.FILES.get("another")
        request.close()
        del handlers, request
        gc.collect()
