"""The form fields of an agent's definition, and the models that the form suggests."""

from __future__ import annotations

from functools import cache
from typing import get_args

from pydantic_ai.models import KnownModelName

from agentops.accounts.models import Project
from runs.agents.call_rules import ApprovalAction, OnExpiry
from runs.agents.placement import LAST_PRIORITY
from runs.agents.policies import INVALID, ErrorKind, OnCrash, OnUnknownTool, PolicyAction, Trigger
from runs.fixtures import fixture_files
from runs.hooks.hook_catalogue import HOOKS
from runs.models import Agent
from runs.pages.forms.form_fields import Kind, ValueField
from runs.pages.forms.rule_rows import RowGroup
from runs.providers import remote
from runs.providers.model_servers import VENDORS
from timeline.display import clean

#: The setting that only agents of durable functions have: the version of the code that executes new runs.
CODE_VERSION = remote.CODE_VERSION
#: Path below `settings` → field of the form. All other settings are edited as JSON.
SETTINGS = {
    CODE_VERSION: ValueField(
        "Code version",
        Kind.COUNT,
        "New runs need a process or worker with this version. One that registers a higher version raises it.",
    ),
    "budgets.tokens": ValueField("Token budget of a run", Kind.COUNT),
    "budgets.cost_usd": ValueField("Cost budget of a run, in US dollars", Kind.AMOUNT),
    "budgets.wall_s": ValueField("Time budget of a run, in seconds", Kind.NUMBER),
    "root": ValueField("File root", Kind.LINE, "Absolute path of the directory that file tools reach."),
    "http_fetch_allow": ValueField("Hosts of http_fetch", Kind.WORDS, "Names, separated by commas. Empty: none."),
    "base_url": ValueField("Base URL", Kind.LINE, "Address of a server that speaks OpenAI's protocols."),
    "max_tokens": ValueField("Tokens of an answer", Kind.COUNT, "Default: the provider's."),
    "temperature": ValueField("Temperature", Kind.NUMBER, "From 0 to 2. Default: the provider's."),
    "context_window": ValueField("Context window in tokens", Kind.COUNT, "Default: as known of the model."),
    "max_retries": ValueField("Retries of a model call", Kind.COUNT, "Default: the site's setting."),
    "tool_max_retries": ValueField("Retries of a tool call", Kind.COUNT, "Default: the site's setting."),
    "max_children": ValueField("Child runs of a run", Kind.COUNT, "At most, and by default, the site's setting."),
    "tool_output_limit": ValueField("Characters of a tool's output that the model sees", Kind.COUNT, "Default: 8000."),
}
#: Field of the placement → field of the form.
PLACEMENT = {
    "queue": ValueField("Queue", Kind.LINE, "Only workers that serve this queue execute the runs."),
    "priority": ValueField("Priority", Kind.COUNT, f"From 0, which comes first, to {LAST_PRIORITY}."),
    "max_running": ValueField("Runs at the same time", Kind.COUNT, "Others wait in the queue. Empty: no limit."),
}
#: Policy that is a choice → field of the form.
CHOICES = {
    "on_unknown_tool": ValueField(
        "After an unknown outcome of a tool call",
        Kind.CHOICE,
        "Default: wait for a person.",
        [
            (OnUnknownTool.WAIT.value, "wait for a person"),
            (OnUnknownTool.TELL_MODEL.value, "tell the model that the outcome is unknown"),
        ],
    ),
    "on_crash": ValueField(
        "After a crash in the middle of a turn",
        Kind.CHOICE,
        "Default: continue the turn.",
        [(OnCrash.ROLL_FORWARD.value, "continue the turn"), (OnCrash.ROLL_BACK.value, "ask the model again")],
    ),
}
#: Title and help of the rules of a trigger.
_TRIGGERS = {
    Trigger.ON_IDLE: ("When idle (on_idle)", "The agent ended its turn without calling done."),
    Trigger.ON_DEAD: ("When dead (on_dead)", "The worker or the process of the run is gone."),
    Trigger.ON_ERROR: (
        "On an error (on_error)",
        "The run failed after all retries. The first rule that matches counts.",
    ),
    Trigger.ON_PROMPT: ("On a question (on_prompt)", "The agent asks a question or requests an approval."),
    Trigger.ON_CUT: (
        "On a cut answer (on_cut)",
        "The model reached its token limit before the end of its answer. Attempts count in a row. Default: pause.",
    ),
    Trigger.ON_REFUSED: (
        "On a refused answer (on_refused)",
        "The model refused, or a filter of the provider stopped the answer. Attempts count in a row. Default: pause.",
    ),
}
_MATCH = ValueField("Errors", Kind.WORDS, f"Any of {', '.join(ErrorKind)}, separated by commas. Empty: all.")


