"""Test full payloads: pages without scripts, fragments for cards, and files."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.test import Client
from pydantic_ai.messages import BinaryContent, ModelResponse, TextPart, ThinkingPart, ToolCallPart

from agentops.accounts.models import Role
from runs.conversation import tool_starts, transcript
from runs.models import AgentRun, AgentRunMessage
from runs.pages.run.payloads import WHOLE_BYTES
from runs.providers.messages import ITEMS
from tests.support.factories import drive, make_agent, make_person, make_run
from tests.support.pages import Element, parse
from tests.support.timelines import painted_html, recorded, told

SECRET = "sk-ant-api03-" + "Ab1" * 30

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.breaks_invariants("rows that are made to be shown, without events"),
]


@pytest.fixture
def run() -> AgentRun:
    return make_run(make_agent(), "Look into it.")


def client_of(run: AgentRun) -> Client:
    client = Client()
    client.force_login(make_person(run.project, Role.VIEWER))
    return client


def fetched(run: AgentRun, path: str, *, htmx: bool = False) -> Any:
    answer = client_of(run).get(f"/runs/{run.pk}{path}", headers={"HX-Request": "true"} if htmx else {})
    assert answer.status_code == 200, answer.content
    return answer


def piece(run: AgentRun, path: str) -> Element:
    return parse(fetched(run, path, htmx=True).content.decode())


def said(run: AgentRun, *parts: Any) -> AgentRunMessage:
    message = ModelResponse(parts=list(parts), model_name="m")
    row, _ = transcript.new_row(run.pk, 2, message, role="assistant", step=1, epoch=None)
    row.save(force_insert=True)
    return row


def payloads(element: Element) -> list[str]:
    return [payload.text for payload in element.all("payload")]


def test_a_message_is_displayed_in_full(run: AgentRun) -> None:
    call = ToolCallPart("grep", {"q": "<b>"}, tool_call_id="c")
    row = said(run, ThinkingPart("t" * 5000), TextPart("x" * 20_000), call)

    found = piece(run, f"/messages/{row.pk}?as=text")

    assert payloads(found)[:3] == ["t" * 5000, "x" * 20_000, '{\n  "q": "<b>"\n}']
    [raw] = [details for details in found.walk() if details.tag == "details"]
    assert raw.words.startswith("As JSON")
    assert '"part_kind": "thinking"' in raw.text


def test_the_same_url_is_a_page_without_scripts(run: AgentRun) -> None:
    row = said(run, TextPart("Yes."))
    part = fetched(run, f"/messages/{row.pk}", htmx=True).content.decode()
    page = fetched(run, f"/messages/{row.pk}").content.decode()

    assert "<!doctype html>" not in part
    assert page.startswith("<!doctype html>")
    assert f'href="/runs/{run.pk}"' in page
    assert "Yes." in page
    assert "Yes." in part


def test_texts_of_a_model_are_masked_and_images_are_named(run: AgentRun) -> None:
    row = said(run, TextPart(f"the key is {SECRET}"), ToolCallPart("t", {"key": SECRET}, tool_call_id="c"))
    turn = ["See.", BinaryContent(data=b"\x89PNG" * 99, media_type="image/png")]
    prompt = make_run(make_agent(run.project), ITEMS.dump_python(turn, mode="json"))

    assert SECRET not in fetched(run, f"/messages/{row.pk}").content.decode()
    assert SECRET not in fetched(run, f"/messages/{row.pk}?download=json").content.decode()
    shown = payloads(piece(prompt, f"/messages/{prompt.messages.get().pk}?as=text"))
    assert shown[0] == "See.\n[image/png]"


def test_a_call_shows_its_arguments_output_and_errors() -> None:
    run = drive(recorded("claude-code-5c"))
    bad, good = run.tool_calls.filter(status="error")[0], run.tool_calls.filter(status="completed")[0]

    page = fetched(run, f"/calls/{good.pk}").content.decode()
    found = piece(run, f"/calls/{bad.pk}?as=text")

    assert good.call_id in page
    assert f'href="/runs/{run.pk}/messages/{good.message_id}"' in page
    assert payloads(piece(run, f"/calls/{good.pk}?as=text"))[1] == good.output
    assert "tool_use_error" in payloads(found)[1]


PNG = b"\x89PNG\r\n\x1a\n" + b"\xfb\xff" * 9000


def test_only_raster_images_are_displayed(run: AgentRun) -> None:
    parts = [PNG, b"GIF87a is no PNG", b"<svg onload=alert(1)>"]
    types = ["image/png", "image/png", "image/svg+xml"]
    turn = ["See.", *(BinaryContent(data=data, media_type=type_) for data, type_ in zip(parts, types, strict=True))]
    message = make_run(make_agent(run.project), ITEMS.dump_python(turn, mode="json")).messages.get()
    page, url = message.run, f"/messages/{message.pk}"

    shown = fetched(page, f"{url}/media/0")
    images = [element.attributes["src"] for element in piece(page, url).walk() if element.tag == "img"]

    assert shown.content == PNG
    assert shown.headers["Content-Type"] == "image/png"
    assert shown.headers["X-Content-Type-Options"] == "nosniff"
    assert shown.headers["Content-Security-Policy"] == "default-src 'none'; sandbox"
    assert images == [f"/runs/{page.pk}{url}/media/{number}" for number in (0, 1)]
    for number in (1, 2, 3, 10**9):
        assert client_of(page).get(f"/runs/{page.pk}{url}/media/{number}").status_code == 404


def test_texts_are_formatted_and_available_as_plain_text(run: AgentRun) -> None:
    row = said(run, TextPart("# Plan\n\n**Do** it:\n\n```python\nx = 1\n```"))
    edit = {"file_path": "/a.py", "old_string": "x = 1\ny = 2", "new_string": "x = 1\ny = 3"}
    call = tool_starts.planned_call(row, ToolCallPart("Edit", edit, tool_call_id="e"), effect=None)
    call.output = "\x1b[31mred\x1b[0m \x1b]0;title\x07done"
    call.save(force_insert=True)

    shown, plain = piece(run, f"/messages/{row.pk}"), piece(run, f"/messages/{row.pk}?as=text")
    of_call = piece(run, f"/calls/{call.pk}")

    assert [element.words for element in shown.walk() if element.tag in ("h3", "strong")] == ["Plan", "Do"]
    assert [element.words for element in shown.all("hl-n")] == ["1"]
    assert "**Do** it" in plain.text
    assert fetched(run, f"/messages/{row.pk}?download=text").content.decode().startswith("# Plan\n\n**Do**")
    assert [line.text for kind in ("only-a", "only-b") for line in of_call.all("line", kind)] == [
        "−Removed: y = 2",
        "+Added: y = 3",
    ]
    [red] = of_call.all("tty-red")
    assert red.text == "red"
    assert "title" not in of_call.all("payload")[-1].text


def test_a_large_output_is_cut_and_can_be_downloaded() -> None:
    run = drive(recorded("claude-code-5c"))
    call = run.tool_calls.filter(status="completed")[0]
    call.output = "é" * WHOLE_BYTES + " end " + SECRET
    call.save(update_fields=["output"])

    found = piece(run, f"/calls/{call.pk}")
    [output] = [text for text in payloads(found) if text.startswith("é")]
    [link] = [a for a in found.walk() if "download" in a.attributes]
    file = fetched(run, link.attributes["href"].partition(str(run.pk))[2])

    assert len(output.encode()) == WHOLE_BYTES
    assert file.headers["Content-Disposition"] == 'attachment; filename="output.txt"'
    assert file.headers["Content-Type"] == "text/plain; charset=utf-8"
    assert file.headers["X-Content-Type-Options"] == "nosniff"
    text = file.content.decode()
    assert text.startswith("é" * WHOLE_BYTES)
    assert "[REDACTED:" in text
    assert SECRET not in text
    # The output that the model received is displayed in addition to the full output.
    assert "Output sent to the model" in found.words


def test_an_unknown_part_is_not_found(run: AgentRun) -> None:
    message = run.messages.get()

    assert client_of(run).get(f"/runs/{run.pk}/messages/{message.pk}?download=passwords").status_code == 404


def test_an_event_is_displayed_in_its_api_format(run: AgentRun) -> None:
    seq = told(run, "x.build.done", {"ok": True, "token": "<script>"}, node_id="n1")

    [text] = payloads(piece(run, f"/events/{seq}?as=text"))
    [tree] = piece(run, f"/events/{seq}").all("payload")

    assert 'type: "x.build.done"' in tree.text
    assert any(element.tag == "details" for element in tree.walk())
    assert f'"seq": {seq}' in text
    assert '"type": "x.build.done"' in text
    assert '"nodeId": "n1"' in text
    assert '"<script>"' in text
    assert "<script>" not in fetched(run, f"/events/{seq}", htmx=True).content.decode()


@pytest.mark.parametrize(
    ("type_", "payload", "text"),
    [
        ("tool.end", {"output": {"rows": [1, 2]}}, '{\n  "rows": [\n    1,\n    2\n  ]\n}'),
        ("tool.end", {"output": "two rows"}, "two rows"),
        ("tool.end", {"error": "no table"}, "no table"),
        ("tool.end", {"preview": "two…"}, "two…"),
        ("message.added", {"role": "user", "content": ["a", "b"]}, '[\n  "a",\n  "b"\n]'),
    ],
)
def test_the_copied_text_of_a_card_without_a_row_is_available(
    type_: str, payload: dict[str, Any], text: str, run: AgentRun
) -> None:
    call = {"call_id": "c1", "tool_name": "query"} if type_ == "tool.end" else {}
    seq = told(run, type_, call | payload, step=1)
    timeline = painted_html(run, seq)

    [address] = re.findall(rf'data-copy-url="/runs/{run.pk}(/events/[^"]*)"', timeline)
    assert fetched(run, address).content.decode() == text


def test_an_output_received_only_in_pieces_has_no_copy_link(run: AgentRun) -> None:
    told(run, "tool.start", {"call_id": "c1", "tool_name": "query"}, step=1)
    told(run, "tool.output", {"call_id": "c1", "text": "one row"}, step=1)
    seq = told(run, "tool.end", {"call_id": "c1", "tool_name": "query"}, step=1)

    [card] = [row for row in painted_html(run, seq).split("<li ") if "one row" in row]

    assert "data-copy-url" not in card


@pytest.mark.parametrize("text", ["</pre><script>alert(1)</script>", '<div hx-get="/admin/" hx-trigger="load">'])
def test_payloads_are_text(run: AgentRun, text: str) -> None:
    row = said(run, ThinkingPart(text), TextPart(text), ToolCallPart(text, {text: text}, tool_call_id="c"))
    call = tool_starts.planned_call(row, ToolCallPart(text, {text: text}, tool_call_id=text), effect=None)
    call.output = [text, {"kind": text}, {text: [text]}]
    call.save(force_insert=True)

    for path in (f"/messages/{row.pk}", f"/calls/{call.pk}"):
        for htmx in (True, False):
            assert text not in fetched(run, path, htmx=htmx).content.decode()
        assert text in piece(run, path).text
