"""Lists of rules in forms: each rule is a row of fields. The server adds and removes rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from django import forms
from django.http import QueryDict

from agentops.base.redaction.json_values import MaskedSecrets, masked
from runs.pages.forms import form_fields
from runs.pages.forms.form_fields import NotShowable, ValueField

#: Maximum rows of a form; more than any list of rules.
MAX_ROWS = 200


@dataclass(frozen=True)
class RowGroup:
    """A list of rules in a form."""

    #: The key of the list in the definition, and the prefix of its controls.
    name: str
    title: str
    help: str
    fields: Mapping[str, ValueField]
    #: Whether the definition may have a single rule instead of a list.
    may_be_single: bool = False

    @property
    def lead(self) -> str:
        """Return the first field of a rule, which is required. A rule that is a text has only this field."""
        return next(iter(self.fields))


class RuleRowForm(forms.Form):
    """A rule."""

    def __init__(self, *args: Any, group: RowGroup, **options: Any) -> None:
        super().__init__(*args, **options)
        self.lead = group.lead
        self.fields |= deepcopy(dict(group.fields))

    @property
    def value_fields(self) -> list[forms.BoundField]:
        """The fields of the rule, for the template."""
        return [field for field in self if field.name != "DELETE"]

    @property
    def is_empty(self) -> bool:
        return not self.errors and all(self.cleaned_data.get(field.name) is None for field in self.value_fields)

    def rule(self) -> dict[str, Any]:
        """Return the rule. Its first field is never left out, because the user has not chosen its default."""
        values = {name: value for name, value in self.cleaned_data.items() if name != "DELETE" and value is not None}
        return {self.lead: "", **values}


class RuleRows(forms.formset_factory(RuleRowForm, extra=0, can_delete=True, max_num=MAX_ROWS, absolute_max=MAX_ROWS)):  # type: ignore[misc]
    """The rows of a list of rules, filled from the `stored` rules or with submitted values. Raises NotShowable.

    A rule that the user has not changed stays as it is stored, including its masked secrets. `adds`: append a new row.
    """

    def __init__(
        self, group: RowGroup, stored: Any, data: QueryDict | None = None, *, secrets: Any = None, adds: bool = False
    ) -> None:
        self.group, self.stored, self.secrets = group, stored, secrets or MaskedSecrets()
        self.stored_items = _items(stored, group)
        initial: list[Any] = [_texts(group, item) for item in _items(masked(stored), group)]
        sent = None
        if data is not None:
            rows = self._sent_rows(group, data)
            # The number of a row finds its stored rule, also if rows before it are removed.
            self.stored_items = [_at(self.stored_items, number) for number, _ in rows]
            initial = [_at(initial, number) or {} for number, _ in rows]
            sent = {f"{group.name}-{at}-{name}": text for at, (_, row) in enumerate(rows) for name, text in row.items()}
            count = min(len(rows) + adds, MAX_ROWS)
            sent |= {f"{group.name}-TOTAL_FORMS": str(count), f"{group.name}-INITIAL_FORMS": "0"}
        super().__init__(sent, prefix=group.name, initial=initial, form_kwargs={"group": group})

    @staticmethod
    def _sent_rows(group: RowGroup, data: QueryDict) -> list[tuple[int, dict[str, str]]]:
        """Return the numbers and the texts of the submitted rows, without rows that the user removes."""
        count = data.get(f"{group.name}-TOTAL_FORMS", "0")
        numbers = range(min(int(count), MAX_ROWS) if count.isascii() and count.isdigit() and len(count) < 5 else 0)
        return [
            (number, {name: data.get(f"{group.name}-{number}-{name}", "") for name in group.fields})
            for number in numbers
            if not data.get(f"{group.name}-{number}-DELETE")
        ]

    @cached_property
    def items(self) -> list[tuple[RuleRowForm, Any]]:
        """The rows that are not empty, each with its rule: the stored rule if its texts are unchanged."""
        self.full_clean()
        items = []
        for at, row in enumerate(self.forms):
            stored = _at(self.stored_items, at)
            if stored is not None and not row.has_changed():
                items.append((row, stored))
            elif not row.is_empty:
                items.append((row, self.secrets.restore(row.rule())))
        return items

    @property
    def rules(self) -> list[Any]:
        return [rule for _, rule in self.items] if self.is_bound else self.stored_items

    @property
    def value(self) -> Any:
        """The value for the definition: the stored one if the rules are equal; None without rules."""
        if self.rules == _items(self.stored, self.group):
            return self.stored
        if not self.rules:
            return None
        return self.rules[0] if self.group.may_be_single and len(self.rules) == 1 else self.rules

    def add_problem(self, path: Sequence[str], text: str) -> None:
        """Add an error to the field at a path within `value`, such as ["1", "match"] or ["match"]."""
        is_numbered = bool(path) and path[0].isdigit()
        at = int(path[0]) if is_numbered else 0
        if at >= len(self.items) or not (is_numbered or len(self.items) == 1):
            self.non_form_errors().append(text)
            return
        row, name = self.items[at][0], "".join(path[1:2] if is_numbered else path[:1])
        row.add_error(name if name in self.group.fields else self.group.lead, text)


def _items(stored: object, group: RowGroup) -> list[Any]:
    """Return the rules of a stored value. Raises NotShowable."""
    if stored is None:
        return []
    if isinstance(stored, list):
        return stored
    if group.may_be_single:
        return [stored]
    raise NotShowable(f"{group.name} is not a list")


def _texts(group: RowGroup, item: object) -> dict[str, str]:
    """Return the texts of the fields of a rule. Raises NotShowable."""
    value = {group.lead: item} if isinstance(item, str) else item
    if not isinstance(value, Mapping) or value.keys() - group.fields.keys():
        raise NotShowable(f"{group.name} has a rule that the form has no fields for")
    return {name: form_fields.text_of(value.get(name), field.kind) for name, field in group.fields.items()}


def _at(items: Sequence[Any], number: int) -> Any:
    return items[number] if number < len(items) else None
