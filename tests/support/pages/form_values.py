"""The values that a browser submits for an unchanged form."""

from __future__ import annotations

from tests.support.pages.parsed_page import Element, parse


def form_values(page: str, css_class: str) -> dict[str, str | list[str]]:
    """Return the values of the form with this class, without buttons. Ticked boxes are a list."""
    [form] = [element for element in parse(page).all(css_class) if element.tag == "form"]
    values: dict[str, str | list[str]] = {}
    for element in form.walk():
        name = element.attributes.get("name", "")
        if not name or element.tag == "button":
            continue
        if element.attributes.get("type") in ("checkbox", "radio"):
            if "checked" in element.attributes:
                values[name] = [*values.get(name, []), element.attributes.get("value", "on")]
        elif element.tag == "textarea":
            values[name] = element.text.removeprefix("\n")
        elif element.tag == "select":
            values[name] = _chosen(element)
        else:
            values[name] = element.attributes.get("value", "")
    return values


def _chosen(select: Element) -> str:
    options = [element for element in select.walk() if element.tag == "option"]
    chosen = [option for option in options if "selected" in option.attributes] or options[:1]
    return next((option.attributes.get("value", option.text) for option in chosen), "")
