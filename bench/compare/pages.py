"""The actions that the page of a run offers to people, as headless Chromium shows them."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from playwright.sync_api import Error, Page, sync_playwright

from bench.page_reader import chromium

#: What people can do with a run. Other buttons, such as filters and menus, are left out.
VERBS = re.compile(
    r"\b(accept|approve|cancel(lation)?|continue|delete|deny|edit|fork|kill|mark|pause|purge|reject|reset|resolve|restart"
    r"|restore|resume|retry|run again|send|signal|stop|terminate|update)\b",
    re.IGNORECASE,
)
LOADED_MS, SETTLED_MS, TRIES = 120_000, 3_000, 10


@dataclass(frozen=True)
class Login:
    """An account for pages that need one."""

    url: str
    username: str
    password: str


def actions(url: str, picture: Path, login: Login | None = None) -> list[str]:
    """Return the names of the visible buttons that act on a run, in their order, with those in its menus.

    `picture`: a file for a picture of the page.
    """
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=chromium(), args=arguments, timeout=LOADED_MS)
        try:
            page = browser.new_page(viewport={"width": 1600, "height": 1200})
            page.set_default_timeout(LOADED_MS)
            if login is not None:
                _sign_in(page, login)
            page.goto(url)
            for _ in range(TRIES):
                page.wait_for_timeout(SETTLED_MS)
                if found := [name for name in _names(page) if VERBS.search(name)]:
                    break
            page.screenshot(path=picture)
            return list(dict.fromkeys(found))
        finally:
            browser.close()


def _sign_in(page: Page, login: Login) -> None:
    page.goto(login.url)
    page.fill("input[name=login], input[name=username]", login.username)
    page.fill("input[name=password]", login.password)
    page.click("main button[type=submit]")
    page.wait_for_url(lambda url: "/login" not in url)


def _names(page: Page) -> list[str]:
    names = _visible(page, "button, a, [role=button], input[type=submit], summary")
    # Menus are opened one after the other; an open one shows its items.
    menus = page.locator("main [aria-haspopup]:visible, #content [aria-haspopup]:visible, [aria-haspopup=menu]:visible")
    for number in range(min(menus.count(), 10)):
        try:
            menus.nth(number).click(timeout=2_000)
            page.wait_for_timeout(1_500)
            names += _visible(page, "[role^=menuitem], [role=menu] button, [role=menu] a, [role=option]")
            page.keyboard.press("Escape")
        except Error:
            continue
    return names


def _visible(page: Page, selector: str) -> list[str]:
    # The text of a link in a drawing is None.
    texts = [text or "" for text in page.locator(selector).filter(visible=True).all_inner_texts()]
    return [" ".join(text.split()) for text in texts if text.strip() and len(text) <= 40]
