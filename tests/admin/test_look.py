"""The admin has the colours of the site, and all files that it uses exist."""

from __future__ import annotations

import re
from pathlib import Path

STATIC = Path(__file__).resolve().parents[2] / "static"
TOKEN = re.compile(r"^  (--[\w-]+): (.+);$", re.MULTILINE)
#: Also defined by Django's style sheet, so the admin has to set it again.
TWICE = {"--accent"}


def test_admin_uses_the_colours_of_the_site() -> None:
    sheet = (STATIC / "admin.css").read_text()
    site, ours = dict(TOKEN.findall((STATIC / "css/tokens.css").read_text())), dict(TOKEN.findall(sheet))

    assert site.keys() & ours.keys() == TWICE
    assert {name: ours[name] for name in TWICE} == {name: site[name] for name in TWICE}
