"""The page at /docs, in a real browser: it is read, and functions are tried from it."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tests.integration.browser import chromium
from tests.integration.docs_page_app import MARKUP
from tests.integration.http_worker import http_worker
from tests.integration.prefix_proxy import below


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    target = "tests.integration.docs_page_app:apps"
    with http_worker(tmp_path_factory.mktemp("docs"), target=target) as url:
        yield url


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


class Reader:
    """Somebody who looks at the page, and what the page did meanwhile."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.errors: list[str] = []
        self.requests: list[str] = []
        self.dialogs: list[str] = []
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("dialog", self._dismiss)

    def _dismiss(self, dialog: object) -> None:
        self.dialogs.append(str(dialog))
        dialog.dismiss()  # type: ignore[attr-defined]

    def function(self, name: str) -> Locator:
        return self.page.locator(f"form[data-function='{name}']")


@pytest.fixture
def reader(browser: Browser, url: str) -> Iterator[Reader]:
    page = browser.new_page()
    reader = Reader(page)
    page.goto(url)
    yield reader
    page.close()
    assert (reader.errors, reader.dialogs) == ([], [])
    assert [each for each in reader.requests if not each.startswith((url, "data:"))] == []


def reply_of(form: Locator) -> object:
    """Return what the last request was answered with."""
    shown = form.locator(".reply pre")
    shown.wait_for()
    return json.loads(shown.inner_text())


def test_a_function_is_tried_and_its_reply_seen(reader: Reader, url: str) -> None:
    form = reader.function("shop/cart")

    expect(reader.page).to_have_url(f"{url}/docs")
    assert json.loads(form.locator("textarea").input_value()) == {"sku": "tea", "n": 2}
    form.locator("[name=key]").fill("a/b ü?")
    form.get_by_role("button", name="Call").click()
    expect(form.locator(".verdict")).to_have_text("200 OK")
    assert reply_of(form) == 2
    form.get_by_role("button", name="Read state").click()
    expect(form.locator(".reply pre")).to_contain_text("value")
    assert reply_of(form) == {"function": "shop/cart", "key": "a/b ü?", "value": 2}


def test_the_command_follows_what_is_typed(reader: Reader, url: str) -> None:
    form = reader.function("shop/cart")
    command = form.locator("[data-curl]")

    expect(command).to_have_text(
        f"curl {url}/functions/shop/cart/ada \\\n  -H 'Content-Type: application/json' \\\n"
        """  -d '{"sku":"tea","n":2}'"""
    )
    form.locator("[name=key]").fill("it's")
    form.locator("textarea").fill('"it\'s"')
    form.locator("summary").click()
    form.locator("[name=idempotency]").fill("order-17")
    form.locator("[name=mode]").select_option("send")
    expect(command).to_contain_text(f"'{url}/functions/shop/cart/it'\\''s?mode=send'")
    expect(command).to_contain_text("-H 'Idempotency-Key: order-17'")
    expect(command).to_contain_text("""-d '"it'\\''s"'""")


def test_what_is_wrong_is_shown(reader: Reader) -> None:
    form = reader.function("shop/cart")

    form.locator("textarea").fill("{")
    form.get_by_role("button", name="Call").click()
    expect(form.locator(".reply")).to_contain_text("The message is not JSON")
    form.locator("textarea").fill('{"sku": "tea", "n": 0}')
    form.get_by_role("button", name="Call").click()
    expect(form.locator(".verdict")).to_have_class("verdict bad")
    assert reply_of(form)["detail"] == "a cart takes one or more"  # type: ignore[index]


def test_a_message_can_be_sent_without_waiting_for_a_reply(reader: Reader) -> None:
    form = reader.function("shop/cart")

    form.locator("summary").click()
    form.locator("[name=mode]").select_option("send")
    form.locator("textarea").press("Control+Enter")
    expect(form.locator(".verdict")).to_have_text("202 Accepted")