def trigger_group(trigger: Trigger) -> RowGroup:
    """Return the rows of a trigger's rules."""
    title, help_text = _TRIGGERS[trigger]
    actions = [(action.value, action.value) for action in PolicyAction if (trigger, action) not in INVALID]
    fields = {
        "action": ValueField("Action", Kind.CHOICE, choices=actions),
        **({"match": _MATCH} if trigger is Trigger.ON_ERROR else {}),
        "message": ValueField("Message", Kind.AREA),
        "attempts": ValueField("Attempts", Kind.COUNT, 'A number, or "forever". Default: 1.'),
        "cooldown": ValueField("Wait before an attempt", Kind.AMOUNT, "Such as 60s or 5m."),
        "run": ValueField("Gate", Kind.LINE, "The tool or command of the action gate."),
        "append": ValueField("Continue the conversation", Kind.FLAG, "Default: yes."),
    }
    return RowGroup(trigger.value, title, help_text, fields, may_be_single=True)


APPROVALS = RowGroup(
    "approvals",
    "Approval rules",
    "The first rule that matches a tool call counts.",
    {
        "action": ValueField(
            "Action",
            Kind.CHOICE,
            choices=[
                (ApprovalAction.AUTO.value, "auto: the call runs"),
                (ApprovalAction.ASK.value, "ask: a person decides"),
                (ApprovalAction.DENY.value, "deny: the call is denied"),
            ],
        ),
        "tools": ValueField("Tools", Kind.LINE, "Pattern of the whole name. Empty: every tool."),
        "arguments": ValueField("Arguments", Kind.JSON, 'JSON object of patterns, such as {"environment": "^prod"}.'),
        "reason": ValueField("Reason"),
        "expires": ValueField("Expires after", Kind.AMOUNT, "Such as 2h. Default: the site's setting."),
        "on_expiry": ValueField(
            "Then",
            Kind.CHOICE,
            choices=[(OnExpiry.DENY.value, "deny the call"), (OnExpiry.PAUSE.value, "pause the run")],
        ),
    },
)


def hook_group() -> RowGroup:
    """Return the rows of an agent's hooks."""
    names = [(name, name) for name in HOOKS.names()]
    fields = {
        "hook": ValueField("Hook", Kind.CHOICE, choices=names),
        "tools": ValueField("Tools", Kind.LINE, "Pattern of the whole name. Empty: every tool."),
        "options": ValueField("Options", Kind.JSON, "JSON object."),
    }
    return RowGroup("hooks", "Hooks", "Code of this site that is asked about tool calls and turns.", fields)


#: Fields that mean nothing for an agent of durable functions, which have their own tools and call models themselves.
NOT_DURABLE = frozenset(
    {
        *("more_tools", "setting-root", "setting-http_fetch_allow", "setting-base_url", "setting-max_tokens"),
        *("setting-temperature", "setting-context_window", "setting-max_retries", "setting-tool_max_retries"),
        *("setting-tool_output_limit", "on_crash"),
    }
)
#: Lists of rules that never apply to the runs of durable functions.
LISTS_NOT_DURABLE = frozenset({Trigger.ON_IDLE.value, Trigger.ON_PROMPT.value})


def groups() -> list[RowGroup]:
    """Return all lists of rules, in the order of the form."""
    return [APPROVALS, hook_group(), *map(trigger_group, Trigger)]


#: Maximum models of the project's agents.
MAX_OWN = 100


def suggested_models(project: Project) -> list[str]:
    """Return the models of the project's agents, the models of `VENDORS` that pydantic-ai knows, and recordings."""
    own = Agent.objects.filter(project=project).values_list("model", flat=True).distinct().order_by("model")[:MAX_OWN]
    return list(dict.fromkeys([*map(clean, own), *_known_models(), *fixture_files.names()]))


@cache
def _known_models() -> list[str]:
    return [name for name in get_args(KnownModelName.__value__) if name.partition(":")[0] in VENDORS]
