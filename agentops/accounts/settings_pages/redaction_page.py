"""The redaction page of a project's settings: its rules, forms that add and remove them, and a tester.

agentops.accounts.redaction_changes checks the rules.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.debug import sensitive_post_parameters, sensitive_variables

from agentops.accounts import redaction_cache, redaction_changes, sealing
from agentops.accounts.access import Action, EnteredProject, enter
from agentops.accounts.audit import Actor
from agentops.accounts.errors import InvalidRule
from agentops.accounts.models import Project, RedactionRule
from agentops.accounts.requests import principal_of
from agentops.accounts.settings_pages.page_parts import SECRET, SHORT, HiddenText, see_other, sentence, settings_context
from agentops.base.http.methods import require_POST, require_safe
from agentops.base.redaction.redact import placeholder
from agentops.base.redaction.registered_secrets import ALPHABETS
from agentops.base.redaction.secret_shapes import ALWAYS_MASKED, BUILT_IN_KINDS
from agentops.base.refusals import InvalidQuery

#: Maximum length of a text to test.
MAX_TEXT = 65_536
#: Alphabet → label in the form.
ALPHABET_NAMES = {
    "digits": "digits",
    "hex": "hexadecimal digits",
    "alnum": "letters and digits",
    "word": "letters, digits, - and _",
    "base64": "base64: letters, digits, + / = - and _",
}
assert ALPHABET_NAMES.keys() == ALPHABETS.keys()


class RuleForm(forms.Form):
    """A form that adds a rule."""

    kind: RedactionRule.Kind

    def __init__(self, data: Any = None) -> None:
        super().__init__(data, auto_id=f"{self.kind}-%s")

    def add_rule(self, project: Project, actor: Actor) -> None:
        """Add the rule of a valid form. Raises `InvalidRule`."""
        raise NotImplementedError


class NamedRuleForm(RuleForm):
    """A form with the name of a rule."""

    name = forms.CharField(
        max_length=32,
        widget=forms.TextInput(SHORT),
        help_text="Shown in place of the secret, as in `[REDACTED:billing_password:1a2b3c4d]`. Lower-case letters, "
        "digits and underscores.",
    )


class SecretForm(NamedRuleForm):
    """A named secret."""

    kind = RedactionRule.Kind.SECRET
    secret = forms.CharField(
        max_length=redaction_changes.MAX_SECRET,
        widget=HiddenText(SECRET | SHORT | {"rows": 2}),
        help_text=f"6 to {redaction_changes.MAX_SECRET} characters. It is stored encrypted, and never shown again.",
    )

    def add_rule(self, project: Project, actor: Actor) -> None:
        redaction_changes.add_secret(project, self.cleaned_data["name"], self.cleaned_data["secret"], actor=actor)


class FormatForm(NamedRuleForm):
    """A format of tokens."""

    kind = RedactionRule.Kind.FORMAT
    token_prefix = forms.CharField(
        label="Prefix",
        max_length=redaction_changes.MAX_PREFIX,
        widget=forms.TextInput(SHORT),
        help_text="The characters that all such tokens begin with, at least 3, such as `acme_live_`",
    )
    alphabet = forms.ChoiceField(label="Characters that follow", choices=list(ALPHABET_NAMES.items()), initial="alnum")
    least = forms.IntegerField(
        label="Fewest characters after the prefix",
        initial=16,
        min_value=redaction_changes.MIN_LENGTH,
        max_value=redaction_changes.MAX_LENGTH,
        widget=forms.TextInput({"inputmode": "numeric"}),
    )
    most = forms.IntegerField(
        label="Most characters after the prefix",
        initial=128,
        min_value=redaction_changes.MIN_LENGTH,
        max_value=redaction_changes.MAX_LENGTH,
        widget=forms.TextInput({"inputmode": "numeric"}),
        help_text="From 8 to 512. A longer sequence of these characters is not masked.",
    )

    def add_rule(self, project: Project, actor: Actor) -> None:
        values: dict[str, Any] = dict(self.cleaned_data)
        name, prefix = values.pop("name"), values.pop("token_prefix")
        redaction_changes.add_format(project, name, prefix, **values, actor=actor)


class ExceptionForm(RuleForm):
    """A built-in kind that is not masked."""

    kind = RedactionRule.Kind.EXCEPTION
    masked_kind = forms.ChoiceField(
        label="Built-in kind",
        choices=[(each, each) for each in sorted(BUILT_IN_KINDS - ALWAYS_MASKED)],
        help_text="For values that are no secrets in this project. They are then stored, sent to models and shown "
        "unmasked.",
    )

    def add_rule(self, project: Project, actor: Actor) -> None:
        redaction_changes.add_exception(project, self.cleaned_data["masked_kind"], actor=actor)


class TesterForm(forms.Form):
    """A text to test the rules with."""

    text = forms.CharField(
        max_length=MAX_TEXT,
        strip=False,
        widget=HiddenText(SECRET | SHORT | {"rows": 5}),
        error_messages={"required": "Enter a text."},
        help_text="The text is masked and shown once. It is neither stored nor logged.",
    )


FORMS: dict[str, type[RuleForm]] = {form.kind.value: form for form in (SecretForm, FormatForm, ExceptionForm)}


#: Maximum entries of a menu.
MAX_CHOICES = 200


@dataclass(frozen=True, slots=True)
class RuleRow:
    """A rule in the list."""

    rule: RedactionRule
    #: The text by which a secret is masked; empty for other kinds of rules.
    mark: str = ""
    #: Whether the secret cannot be decrypted, so that it is not masked.
    is_unreadable: bool = False

    @property
    def alphabet(self) -> str:
        return ALPHABET_NAMES.get(self.rule.alphabet, "")


@dataclass(frozen=True, slots=True)
class Match:
    """A masked part of the tested text: its position, not its content."""

    line: int
    column: int
    length: int
    kind: str
    #: The rule of the project; None for a built-in kind.
    rule: RedactionRule | None


@dataclass(frozen=True, slots=True)
class TestResult:
    """The masked text and its matches."""

    masked: str
    matches: list[Match]


@require_safe
def index(request: HttpRequest, project: str) -> HttpResponse:
    """Show the rules."""
    return _page(request, enter(principal_of(request), project, Action.MANAGE))


@sensitive_post_parameters()
@require_POST
def add(request: HttpRequest, project: str) -> HttpResponse:
    """Add the rule of a form, or show the page again with its errors and status 422."""
    principal = principal_of(request)
    entry = enter(principal, project, Action.MANAGE)
    form_class = FORMS.get(request.POST.get("kind", ""))
    if form_class is None:
        raise InvalidQuery(f"kind must be one of {', '.join(FORMS)}")
    form = form_class(request.POST)
    if form.is_valid():
        try:
            form.add_rule(entry.project, principal)
        except InvalidRule as refusal:
            form.add_error(None, sentence(refusal))
        else:
            messages.success(request, "Rule added. It takes effect within seconds.")
            return see_other("redaction", entry.project.slug)
    return _page(request, entry, form=form, status=422)


@require_POST
def remove(request: HttpRequest, project: str) -> HttpResponse:
    """Remove the rule `name`."""
    principal = principal_of(request)
    entry = enter(principal, project, Action.MANAGE)
    name = request.POST.get("name", "")
    if not name:
        raise InvalidQuery("send the name of the rule")
    redaction_changes.remove_rule(entry.project, name, actor=principal)
    messages.success(request, "Rule removed. What it masked in stored texts stays masked.")
    return see_other("redaction", entry.project.slug)


@require_POST
def set_model_input(request: HttpRequest, project: str) -> HttpResponse:
    """Switch the masking of model input on or off: `mask` is "yes" or "no"."""
    principal = principal_of(request)
    entry = enter(principal, project, Action.MANAGE)
    choice = request.POST.get("mask", "")
    if choice not in ("yes", "no"):
        raise InvalidQuery("mask must be yes or no")
    redaction_changes.set_model_input_masking(entry.project, choice == "yes", actor=principal)
    messages.success(request, "Setting changed. It takes effect within seconds, for texts stored from then on.")
    return see_other("redaction", entry.project.slug)


@sensitive_post_parameters()
@require_POST
def test(request: HttpRequest, project: str) -> HttpResponse:
    """Show how a text is masked. The text is neither stored nor logged, nor sent back unmasked."""
    entry = enter(principal_of(request), project, Action.MANAGE)
    form = TesterForm(request.POST)
    if not form.is_valid():
        return _page(request, entry, tester=form, status=422)
    rules = redaction_changes.rules_of(entry.project)
    return _page(request, entry, result=_test(form.cleaned_data["text"].replace("\r\n", "\n"), rules))


@sensitive_variables()
def _test(text: str, rules: list[RedactionRule]) -> TestResult:
    """Mask a text by the rules of a project and the built-in kinds."""
    redactor = redaction_cache.rule_set_of(rules).redactor()
    by_name = {rule.name: rule for rule in rules if rule.kind != RedactionRule.Kind.EXCEPTION}
    matches = []
    for span in redactor.spans(text):
        line_begin = text.rfind("\n", 0, span.begin) + 1
        line = text.count("\n", 0, span.begin) + 1
        column, length = span.begin - line_begin + 1, span.end - span.begin
        matches.append(Match(line, column, length, span.kind, by_name.get(span.kind)))
    return TestResult(redactor.clean_text(text)[0], matches)


def _page(
    request: HttpRequest,
    entry: EnteredProject,
    *,
    form: RuleForm | None = None,
    tester: TesterForm | None = None,
    result: TestResult | None = None,
    status: int = 200,
) -> HttpResponse:
    context: dict[str, Any] = {
        **settings_context(entry),
        "rows": [_row(rule) for rule in redaction_changes.rules_of(entry.project)],
        "forms": {kind: form if form and form.kind == kind else form_class() for kind, form_class in FORMS.items()},
        "invalid": form.kind.value if form else "",
        "tester": tester or TesterForm(),
        "tested": result,
        "max_rules": redaction_changes.MAX_RULES,
    }
    return render(request, "accounts/redaction.html", context, status=status)


@sensitive_variables()
def _row(rule: RedactionRule) -> RuleRow:
    if rule.kind != RedactionRule.Kind.SECRET:
        return RuleRow(rule)
    try:
        return RuleRow(rule, placeholder(rule.name, redaction_cache.secret_of(rule)))
    except sealing.Unreadable:
        return RuleRow(rule, is_unreadable=True)
