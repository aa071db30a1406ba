"""The validated definition of a rule, and its webhook and Slack channels: URLs and signing secret, stored encrypted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from decimal import Decimal
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from agentops.accounts import sealing
from agentops.accounts.names import one_line
from agentops.base.http.receivers import new_secret, refusal_of
from runs.errors import InvalidAlertRule
from runs.models import AlertRule

Kind = AlertRule.Kind
WEEK_MINUTES, WEEK_HOURS = 7 * 24 * 60, 7 * 24
#: Maximum of `last_runs`.
MAX_RUNS = 100
MAX_AGENT = 128
#: Kind → its limits with their defaults. None: the limit is required.
LIMITS: dict[str, dict[str, int | None]] = {
    Kind.RUN_FAILED: {},
    Kind.RUN_STALLED: {"minutes": 15},
    Kind.RUN_WAITING: {"minutes": 0},
    Kind.RUN_COST: {"limit_usd": None},
    Kind.DAY_COST: {"limit_usd": None},
    Kind.ERROR_RATE: {"percent": 50, "last_runs": 20, "min_runs": 5},
    Kind.SINK_BEHIND: {"minutes": 60},
}
#: Kinds that need at least a minute, and the error if the limit is 0.
LASTING = {Kind.RUN_STALLED: "a run cannot stall", Kind.SINK_BEHIND: "a sink cannot fall behind"}
#: Kinds about the whole project, and the error if an agent or a label is set.
OF_PROJECT = {
    Kind.DAY_COST: "the cost of a day is that of the whole project",
    Kind.SINK_BEHIND: "a sink gets the events of the whole project",
}
LIMIT_NAMES = ("minutes", "limit_usd", "percent", "last_runs", "min_runs")

Minutes = Annotated[int, Field(ge=0, le=WEEK_MINUTES)]
Usd = Annotated[Decimal, Field(gt=0, lt=10_000_000, decimal_places=4, allow_inf_nan=False)]


class RuleDefinition(BaseModel):
    """A rule without its channels' URLs. Limits that the kind does not have are null."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, Field(min_length=1, max_length=63)]
    kind: Kind
    minutes: Minutes | None = None
    limit_usd: Usd | None = None
    percent: Annotated[int, Field(ge=1, le=100)] | None = None
    last_runs: Annotated[int, Field(ge=1, le=MAX_RUNS)] | None = None
    min_runs: Annotated[int, Field(ge=1, le=MAX_RUNS)] | None = None
    #: Not limited to slugs, because external runners choose the names of their agents.
    agent: Annotated[str, Field(max_length=MAX_AGENT)] = ""
    label: Annotated[str, Field(max_length=200)] = ""
    sends_email: bool = True
    group_minutes: Annotated[int, Field(ge=1, le=24 * 60)] = 10
    repeat_hours: Annotated[int, Field(ge=0, le=WEEK_HOURS)] = 24
    announces_end: bool = False
    is_enabled: bool = True

    @field_validator("name", "label", "agent")
    @classmethod
    def _one_line(cls, text: str) -> str:
        if text != one_line(text, len(text)):
            raise ValueError("a single line without control characters is expected")
        return text

    @model_validator(mode="before")
    @classmethod
    def _with_defaults(cls, values: Any) -> Any:
        """Fill in the default limits of the kind."""
        limits = LIMITS.get(str(values.get("kind")), {})
        defaults = {name: value for name, value in limits.items() if value is not None and values.get(name) is None}
        return {**values, **defaults}


def checked(values: Mapping[str, Any]) -> RuleDefinition:
    """Return the rule that `values` describe. Raises `InvalidAlertRule`."""
    try:
        definition = RuleDefinition.model_validate(dict(values))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field = str(first["loc"][0]) if first["loc"] else ""
        raise InvalidAlertRule(first["msg"].removeprefix("Value error, "), field) from None
    limits = LIMITS[definition.kind]
    for name in LIMIT_NAMES:
        value = getattr(definition, name)
        if (name in limits) != (value is not None):
            verb = "needs this limit" if value is None else "has no such limit"
            raise InvalidAlertRule(f"a rule of the kind {definition.kind} {verb}", name)
    if definition.kind in LASTING and not definition.minutes:
        raise InvalidAlertRule(f"{LASTING[definition.kind]} within 0 minutes: enter at least 1", "minutes")
    if definition.kind in OF_PROJECT and (definition.agent or definition.label):
        raise InvalidAlertRule(OF_PROJECT[definition.kind], "agent" if definition.agent else "label")
    if definition.kind == Kind.ERROR_RATE:
        if definition.label:
            raise InvalidAlertRule("an error rate is that of all runs of an agent", "label")
        if (definition.min_runs or 0) > (definition.last_runs or 0):
            raise InvalidAlertRule(f"at most last_runs, which is {definition.last_runs}", "min_runs")
    return definition


def check_urls(urls: Mapping[str, str]) -> None:
    """Check the URLs of channels. Raises `InvalidAlertRule`."""
    for name, url in urls.items():
        if url and (reason := refusal_of(url)):
            raise InvalidAlertRule(reason, name)


URL_NAMES = ("webhook_url", "slack_url")


@dataclass(frozen=True)
class Channels:
    """The URLs and the signing secret of a rule in plain text; each is empty if the rule has no such channel."""

    webhook_url: str = field(default="", repr=False)
    slack_url: str = field(default="", repr=False)
    webhook_secret: str = field(default="", repr=False)


def channels_of(rule: AlertRule) -> Channels:
    """Decrypt the channels of a rule. Raises `sealing.Unreadable`."""
    if rule.sealed is None:
        return Channels()
    return Channels(**json.loads(sealing.unseal(bytes(rule.sealed), rule.key_id, _owner_of(rule))))


def set_channels(rule: AlertRule, urls: Mapping[str, str]) -> str:
    """Set the given URLs without saving the rule. Return the signing secret if the webhook is new, otherwise "".

    An empty URL removes the channel. Stored channels that cannot be decrypted are removed.
    """
    try:
        before = channels_of(rule)
    except sealing.Unreadable:
        before = Channels()
    after = asdict(before) | {name: urls[name] for name in URL_NAMES if name in urls}
    secret = ""
    if not after["webhook_url"]:
        after["webhook_secret"] = ""
    elif not after["webhook_secret"]:
        secret = after["webhook_secret"] = new_secret()
    rule.shown_urls = {name: _shown(after[name]) for name in URL_NAMES if after[name]}
    rule.sealed, rule.key_id = None, ""
    if rule.shown_urls:
        rule.sealed, rule.key_id = sealing.seal(json.dumps(after), _owner_of(rule))
    return secret


def _shown(url: str) -> str:
    """Return the part of a URL that may be displayed. Its path is often a secret."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}/…"


def _owner_of(rule: AlertRule) -> str:
    return f"alert rule {rule.pk}"
