"""Browsers cache static files until their content changes."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.http import HttpResponse
from django.templatetags.static import static
from django.test import Client, RequestFactory

from agentops.site.static_files import HashedAddresses, StaticFiles
from tests.support.machine import ROOT

FOREVER, BRIEFLY = "public, max-age=31536000, immutable", "max-age=60, public"
OLD, NEW = b"a { color: red }", b"a { color: tan }"
ADDRESS = re.compile(r'(?:href|src)="(/static/[^"#]+)')


def addresses(page: HttpResponse) -> list[str]:
    return ADDRESS.findall(page.content.decode())


@pytest.fixture
def sheet(tmp_path: Path, settings: Any) -> Path:
    """Replace all static files of the site with one file."""
    settings.STATICFILES_DIRS = [tmp_path]
    path = tmp_path / "a.css"
    path.write_bytes(OLD)
    return path


def replace(path: Path, content: bytes) -> None:
    """Write new content of the same size and with the same date."""
    before = path.stat()
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


class Process:
    """The parts of a web process that serve static files."""

    def __init__(self, path: Path) -> None:
        self.address = HashedAddresses().url
        self._file = StaticFiles(HttpResponse).get_static_file(str(path), f"/static/{path.name}")

    def get(self, address: str, **headers: str) -> HttpResponse:
        return StaticFiles.serve(self._file, RequestFactory().get(address, headers=headers))


@pytest.mark.parametrize("url", ["/", "/admin/", "/api/docs"])
def test_every_file_of_a_page_is_cached_under_its_versioned_url(url: str, db: None) -> None:
    boss = Client()
    boss.force_login(User.objects.create_superuser("boss"))
    urls = set(addresses(boss.get(url)))

    assert urls
    assert len({each.partition("?")[0] for each in urls}) == len(urls)
    for each in urls:
        answer = boss.get(each)
        assert (answer.status_code, answer["Cache-Control"]) == (200, FOREVER), each
        assert answer["Content-Security-Policy"]


def test_a_page_links_to_the_existing_files(db: None) -> None:
    """test_static_rules.py checks the list of files in the templates."""
    names = {url.partition("?")[0] for url in addresses(Client().get("/login"))}

    assert {f"/static/css/{path.name}" for path in (ROOT / "static/css").iterdir()} <= names
    assert {"/static/js/live.js", "/static/vendor/htmx-2.0.11.min.js", "/static/favicon.svg"} <= names


@pytest.mark.parametrize(
    "query", ["", "?", "?v=", "?v=00000000", "?w=1", "?{0}&", "?x&{0}", "?v=%00", "?v=" + "f" * 999]
)
def test_a_file_is_cached_briefly_under_any_other_url(query: str) -> None:
    path, _, version = static("css/timeline.css").partition("?")

    answer = Client().get(path + query.format(version))

    assert answer.content == (ROOT / "static/css/timeline.css").read_bytes()
    assert answer["Cache-Control"] == BRIEFLY


def test_new_content_has_a_new_url(sheet: Path) -> None:
    before = Process(sheet)
    old = before.address("a.css")
    replace(sheet, NEW)
    after = Process(sheet)
    new = after.address("a.css")

    assert re.fullmatch(r"/static/a\.css\?v=[0-9a-f]{8}", old)
    assert new.partition("?")[0] == "/static/a.css"
    assert new != old
    assert before.address("a.css") == old, "hashed once per process"
    assert after.get(new)["Cache-Control"] == FOREVER
    assert (after.get(old).content, after.get(old)["Cache-Control"]) == (NEW, BRIEFLY)


def test_a_process_without_a_restart_caches_new_content_briefly(sheet: Path) -> None:
    process = Process(sheet)
    old = process.address("a.css")
    replace(sheet, NEW)

    answer = process.get(process.address("a.css"))

    assert process.address("a.css") == old
    assert (answer.content, answer["Cache-Control"]) == (NEW, BRIEFLY)


def test_a_file_of_the_old_process_does_not_validate_as_unchanged(sheet: Path) -> None:
    """During a rolling restart a new page may get an old file with the date and size of the new one."""
    before = Process(sheet)
    kept = before.get("/static/a.css?v=00000000")
    replace(sheet, NEW)
    after = Process(sheet)
    new = after.address("a.css")

    answer = after.get(new, **{"If-None-Match": kept["ETag"], "If-Modified-Since": kept["Last-Modified"]})

    assert (answer.status_code, answer.content, answer["Cache-Control"]) == (200, NEW, FOREVER)


def test_a_range_request_gets_the_whole_file(sheet: Path) -> None:
    process = Process(sheet)

    answer = process.get(process.address("a.css"), Range="bytes=0-3")

    assert (answer.status_code, answer.content) == (200, OLD)


def test_a_changed_file_has_a_new_url_immediately_in_debug_mode(sheet: Path, settings: Any) -> None:
    settings.DEBUG = True
    process = Process(sheet)
    old = process.address("a.css")
    replace(sheet, NEW)

    assert process.address("a.css") != old
    assert process.get(process.address("a.css"))["Cache-Control"] == FOREVER


@pytest.mark.parametrize("name", ["missing.css", "directory", ""])
def test_a_missing_file_has_a_url_without_a_version(name: str, sheet: Path) -> None:
    (sheet.parent / "directory").mkdir()

    assert HashedAddresses().url(name) == f"/static/{name}"
