"""Lists of rules in forms: each rule is a row of fields. The server adds and removes rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from django.http import QueryDict

from agentops.base.redaction.masked_secrets import MaskedSecrets, masked
from runs.pages.forms import form_fields
from runs.pages.forms.form_fields import FieldType, FilledField, InvalidField, NotShowable

#: Maximum rows of a form; more than any list of rules.
MAX_ROWS = 200


@dataclass(frozen=True)
class RowGroup:
    """A list of rules in a form."""

    #: The key of the list, and prefix of its controls.
    name: str
    title: str
    help: str
    fields: Sequence[FieldType]
    #: Whether a single rule may appear without a list.
    may_be_single: bool = False

    @property
    def lead(self) -> str:
        """Return the required field of a rule. A rule given as a text has only this field."""
        return self.fields[0].name

    def name_of(self, number: int, field_name: str) -> str:
        """Return the name of a control."""
        return f"{self.name}-{number}-{field_name}"


@dataclass
class Row:
    """A rule as texts."""

    group: RowGroup
    number: int
    texts: Mapping[str, str]
    errors: dict[str, list[str]] = field(default_factory=dict)
    #: Whether the rule is stored, so that it can be removed.
    is_stored: bool = False

    @property
    def fields(self) -> list[FilledField]:
        """The fields for the template."""
        names = [(each, each.name, self.group.name_of(self.number, each.name)) for each in self.group.fields]
        return [FilledField(each, name, self.texts[key], self.errors.get(key, [])) for each, key, name in names]

    @property
    def remove_name(self) -> str:
        return self.group.name_of(self.number, "remove")

    @property
    def is_empty(self) -> bool:
        return not any(self.texts.values())

    def add_error(self, field_name: str, text: str) -> None:
        """Add an error to a field, or to the first one."""
        name = field_name if field_name in self.texts else self.group.lead
        self.errors.setdefault(name, []).append(text)


@dataclass
class RuleRows:
    """The rows of a list, and the resulting rules."""

    group: RowGroup
    rows: list[Row]
    #: The rules, and the row of each.
    items: list[Any] = field(default_factory=list)
    item_rows: list[Row] = field(default_factory=list)
    #: Errors that belong to no row.
    errors: list[str] = field(default_factory=list)

    @property
    def error_count(self) -> int:
        return len(self.errors) + sum(len(errors) for row in self.rows for errors in row.errors.values())

    @property
    def count_name(self) -> str:
        """Return the name of the control that holds the number of rows."""
        return f"{self.group.name}-rows"

    def add_row(self) -> None:
        """Add an empty row."""
        if len(self.rows) < MAX_ROWS:
            texts = dict.fromkeys((each.name for each in self.group.fields), "")
            self.rows.append(Row(self.group, len(self.rows), texts))

    def value(self, stored: object) -> Any:
        """Return the rules for the definition: the stored value if they are equal; None without rules."""
        if self.items == _items(stored, self.group):
            return stored
        if not self.items:
            return None
        return self.items[0] if self.group.may_be_single and len(self.items) == 1 else self.items

    def row_at(self, path: Sequence[str]) -> tuple[Row | None, str]:
        """Return the row and the field at a path within `value`, such as ["1", "match"] or ["match"]."""
        if path and path[0].isdigit():
            index = int(path[0])
            return (self.item_rows[index], "".join(path[1:2])) if index < len(self.item_rows) else (None, "")
        return (self.item_rows[0], "".join(path[:1])) if len(self.item_rows) == 1 else (None, "")


def shown_rows(group: RowGroup, stored: object) -> RuleRows:
    """Return the stored rules as rows. Raise NotShowable."""
    items = _items(masked(stored), group)
    rows = [Row(group, number, _texts(group, item), is_stored=True) for number, item in enumerate(items)]
    return RuleRows(group, rows, _items(stored, group), list(rows))


def read_rows(group: RowGroup, data: QueryDict, stored: object, secrets: MaskedSecrets) -> RuleRows:
    """Return the rows of a submitted form. A rule with unchanged texts keeps its stored value."""
    before = shown_rows(group, stored)
    result = RuleRows(group, [])
    count = data.get(result.count_name, "0")
    for number in range(min(int(count), MAX_ROWS) if count.isascii() and count.isdigit() and len(count) < 5 else 0):
        texts = {
            each.name: form_fields.clean_text(data.get(group.name_of(number, each.name), ""), each.kind)
            for each in group.fields
        }
        if data.get(group.name_of(number, "remove")):
            continue
        old = before.rows[number] if number < len(before.rows) else None
        row = Row(group, len(result.rows), texts, is_stored=old is not None)
        result.rows.append(row)
        if old is not None and dict(old.texts) == texts:
            result.items.append(before.items[number])
        elif row.is_empty:
            continue
        else:
            result.items.append(secrets.restore(_item(row)))
        result.item_rows.append(row)
    return result


def _items(stored: object, group: RowGroup) -> list[Any]:
    if stored is None:
        return []
    if isinstance(stored, list):
        return stored
    if group.may_be_single:
        return [stored]
    raise NotShowable(f"{group.name} is not a list")


def _texts(group: RowGroup, item: object) -> dict[str, str]:
    value = {group.lead: item} if isinstance(item, str) else item
    if not isinstance(value, Mapping) or value.keys() - {each.name for each in group.fields}:
        raise NotShowable(f"{group.name} has a rule that the form has no fields for")
    return {each.name: form_fields.text_of(value.get(each.name), each.kind) for each in group.fields}


def _item(row: Row) -> dict[str, Any]:
    item = {}
    for each in row.group.fields:
        if text := row.texts[each.name]:
            try:
                item[each.name] = form_fields.value_of(text, each.kind)
            except InvalidField as error:
                row.add_error(each.name, str(error))
    if row.group.lead not in item:
        # An omitted field would get its default, which the user has not chosen.
        item[row.group.lead] = ""
    return item
