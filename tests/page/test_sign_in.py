"""How the key reaches the server, and stays out of the page."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.page.browser import goto
from tests.serving import RunningServer


@pytest.fixture
def locked(serve: Callable[..., RunningServer]) -> RunningServer:
    return serve(kernels=False)


@pytest.mark.slow
def test_the_printed_address_signs_in(page: Page, locked: RunningServer) -> None:
    """Opened with its token the page is there, and the token is nowhere that a script could read it."""
    goto(page, locked, f"?token={locked.token}#/system")
    expect(page.get_by_text("All is well")).to_be_visible()
    assert page.url == f"{locked.url}/#/system"
    seen = page.evaluate(
        "() => document.cookie + JSON.stringify(localStorage) + JSON.stringify(sessionStorage)"
    )
    assert locked.token not in seen


@pytest.mark.slow
def test_a_token_behind_the_hash_is_taken_out_of_the_address(page: Page, locked: RunningServer) -> None:
    goto(page, locked, f"#token={locked.token}")
    expect(page.get_by_role("heading", name="Topics")).to_be_visible()
    assert locked.token not in page.url


@pytest.mark.slow
def test_without_a_token_there_is_a_form(page: Page, locked: RunningServer) -> None:
    """A wrong token is told; the right one leads to where one wanted to go."""
    goto(page, locked, "#/system")
    field = page.get_by_label("Token or key")
    field.fill("wrong")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_have_text(re.compile("not known"))
    field.fill(locked.token or "")
    field.press("Enter")
    expect(page.get_by_text("All is well")).to_be_visible()
