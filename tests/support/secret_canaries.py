"""Secrets of every kind to store in rows, including rule secrets in every encoding, and a search for them in bodies."""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Callable
from urllib.parse import quote, quote_plus

from django.db import transaction

from agentops.accounts.models import Project
from agentops.accounts.redaction_rules import rule_changes
from agentops.accounts.redaction_rules.rule_cache import CACHE
from runs.models import AgentRun, AgentRunMessage
from tests.support.redact_samples import SETTINGS, TOKENS, pem
from timeline import log
from timeline.events.notice import Error
from timeline.log import Entry
from timeline.models import Source

#: Only a rule can recognise these secrets: `add_rules` adds it.
RULE_NEEDLE, RULE_TOKEN = "Canary4711Needle", "acme_Canary0815Token"
RULE_SECRET = f'pä"ss/w\\ord +{RULE_NEEDLE}'
_RAW = RULE_SECRET.encode()
ENCODINGS: dict[str, Callable[[], str]] = {
    "plain": lambda: RULE_SECRET,
    **{
        f"base64_{shift}": lambda shift=shift: base64.b64encode(b"a:b"[:shift] + _RAW + b":c").decode()
        for shift in range(3)
    },  # type: ignore[misc]
    **{
        f"base64url_{shift}": lambda shift=shift: base64.urlsafe_b64encode(b"a:b"[:shift] + _RAW).decode()
        for shift in range(3)
    },  # type: ignore[misc]
    "percent": lambda: quote(RULE_SECRET, safe=""),
    "form": lambda: quote_plus(RULE_SECRET),
    "json": lambda: json.dumps(RULE_SECRET),
    "json_unicode": lambda: json.dumps(RULE_SECRET, ensure_ascii=False),
    "json_twice": lambda: json.dumps(json.dumps(RULE_SECRET)),
}


def _needle(shown: str) -> str:
    """Return the part of an encoded secret that is visible if it is not redacted."""
    return RULE_NEEDLE if RULE_NEEDLE in shown else shown[14:30]


RULE_CANARIES = {
    **{f"rule_{name}": (_needle(shown := make()), shown) for name, make in ENCODINGS.items()},
    "rule_format": (RULE_TOKEN, RULE_TOKEN),
}
CANARIES: dict[str, tuple[str, str]] = {
    **{
        kind: ((token := make()), f"{'1234567890:' if kind == 'telegram' else ''}{token}")
        for kind, make in TOKENS.items()
    },
    **{kind: (found := make())[::-1] for kind, make in SETTINGS.items()},
    "pem": ((key := pem("PRIVATE KEY")).split("\n")[5], key),
    **RULE_CANARIES,
}
TEXT = "\n".join(f"{number}. {shown}" for number, (_, shown) in enumerate(CANARIES.values()))


def add_rules(project: Project) -> None:
    """Add the rules that RULE_CANARIES need. They apply immediately, also within a test's transaction."""
    rule_changes.add_secret(project, "rule_secret", RULE_SECRET, actor="test")
    rule_changes.add_format(project, "rule_token", "acme_", alphabet="alnum", least=10, most=40, actor="test")
    CACHE.expire()


def store_raw(run: AgentRun) -> None:
    """Append events with canaries as an older version, which did not recognise them, would have stored them."""
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
    """Return the kinds of canaries that are visible in a response, as plain text or escaped by JSON or HTML."""
    plain = html.unescape(body)
    texts = (plain, plain.replace("\\/", "/"), plain.replace('\\"', '"'))
    found = [kind for kind, (secret, _) in CANARIES.items() if any(secret in text for text in texts)]
    return found + ["member"] * ("s3cret-pw" in plain)
