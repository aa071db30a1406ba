"""The form fields of an agent: placement, common settings, policies, approval rules, hooks."""

from __future__ import annotations

from runs.agents.approval_rules import ApprovalAction, OnExpiry
from runs.agents.placement import LAST_PRIORITY
from runs.agents.policies import INVALID, ErrorKind, OnCrash, OnUnknownTool, PolicyAction, Trigger
from runs.hooks import hook_catalogue
from runs.pages.forms.form_fields import FieldType, Kind
from runs.pages.forms.rule_rows import RowGroup

#: Path below `settings` → field. All other settings are edited as JSON.
SETTINGS = (
    FieldType("budgets.tokens", "Token budget of a run", Kind.COUNT),
    FieldType("budgets.cost_usd", "Cost budget of a run, in US dollars", Kind.AMOUNT),
    FieldType("budgets.wall_s", "Time budget of a run, in seconds", Kind.NUMBER),
    FieldType("root", "File root", help="Absolute path of the directory that file tools reach."),
    FieldType("http_fetch_allow", "Hosts of http_fetch", Kind.WORDS, "Names, separated by commas. Empty: none."),
    FieldType("base_url", "Base URL", help="Address of a server that speaks OpenAI's protocols."),
    FieldType("max_tokens", "Tokens of an answer", Kind.COUNT, "Default: the provider's."),
    FieldType("temperature", "Temperature", Kind.NUMBER, "From 0 to 2. Default: the provider's."),
    FieldType("context_window", "Context window in tokens", Kind.COUNT, "Default: as known of the model."),
    FieldType("max_retries", "Retries of a model call", Kind.COUNT, "Default: the site's setting."),
    FieldType("tool_max_retries", "Retries of a tool call", Kind.COUNT, "Default: the site's setting."),
    FieldType("max_children", "Child runs of a run", Kind.COUNT, "At most, and by default, the site's setting."),
    FieldType("tool_output_limit", "Characters of a tool's output that the model sees", Kind.COUNT, "Default: 8000."),
)
PLACEMENT = (
    FieldType("queue", "Queue", help="Only workers that serve this queue execute the runs."),
    FieldType("priority", "Priority", Kind.COUNT, f"From 0, which comes first, to {LAST_PRIORITY}."),
    FieldType("max_running", "Runs at the same time", Kind.COUNT, "Others wait in the queue. Empty: no limit."),
)
CHOICES = (
    FieldType(
        "on_unknown_tool",
        "After an unknown outcome of a tool call",
        Kind.CHOICE,
        "Default: wait for a person.",
        [
            (OnUnknownTool.WAIT.value, "wait for a person"),
            (OnUnknownTool.TELL_MODEL.value, "tell the model that the outcome is unknown"),
        ],
    ),
    FieldType(
        "on_crash",
        "After a crash in the middle of a turn",
        Kind.CHOICE,
        "Default: continue the turn.",
        [(OnCrash.ROLL_FORWARD.value, "continue the turn"), (OnCrash.ROLL_BACK.value, "ask the model again")],
    ),
)
_TRIGGERS = {
    Trigger.ON_IDLE: ("When idle (on_idle)", "The agent ended its turn without calling done."),
    Trigger.ON_DEAD: ("When dead (on_dead)", "The worker or the process of the run is gone."),
    Trigger.ON_ERROR: (
        "On an error (on_error)",
        "The run failed after all retries. The first rule that matches counts.",
    ),
    Trigger.ON_PROMPT: ("On a question (on_prompt)", "The agent asks a question or requests an approval."),
}
_MATCH = FieldType("match", "Errors", Kind.WORDS, f"Any of {', '.join(ErrorKind)}, separated by commas. Empty: all.")


def trigger_group(trigger: Trigger) -> RowGroup:
    """Return the rows of a trigger's rules."""
    title, help_text = _TRIGGERS[trigger]
    actions = [(action.value, action.value) for action in PolicyAction if (trigger, action) not in INVALID]
    fields = (
        FieldType("action", "Action", Kind.CHOICE, choices=actions),
        *((_MATCH,) if trigger is Trigger.ON_ERROR else ()),
        FieldType("message", "Message", Kind.AREA),
        FieldType("attempts", "Attempts", Kind.COUNT, 'A number, or "forever". Default: 1.'),
        FieldType("cooldown", "Wait before an attempt", Kind.AMOUNT, "Such as 60s or 5m."),
        FieldType("run", "Gate", help="The tool or command of the action gate."),
        FieldType("append", "Continue the conversation", Kind.FLAG, "Default: yes."),
    )
    return RowGroup(trigger.value, title, help_text, fields, may_be_single=True)


APPROVALS = RowGroup(
    "approvals",
    "Approval rules",
    "The first rule that matches a tool call counts.",
    (
        FieldType("action", "Action", Kind.CHOICE, choices=[
            (ApprovalAction.AUTO.value, "auto: the call runs"),
            (ApprovalAction.ASK.value, "ask: a person decides"),
            (ApprovalAction.DENY.value, "deny: the call is denied"),
        ]),
        FieldType("tools", "Tools", help="Pattern of the whole name. Empty: every tool."),
        FieldType("arguments", "Arguments", Kind.JSON, 'JSON object of patterns, such as {"environment": "^prod"}.'),
        FieldType("reason", "Reason"),
        FieldType("expires", "Expires after", Kind.AMOUNT, "Such as 2h. Default: the site's setting."),
        FieldType("on_expiry", "Then", Kind.CHOICE, choices=[
            (OnExpiry.DENY.value, "deny the call"), (OnExpiry.PAUSE.value, "pause the run"),
        ]),
    ),
)  # fmt: skip


def hook_group() -> RowGroup:
    """Return the rows of an agent's hooks."""
    names = [(name, name) for name in hook_catalogue.names()]
    fields = (
        FieldType("hook", "Hook", Kind.CHOICE, choices=names),
        FieldType("tools", "Tools", help="Pattern of the whole name. Empty: every tool."),
        FieldType("options", "Options", Kind.JSON, "JSON object."),
    )
    return RowGroup("hooks", "Hooks", "Code of this site that is asked about tool calls and turns.", fields)


def groups() -> list[RowGroup]:
    """Return all lists of rules, in the order of the form."""
    return [APPROVALS, hook_group(), *map(trigger_group, Trigger)]
