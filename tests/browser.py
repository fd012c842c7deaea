"""A real Chromium for the tests of pages, with a profile of its own; where there is none they are skipped by name."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
SWITCHES = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--window-size=1280,900",
)


@pytest.fixture(scope="session")
def browser(tmp_path_factory) -> Iterator[Any]:
    """A headless Chromium that keeps its console and its requests; one for all tests of the session."""
    if not (CHROMIUM and DRIVER):
        pytest.skip("chromium and chromedriver are not installed: no browser to open pages in")
    selenium = pytest.importorskip("selenium.webdriver", reason="selenium is not installed: nothing drives the browser")
    options = selenium.ChromeOptions()
    options.binary_location = CHROMIUM
    for switch in (*SWITCHES, f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(switch)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = selenium.Chrome(options, selenium.ChromeService(DRIVER))
    yield driver
    driver.quit()


def screen(driver: Any, width: int, height: int = 900, scheme: str = "light", motion: str = "reduce") -> None:
    """Give the page a screen of that width, a colour scheme, and a reader's wish about motion."""
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    wishes = {"prefers-color-scheme": scheme, "prefers-reduced-motion": motion}
    features = [{"name": name, "value": value} for name, value in wishes.items()]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def go(driver: Any, page: Path, view: str = "") -> None:
    """Open a file anew, with what the address keeps; what the logs held before is dropped."""
    driver.get("about:blank")
    for log in ("browser", "performance"):
        driver.get_log(log)
    driver.get(page.as_uri() + view)


def console(driver: Any) -> list[str]:
    """What the page's console has said since it was read last, warnings and errors only."""
    return [entry["message"] for entry in driver.get_log("browser") if entry["level"] in ("WARNING", "SEVERE")]


def requested(driver: Any) -> list[str]:
    """The addresses that pages have asked for since this was read last, `data:` left out."""
    messages = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    sent = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    return [url for url in sent if not url.startswith("data:")]


def until(driver: Any, condition: Callable[[], Any], seconds: float = 20) -> Any:
    """The first value of `condition` that is true; an element that is being replaced counts as not there yet."""
    from selenium.common.exceptions import NoSuchElementException, StaleElementReferenceException
    from selenium.webdriver.support.ui import WebDriverWait

    ignored = (NoSuchElementException, StaleElementReferenceException)
    return WebDriverWait(driver, seconds, 0.05, ignored).until(lambda _: condition())
