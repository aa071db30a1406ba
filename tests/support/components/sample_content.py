"""The content of the components. The ordinary texts come from the demo's recordings.

Contains only the texts that the components show.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Any

from runs.fixtures.format import Fixture, RecordedResult
from runs.fixtures.library import load

#: The recordings with the ordinary texts: a short one, and one with a plan and a Go program.
UPDATE, PLAN = "claude-code-5c", "claude-code-7e"


class ContentKind(StrEnum):
    """The kinds of content. A page shows components with one kind at a time, because some of their IDs are fixed."""

    ORDINARY = "ordinary"
    LONG = "long"
    EMPTY = "empty"
    HOSTILE = "hostile"


@dataclass(frozen=True)
class SampleContent:
    """Content of one kind."""

    kind: ContentKind
    #: A name of an agent, a tool or a person.
    name: str
    #: A title of a run.
    title: str
    #: A text written by a person.
    text: str
    #: A text written by a model.
    markdown: str
    thinking: str
    #: The arguments of a tool call that edits a file.
    arguments: dict[str, Any]
    #: Output of a program, with terminal colours.
    output: str
    #: The content of a file in Go.
    code: str
    patch: str
    payload: Any
    error: str
    #: A count of tokens, seconds and the like.
    number: int
    #: Number of list entries.
    rows: int

    @property
    def entries(self) -> range:
        """Return a number for each entry of a list, from 1."""
        return range(1, self.rows + 1)


@cache
def content_of(kind: ContentKind) -> SampleContent:
    """Return the content of this kind."""
    return {
        ContentKind.ORDINARY: _ordinary,
        ContentKind.LONG: _long,
        ContentKind.EMPTY: _empty,
        ContentKind.HOSTILE: _hostile,
    }[kind]()


def _ordinary() -> SampleContent:
    update, plan = load(UPDATE), load(PLAN)
    first, edit = update.answers[0], update.answers[1]
    prompt = str(first.input.prompt)
    old, new = edit.tool_calls[0].args_as_dict()["old_string"], edit.tool_calls[0].args_as_dict()["new_string"]
    return SampleContent(
        kind=ContentKind.ORDINARY,
        name="compiler-updates",
        title=prompt,
        text=prompt,
        markdown=update.answers[-1].output.text,
        thinking=_thinking(update),
        arguments=edit.tool_calls[0].args_as_dict(),
        output=f"\x1b[32mok\x1b[0m  \x1b[1mentire.io/cli/cmd/entire\x1b[0m\n\x1b[31m{_output(update, 1)}\x1b[0m",
        code=str(plan.answers[0].input.prompt).partition("```go\n")[2].partition("```")[0],
        patch=f"diff --git a/go.mod b/go.mod\n--- a/go.mod\n+++ b/go.mod\n@@ -1 +1 @@\n-{old}\n+{new}\n",
        payload={"files": ["mise.toml", "go.mod"], "changed": 2, "dry_run": False, "ticket": None},
        error=_output(update, 1),
        number=41_958,
        rows=3,
    )


def _long() -> SampleContent:
    """Return the ordinary texts repeated many times, and words without a place to break."""
    plain, prompt = content_of(ContentKind.ORDINARY), str(load(PLAN).answers[0].input.prompt)
    word = "compare-the-versions-of-every-module-" * 6
    output = _output(load(PLAN), 0)
    return SampleContent(
        kind=ContentKind.LONG,
        name=word[:120],
        title=f"{plain.title} {word}"[:200],
        text=f"{prompt}\n{word}",
        markdown=f"{prompt}\n\n| module | version |\n| --- | --- |\n| {word} | {word} |\n\n{word}",
        thinking=f"{plain.thinking} " * 40,
        arguments={"file_path": f"/{word}/{word}.go", "old_string": output, "new_string": output.replace("err", "e")},
        output=plain.output * 60,
        code=plain.code * 10,
        patch=plain.patch + "".join(f"@@ -{at} +{at} @@\n-{word}\n+{word}{at}\n" for at in range(2, 20)),
        payload={word: [{"path": f"{word}{at}", "lines": list(range(20))} for at in range(20)]},
        error=f"{plain.error} {word} " * 8,
        number=987_654_321_012,
        rows=12,
    )


def _empty() -> SampleContent:
    return SampleContent(
        kind=ContentKind.EMPTY, name="", title="", text="", markdown="", thinking="", arguments={}, output="", code="",
        patch="", payload={}, error="", number=0, rows=0,
    )  # fmt: skip


def _hostile() -> SampleContent:
    """Return texts that would take effect if a page treated them as markup, terminal codes, or a template."""
    markup = "<script>alert('markup')</script><img src=x onerror=alert('markup')>"
    closing = "</textarea></pre></bdi></p></li></ol></table></main><h1 id=broken>out</h1>"
    invisible = "\u202egnp.exe\u2066 zero\u200bwidth\ufeff \x00 \x1b]0;title\x07 \x1b[2J"
    links = "[a](javascript:alert('link')) ![b](https://tracker.invalid/b.png) <svg onload=alert('svg')>"
    text = "\n".join([markup, closing, invisible, links, "{{ 7*7 }} {% debug %}", "data: x\r\revent: end\r\r"])
    return SampleContent(
        kind=ContentKind.HOSTILE,
        name=f"{markup}{invisible}"[:200],
        title=f"{closing}{markup}"[:200],
        text=text,
        markdown=f"# {markup}\n\n{links}\n\n```html\n{text}\n```\n\n| {closing} |\n| --- |\n| {markup} |",
        thinking=text,
        arguments={"command": f"echo {markup}", markup: {closing: [invisible, None]}},
        output=f"\x1b[31m{text}\x1b[0m\x1b]8;;javascript:alert(1)\x07link\x1b]8;;\x07",
        code=text,
        patch=f"diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-{markup}\n+{closing}\n",
        payload={markup: [closing, invisible, {"__proto__": links}]},
        error=text,
        number=7,
        rows=3,
    )


def _thinking(fixture: Fixture) -> str:
    parts = fixture.answers[0].response.parts
    return "\n\n".join(str(part.content) for part in parts if part.part_kind == "thinking")


def _output(fixture: Fixture, number: int) -> str:
    """Return the result of the first tool call of a recorded model call."""
    results = [result for result in fixture.answers[number].tools.values() if isinstance(result, RecordedResult)]
    return str(results[0].output)
