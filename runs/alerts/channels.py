"""The webhook and Slack channels of a rule: URLs and signing secret, stored encrypted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from urllib.parse import urlsplit

from agentops.accounts.redaction_rules import sealing
from agentops.base.http.receivers import new_secret
from runs.models import AlertRule

URL_NAMES = ("webhook_url", "slack_url")


@dataclass(frozen=True)
class Channels:
    """The URLs and the secret of a rule in plain text. Empty if the rule has no such channel."""

    webhook_url: str = field(default="", repr=False)
    slack_url: str = field(default="", repr=False)
    webhook_secret: str = field(default="", repr=False)


def channels_of(rule: AlertRule) -> Channels:
    """Decrypt the channels of a rule. Raises `sealing.Unreadable`."""
    if rule.sealed is None:
        return Channels()
    return Channels(**json.loads(sealing.unseal(bytes(rule.sealed), rule.key_id, _owner_of(rule))))


def set_channels(rule: AlertRule, urls: Mapping[str, str]) -> str:
    """Set the given URLs without saving the rule. Returns the signing secret if the webhook is new.

    An empty URL removes the channel. An unreadable value is replaced.
    """
    try:
        before = channels_of(rule)
    except sealing.Unreadable:
        before = Channels()
    after = asdict(before) | {name: urls[name] for name in URL_NAMES if name in urls}
    made = ""
    if not after["webhook_url"]:
        after["webhook_secret"] = ""
    elif not after["webhook_secret"]:
        made = after["webhook_secret"] = new_secret()
    rule.shown_urls = {name: _shown(after[name]) for name in URL_NAMES if after[name]}
    rule.sealed, rule.key_id = None, ""
    if rule.shown_urls:
        rule.sealed, rule.key_id = sealing.seal(json.dumps(after), _owner_of(rule))
    return made


def _shown(url: str) -> str:
    """Return the part of a URL that may be displayed. Its path is often a secret."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}/…"


def _owner_of(rule: AlertRule) -> str:
    return f"alert rule {rule.pk}"
