"""The console in a real browser: by keyboard, with a key, side by side, on a phone, in the dark, asking nobody else."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rails_ray.serving import local
from rails_ray.serving.http.single import SingleProcessServer, listening
from rails_ray.serving.local import LocalVersion
from rails_ray.storage.filesystem import Storage
from support.attributes import random_items, with_attributes
from support.browser import chromium, needs_browser
from support.examples import publish_here
from support.ports import free_port
from support.processes import wait_for

pytestmark = [needs_browser, pytest.mark.long]
KEY = "a-key-of-the-test-1"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as driver:
        yield driver


@pytest.fixture
def page(browser: Any, url: str) -> Any:
    browser.get(url)
    wait_for(lambda: "version v1" in found(browser, "#index").text)
    return browser


def found(page: Any, selector: str) -> Any:
    return page.find_element("css selector", selector)


def all_of(page: Any, selector: str) -> list[Any]:
    elements: list[Any] = page.find_elements("css selector", selector)
    return elements


def choose(page: Any, selector: str, value: str) -> None:
    from selenium.webdriver.support.ui import Select

    Select(found(page, selector)).select_by_value(value)


def search(page: Any, text: str) -> None:
    from selenium.webdriver import Keys

    query = found(page, "#query")
    query.clear()
    query.send_keys(text, Keys.ENTER)
    wait_for(lambda: found(page, 'section[data-side="a"]').is_displayed() or found(page, "#error").is_displayed())


def complaints(page: Any) -> list[str]:
    return [line["message"] for line in page.get_log("browser")]


def test_a_search_by_keyboard_shows_what_the_version_finds(page: Any, version: LocalVersion) -> None:
    assert page.switch_to.active_element == found(page, "#query")
    assert found(page, "#index").text == "version v1: 60 items in 2 shards"
    choose(page, 'fieldset[data-side="a"] [name="cutoff"]', "top_k")
    search(page, "red")
    [expected] = version.search(["red"], k=60, cutoff={"top_k": 60}).results
    names = [element.text for element in all_of(page, "li button span:nth-child(2)")]
    assert [name.split()[0] for name in names] == [str(item) for item in expected.items]
    assert [float(element.text) for element in all_of(page, "li .score")] == pytest.approx(expected.scores, abs=1e-4)
    assert len(all_of(page, "li.cut")) == 50
    facts = found(page, "section .facts").text
    assert "brute_force, top_k 10: 10 kept · proven exact · 60 of 60 items searched" in facts
    assert "10 kept" in found(page, "svg.curve").text
    assert found(page, "svg.curve").get_attribute("aria-label") == "Scores of the 60 best items; 10 are kept"
    assert "encode" in all_of(page, "section .facts")[1].text
    assert complaints(page) == []


def test_why_an_item_was_found(page: Any, version: LocalVersion) -> None:
    search(page, "red")
    first = found(page, "li button")
    item = first.find_element("css selector", "span:nth-child(2)").text.split()[0]
    first.click()
    wait_for(lambda: found(page, "#why").is_displayed())
    [own] = version.explain("red", [item]).items
    assert f"score {own.score:.4f}" in found(page, "#why-title").text
    gates, cosines = (
        [float(cell.text) for cell in table.find_elements("css selector", "td")] for table in all_of(page, "#why table")
    )
    assert gates == pytest.approx([value for row in own.gates for value in row], abs=1e-3)
    assert cosines == pytest.approx([value for row in own.cosines for value in row], abs=1e-3)
    found(page, "#why button").click()
    assert not found(page, "#why").is_displayed()


def test_two_ways_side_by_side(page: Any) -> None:
    found(page, "#beside").click()
    choose(page, 'fieldset[data-side="b"] [name="method"]', "two_pass")
    choose(page, 'fieldset[data-side="b"] [name="cutoff"]', "top_k")
    search(page, "red")
    wait_for(lambda: found(page, 'section[data-side="b"]').is_displayed())
    assert "brute_force" in found(page, 'section[data-side="a"] .facts').text
    assert "two_pass, top_k 10" in found(page, 'section[data-side="b"] .facts').text


def test_a_refusal_is_shown(page: Any) -> None:
    choose(page, 'fieldset[data-side="a"] [name="cutoff"]', "coverage")
    search(page, "red")
    wait_for(lambda: found(page, "#error").is_displayed())
    assert "calibrat" in found(page, "#error").text


def test_a_server_with_keys_asks_for_one(browser: Any, version: LocalVersion, tmp_path: Path) -> None:
    keys, port = tmp_path / "keys", free_port()
    keys.write_text(f"{KEY}\n")
    with listening(SingleProcessServer(version, str(keys)), port=port):
        browser.get(f"http://127.0.0.1:{port}")
        wait_for(lambda: "Authorization: Bearer KEY" in found(browser, "#index").text)
        field = found(browser, "#key")
        assert field.is_displayed()
        field.send_keys(KEY, "\t")
        wait_for(lambda: "version v1" in found(browser, "#index").text)
        search(browser, "red")
        assert all_of(browser, "li")
        assert KEY not in browser.page_source
    browser.get_log("browser")


def test_nothing_is_asked_of_anybody_else(page: Any, url: str) -> None:
    page.get_log("performance")
    page.get(url)
    wait_for(lambda: "version v1" in found(page, "#index").text)
    search(page, "red")
    events = [json.loads(line["message"])["message"] for line in page.get_log("performance")]
    asked = [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]
    assert len(asked) >= 5
    assert {one for one in asked if not one.startswith((url, "data:"))} == set()


def test_it_fits_a_phone_and_the_dark(page: Any, browser: Any) -> None:
    light = found(page, "body").value_of_css_property("background-color")
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": 360, "height": 740, "deviceScaleFactor": 2, "mobile": True}
    )
    browser.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    )
    try:
        search(page, "red")
        wide, shown = page.execute_script("return [document.documentElement.scrollWidth, window.innerWidth]")
        assert wide <= shown
        assert all(button.size["height"] >= 40 for button in all_of(page, "li button")[:5])
        assert found(page, "body").value_of_css_property("background-color") != light
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_a_filter_and_attributes_are_shown(browser: Any, tmp_path: Path) -> None:
    publish_here(tmp_path)
    items = random_items(60)
    with_attributes(Storage(str(tmp_path)), items)
    version, port = local.open(str(tmp_path)), free_port()
    with listening(SingleProcessServer(version), port=port):
        browser.get(f"http://127.0.0.1:{port}")
        wait_for(lambda: found(browser, "#filter-label").is_displayed())
        assert "price (float)" in found(browser, "#filter").get_attribute("placeholder")
        found(browser, "#filter").send_keys('{"price": {"$lt": 3}}')
        search(browser, "red")
        [expected] = version.search(["red"], k=60, cutoff={"top_k": 60}, filter={"price": {"$lt": 3}}).results
        names = [element.text.split()[0] for element in all_of(browser, "li button span:nth-child(2)")]
        assert names == [str(item) for item in expected.items]
        shown = [element.text for element in all_of(browser, "li .fields")]
        prices = [items[int(item.removeprefix("item-"))]["price"] for item in expected.items]
        assert all(f"price: {price:g}" in line for price, line in zip(prices, shown, strict=True))
        found(browser, "#filter").clear()
        found(browser, "#filter").send_keys('{"size": 3}')
        search(browser, "red")
        wait_for(lambda: "filter must name attributes of the version" in found(browser, "#error").text)
