"""Secrets of every kind to store in rows, and how to see them in an answer."""

from __future__ import annotations

import html
import json

from django.db import transaction

from runs.models import AgentRun, AgentRunMessage
from tests.support.redact_samples import SETTINGS, TOKENS, pem
from timeline import log
from timeline.events.notice import Error
from timeline.log import Entry
from timeline.models import Source

CANARIES: dict[str, tuple[str, str]] = {
    **{
        kind: ((token := make()), f"{'1234567890:' if kind == 'telegram' else ''}{token}")
        for kind, make in TOKENS.items()
    },
    **{kind: (found := make())[::-1] for kind, make in SETTINGS.items()},
    "pem": ((key := pem("PRIVATE KEY")).split("\n")[5], key),
}
TEXT = "\n".join(f"{number}. {shown}" for number, (_, shown) in enumerate(CANARIES.values()))


def store_raw(run: AgentRun) -> None:
    """Append events with canaries as a version would have stored them that did not know them."""
    nested = json.dumps({"command": f"cd x\n{TEXT}"})
    with transaction.atomic():
        log.append(
            run.pk,
            [Entry(Error(error_type="x", error=said), clean=True) for said in (TEXT, nested)],
            source=Source.WORKER,
        )


def answer_of(run: AgentRun) -> AgentRunMessage:
    return AgentRunMessage.objects.filter(run=run, role="assistant").order_by("position")[0]


def seen_in(body: str) -> list[str]:
    """The kinds of canaries that show in an answer, as they are or as JSON and HTML write them."""
    plain = html.unescape(body)
    texts = (plain, plain.replace("\\/", "/"), plain.replace('\\"', '"'))
    found = [kind for kind, (secret, _) in CANARIES.items() if any(secret in text for text in texts)]
    return found + ["member"] * ("s3cret-pw" in plain)
