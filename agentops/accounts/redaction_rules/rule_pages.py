"""The redaction page of a project's settings: its rules, forms that add and remove them, and a tester."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.debug import sensitive_post_parameters, sensitive_variables

from agentops.accounts.access import Action, EnteredProject, enter
from agentops.accounts.errors import InvalidRule
from agentops.accounts.models import RedactionRule
from agentops.accounts.redaction_rules import rule_cache, rule_changes, sealing
from agentops.accounts.redaction_rules.rule_forms import ALPHABET_NAMES, FORMS, RuleForm, TesterForm
from agentops.accounts.requests import principal_of
from agentops.accounts.settings_pages.page_parts import see_other, sentence
from agentops.base.http.methods import require_POST, require_safe
from agentops.base.redaction.redact import mark
from agentops.base.refusals import InvalidQuery

#: Maximum entries of a menu.
MAX_CHOICES = 200


@dataclass(frozen=True, slots=True)
class RuleRow:
    """A rule in the list."""

    rule: RedactionRule
    #: The mark that replaces a secret; empty for other kinds of rules.
    mark: str = ""
    #: Whether the secret cannot be decrypted, and so is not masked.
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
class Tested:
    """The result of a test: the masked text and its matches."""

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
    rule_changes.remove_rule(entry.project, name, actor=principal)
    messages.success(request, "Rule removed. What it masked in stored texts stays masked.")
    return see_other("redaction", entry.project.slug)


@require_POST
def set_model_input(request: HttpRequest, project: str) -> HttpResponse:
    """Mask what models receive, or not: `mask` is "yes" or "no"."""
    principal = principal_of(request)
    entry = enter(principal, project, Action.MANAGE)
    choice = request.POST.get("mask", "")
    if choice not in ("yes", "no"):
        raise InvalidQuery("mask must be yes or no")
    rule_changes.set_model_input_masking(entry.project, choice == "yes", actor=principal)
    messages.success(request, "Setting changed. It takes effect within seconds, for texts stored from then on.")
    return see_other("redaction", entry.project.slug)


@sensitive_post_parameters()
@require_POST
def test(request: HttpRequest, project: str) -> HttpResponse:
    """Show the page with a text masked. The text is neither stored nor logged, nor sent back unmasked."""
    entry = enter(principal_of(request), project, Action.MANAGE)
    form = TesterForm(request.POST)
    if not form.is_valid():
        return _page(request, entry, tester=form, status=422)
    rules = rule_changes.rules_of(entry.project)
    return _page(request, entry, tested=_test(form.cleaned_data["text"].replace("\r\n", "\n"), rules))


@sensitive_variables()
def _test(text: str, rules: list[RedactionRule]) -> Tested:
    redactor = rule_cache.rule_set_of(rules).redactor()
    by_name = {rule.name: rule for rule in rules if rule.kind != RedactionRule.Kind.EXCEPTION}
    matches = []
    for span in redactor.spans(text):
        line_begin = text.rfind("\n", 0, span.begin) + 1
        line = text.count("\n", 0, span.begin) + 1
        place = (line, span.begin - line_begin + 1, span.end - span.begin)
        matches.append(Match(*place, span.kind, by_name.get(span.kind)))
    return Tested(redactor.clean_text(text)[0], matches)


def _page(
    request: HttpRequest,
    entry: EnteredProject,
    *,
    form: RuleForm | None = None,
    tester: TesterForm | None = None,
    tested: Tested | None = None,
    status: int = 200,
) -> HttpResponse:
    context: dict[str, Any] = {
        "section": "settings",
        "project": entry.project,
        "projects": entry.visible.order_by("name", "pk")[:MAX_CHOICES],
        "may_manage": True,
        "rows": [_row(rule) for rule in rule_changes.rules_of(entry.project)],
        "forms": {kind: form if form and form.kind == kind else form_class() for kind, form_class in FORMS.items()},
        "invalid": form.kind.value if form else "",
        "tester": tester or TesterForm(),
        "tested": tested,
        "max_rules": rule_changes.MAX_RULES,
    }
    return render(request, "accounts/redaction.html", context, status=status)


@sensitive_variables()
def _row(rule: RedactionRule) -> RuleRow:
    if rule.kind != RedactionRule.Kind.SECRET:
        return RuleRow(rule)
    try:
        return RuleRow(rule, mark(rule.name, rule_cache.secret_of(rule)))
    except sealing.Unreadable:
        return RuleRow(rule, is_unreadable=True)
