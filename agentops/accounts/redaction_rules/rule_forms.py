"""The forms of the redaction page. The rules themselves are checked by rule_changes."""

from __future__ import annotations

from typing import Any

from django import forms

from agentops.accounts.audit import Actor
from agentops.accounts.models import Project, RedactionRule
from agentops.accounts.redaction_rules import rule_changes
from agentops.base.redaction.kinds import ALWAYS_MASKED, BUILT_IN_KINDS
from agentops.base.redaction.token_formats import ALPHABETS

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

    def add_rule(self, project: Project, actor: Actor) -> None:
        """Add the rule of a valid form. Raise InvalidRule."""
        raise NotImplementedError


class SecretForm(RuleForm):
    """A named secret."""

    kind = RedactionRule.Kind.SECRET
    name = forms.CharField(max_length=32)
    secret = forms.CharField(max_length=rule_changes.MAX_SECRET)

    def add_rule(self, project: Project, actor: Actor) -> None:
        rule_changes.add_secret(project, self.cleaned_data["name"], self.cleaned_data["secret"], actor=actor)


class FormatForm(RuleForm):
    """A format of tokens."""

    kind = RedactionRule.Kind.FORMAT
    name = forms.CharField(max_length=32)
    token_prefix = forms.CharField(max_length=rule_changes.MAX_PREFIX)
    alphabet = forms.ChoiceField(choices=list(ALPHABET_NAMES.items()), initial="alnum")
    least = forms.IntegerField(initial=16, min_value=rule_changes.MIN_LENGTH, max_value=rule_changes.MAX_LENGTH)
    most = forms.IntegerField(initial=128, min_value=rule_changes.MIN_LENGTH, max_value=rule_changes.MAX_LENGTH)

    def add_rule(self, project: Project, actor: Actor) -> None:
        values: dict[str, Any] = dict(self.cleaned_data)
        name, prefix = values.pop("name"), values.pop("token_prefix")
        rule_changes.add_format(project, name, prefix, **values, actor=actor)


class ExceptionForm(RuleForm):
    """A built-in kind that is not masked."""

    kind = RedactionRule.Kind.EXCEPTION
    masked_kind = forms.ChoiceField(choices=[(each, each) for each in sorted(BUILT_IN_KINDS - ALWAYS_MASKED)])

    def add_rule(self, project: Project, actor: Actor) -> None:
        rule_changes.add_exception(project, self.cleaned_data["masked_kind"], actor=actor)


class TesterForm(forms.Form):
    """A text to test the rules with."""

    text = forms.CharField(max_length=MAX_TEXT, strip=False, error_messages={"required": "Enter a text."})


FORMS: dict[str, type[RuleForm]] = {form.kind.value: form for form in (SecretForm, FormatForm, ExceptionForm)}
