"""The page in a real headless browser, against a real server.

`run.py test-browser` installs what is needed; here a missing browser is an error, never a skip.
"""

import shutil
import time
from collections.abc import Iterator

import httpx
import pytest
from playwright.sync_api import Page, expect, sync_playwright

from tests.exactness.targets import make_target
from tests.server.world import listening, running

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
QUIET = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
PHONE = {"width": 360, "height": 740}


@pytest.fixture(scope="session")
def browser() -> Iterator[object]:
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    assert found, f"no browser is installed: looked for {', '.join(BROWSERS)}"
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=found, args=QUIET)
        yield chromium
        chromium.close()


@pytest.fixture(scope="session")
def target(tmp_path_factory):
    return make_target("hybrid", tmp_path_factory.mktemp("hybrid"))


@pytest.fixture
def faults() -> Iterator[list[str]]:
    found: list[str] = []
    yield found
    assert found == []


def opened(browser, address, faults, **settings) -> Page:
    page = browser.new_page(**settings)
    page.set_default_timeout(30_000)
    expect.set_options(timeout=30_000)
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("console", lambda told: told.type == "error" and faults.append(told.text))
    page.on(
        "request", lambda sent: sent.url.startswith((address, "data:")) or faults.append(sent.url)
    )
    page.goto(address)
    expect(page.locator("#model")).to_contain_text("tiny, drafts by tested")
    return page


def test_a_completion_by_keyboard_with_and_without_speculation(browser, target, faults):
    with running(target.stage("log", 8), chat=False) as world, listening(world) as address:
        page = opened(browser, address, faults)
        expect(page.locator("#samples-row")).to_be_visible()
        page.fill("#prompt", "abcabcabcabc")
        page.fill("#tokens", "40")
        page.focus("#prompt")
        page.keyboard.press("Control+Enter")
        expect(page.locator("#state")).to_contain_text("done, seed")
        text = page.locator("#out").inner_text()
        body = {"prompt": "abcabcabcabc", "max_tokens": 40, "temperature": 0}
        answer = httpx.post(f"{address}/v1/completions", json=body, timeout=60).json()
        assert text == answer["choices"][0]["text"]
        kinds = {span.get_attribute("class") for span in page.locator("#out span").all()}
        assert {"ngram", "wrong", None} == kinds, "n-gram drafts, corrections and the target's own"
        kept = page.locator("#out span.ngram").count()
        assert kept == answer["timings"]["draft_n_accepted"] > 0
        assert "% of" in page.locator("#rate").inner_text()
        page.uncheck("#speculate")
        page.click("#run")
        expect(page.locator("#versus")).to_contain_text("same text")
        assert page.locator("#out").inner_text() == text
        assert page.locator("#out span.ngram").count() == 0
        page.close()


def test_a_chat_on_a_phone_in_the_dark(browser, target, faults):
    with running(target.stage("log", 8)) as world, listening(world) as address:
        page = opened(browser, address, faults, viewport=PHONE, color_scheme="dark")
        expect(page.locator("#samples-row")).to_be_hidden()
        for message in ("hello there", "and then?"):
            page.fill("#prompt", message)
            page.fill("#tokens", "8")
            page.click("#run")
            expect(page.locator("#state")).to_contain_text("done, seed")
            expect(page.locator("#prompt")).to_have_value("")
        shown = page.locator("#out").inner_text()
        assert "hello there" in shown
        assert "and then?" in shown
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
        dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
        page.emulate_media(color_scheme="light")
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") != dark
        small = [b.bounding_box()["height"] for b in page.locator("button:visible").all()]
        assert min(small) >= 44, "large enough for a finger"
        page.click("#clear")
        assert page.locator("#out").inner_text() == ""
        page.close()


def test_markup_stays_text_stopping_works_and_errors_are_told(browser, target, faults):
    config = {"api_key": "secret"}
    with running(target.stage("log", 8), config=config) as world, listening(world) as address:
        poll = world.stage.run_batch
        world.stage.run_batch = lambda: (time.sleep(0.05), poll())[
            1
        ]  # so that there is time to stop
        page = browser.new_page()
        page.goto(address)
        expect(page.locator("#state")).to_contain_text("no valid API key")
        page.click("summary")
        page.fill("#key", "secret")
        page.dispatch_event("#key", "change")
        expect(page.locator("#model")).to_contain_text("tiny")
        page.fill("#prompt", "<img src=x onerror=document.title='broken'>")
        page.fill("#tokens", "400")
        page.click("#run")
        expect(page.locator("#out span").nth(4)).to_be_attached()
        page.keyboard.press("Escape")
        expect(page.locator("#state")).to_have_text("stopped")
        assert page.locator("#out img").count() == 0
        assert page.title() == "Outrider"
        page.fill("#prompt", "x" * 600)
        page.click("#run")
        expect(page.locator("#state")).to_contain_text("the context 512")
        expect(page.locator("#run")).to_be_enabled()
        page.close()
