"""The administration looks like the site: the same colours, said twice because two style sheets cannot share them."""

from __future__ import annotations

import re
from pathlib import Path

STATIC = Path(__file__).resolve().parents[2] / "static"
TOKEN = re.compile(r"^  (--[\w-]+): (.+);$", re.MULTILINE)


def test_its_colours_are_the_sites() -> None:
    site = dict(TOKEN.findall((STATIC / "css/tokens.css").read_text()))
    ours = dict(TOKEN.findall((STATIC / "admin.css").read_text()))
    shared = site.keys() & ours.keys()

    assert len(shared) > 25
    assert {name: ours[name] for name in shared} == {name: site[name] for name in shared}
