"""The headings, anchors and links of Markdown pages, as GitHub and the site render them. Code is ignored."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

FENCE = re.compile(r"^ *(```|~~~).*?^ *\1 *$", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#{1,6} +(.+?) *$", re.MULTILINE)
CODE = re.compile(r"`([^`\n]*)`")
LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\[\]]*\])*\]\(<?([^)\s>]+)>?\)")
NOT_IN_ANCHOR = re.compile(r"[^\w\- ]")


@dataclass(frozen=True)
class Page:
    path: Path
    #: Without fenced blocks.
    text: str

    @classmethod
    def read(cls, path: Path) -> Page:
        return cls(path, FENCE.sub("", path.read_text(encoding="utf-8")))

    @property
    def anchors(self) -> set[str]:
        """The anchors as GitHub generates them: the second heading with the same words ends with -1."""
        seen: Counter[str] = Counter()
        found = set()
        for heading in HEADING.findall(self.text):
            slug = anchor_of(heading)
            found.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
            seen[slug] += 1
        return found

    @property
    def links(self) -> list[str]:
        """Return the targets of links and images, including links whose text is code."""
        return LINK.findall(CODE.sub("code", self.text))

    def faults(self) -> list[str]:
        """Return a fault for every broken link. URLs of other sites are not checked."""
        return [fault for link in self.links if (fault := self._fault(link))]

    def _fault(self, link: str) -> str | None:
        if link.startswith(("https://", "mailto:")):
            return None
        name, _, anchor = link.partition("#")
        target = (self.path.parent / name).resolve() if name else self.path
        if not target.exists():
            return f"{self.path}: {link}: no such file"
        if anchor and anchor not in Page.read(target).anchors:
            return f"{self.path}: {link}: no such heading"
        return None


def anchor_of(heading: str) -> str:
    words = CODE.sub(r"\1", LINK.sub("", heading)).strip().lower()
    return NOT_IN_ANCHOR.sub("", words).replace(" ", "-")
