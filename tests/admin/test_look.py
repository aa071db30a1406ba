"""The administration looks like the site: it has the site's colours, and all that it uses is there."""

from __future__ import annotations

import re
from pathlib import Path

STATIC = Path(__file__).resolve().parents[2] / "static"
TOKEN = re.compile(r"^  (--[\w-]+): (.+);$", re.MULTILINE)
#: A name that Django's style sheet has too, so that the administration has to set it again.
TWICE = {"--accent"}


def test_its_colours_are_the_sites() -> None:
    sheet = (STATIC / "admin.css").read_text()
    site, ours = dict(TOKEN.findall((STATIC / "css/tokens.css").read_text())), dict(TOKEN.findall(sheet))

    assert site.keys() & ours.keys() == TWICE
    assert {name: ours[name] for name in TWICE} == {name: site[name] for name in TWICE}