def test_functions_without_a_key_or_a_message_are_tried(reader: Reader) -> None:
    price, visits = reader.function("shop/price"), reader.function("shop/visits")

    assert price.locator("[name=key]").count() == visits.locator("textarea").count() == 0
    price.get_by_role("button", name="Call").click()
    assert reply_of(price) == 2.5
    visits.get_by_role("button", name="Call").click()
    assert reply_of(visits) == 1


def test_an_egress_is_read(reader: Reader) -> None:
    cart, form = reader.function("shop/cart"), reader.page.locator("form[data-egress]")

    cart.locator("[name=key]").fill("eve")
    cart.get_by_role("button", name="Call").click()
    reply_of(cart)
    assert form.locator("[name=name]").input_value() == "added"
    form.get_by_role("button", name="Read").click()
    expect(form.locator(".reply pre")).to_contain_text('"eve"')
    form.get_by_role("button", name="List egresses").click()
    expect(form.locator(".reply pre")).to_contain_text('"declared": true')


def test_the_index_leads_to_every_function(reader: Reader) -> None:
    index = reader.page.locator("nav.sidebar")

    assert index.locator("h4").all_inner_texts() == ["evil", "shop", "Reference"]
    for name in ("cart", "price", "visits", "echo", "Every call", "Egress", "Worker", "Types"):
        index.get_by_role("link", name=name, exact=True).click()
        target = reader.page.evaluate("document.getElementById(location.hash.slice(1)) !== null")
        assert target, name
    expect(reader.page.locator("[data-status]")).to_have_text("ready")


def test_markup_in_docs_keys_and_replies_is_text(reader: Reader) -> None:
    form = reader.function("evil/echo")

    assert form.locator("textarea").input_value() == json.dumps("text")
    expect(reader.page.locator("[id='evil.echo'] .summary")).to_have_text(MARKUP)
    expect(reader.page.locator("[id='evil.echo'] .description")).to_contain_text(MARKUP)
    form.locator("[name=key]").fill(MARKUP)
    form.locator("textarea").fill(json.dumps(MARKUP))
    form.get_by_role("button", name="Call").click()
    assert reply_of(form) == MARKUP
    form.get_by_role("button", name="Read state").click()
    expect(form.locator(".reply pre")).to_contain_text("function")
    assert reply_of(form) == {"function": "evil/echo", "key": MARKUP, "value": MARKUP}
    assert reader.page.locator("img").count() == 0
    assert reader.page.locator("script").count() == 1


def test_it_works_behind_a_prefix(browser: Browser, url: str) -> None:
    with below("/team/sublet", url) as there:
        page = browser.new_page()
        reader = Reader(page)
        page.goto(f"{there}/")
        form = reader.function("shop/price")
        form.get_by_role("button", name="Call").click()

        assert reply_of(form) == 2.5
        expect(page).to_have_url(f"{there}/docs")
        expect(form.locator("[data-curl]")).to_contain_text(f"curl {there}/functions/shop/price")
        expect(page.locator("[data-status]")).to_have_text("ready")
        page.close()

    assert reader.errors == []
    assert all(each.startswith((there, "data:")) for each in reader.requests)


def test_without_scripts_it_can_be_read(browser: Browser, url: str) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{url}/docs")

    expect(page.locator("h1")).to_have_text("evil, shop")
    command = page.locator("form[data-function='shop/cart'] [data-curl]").inner_text()
    context.close()

    assert command.startswith(f"curl {url}/functions/shop/cart/ada ")


@pytest.mark.parametrize("width", [360, 800, 1440])
def test_it_fits_every_screen(browser: Browser, url: str, width: int) -> None:
    page = browser.new_page(viewport={"width": width, "height": 800})
    page.goto(f"{url}/docs")

    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.close()


def test_light_and_dark_follow_the_system(browser: Browser, url: str) -> None:
    seen = {}
    for scheme in ("light", "dark"):
        page = browser.new_page(color_scheme=scheme)  # type: ignore[arg-type]
        page.goto(f"{url}/docs")
        seen[scheme] = page.evaluate("getComputedStyle(document.body).backgroundColor")
        page.close()

    assert seen["light"] != seen["dark"]
