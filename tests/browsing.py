"""A headless browser for the HTML pages that the package writes: Debian's Chromium, driven by Playwright."""

import concurrent.futures
import os
import pathlib
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest

NARROW, WIDE = 400, 1400  # pixels: a phone, a desktop


class Browser:
    """Chromium in a separate thread, because Playwright leaves a running event loop in the thread that it uses."""

    def __init__(self, thread: concurrent.futures.Executor, chromium: Any):
        self._thread, self._chromium = thread, chromium

    def visit(
        self,
        path: pathlib.Path,
        look: Callable[[Any], Any],
        *,
        width: int = WIDE,
        dark: bool = False,
        leaves: bool = False,
    ) -> Any:
        """Opens an HTML file, calls `look` on the page when everything is drawn, and returns the result of `look`.

        The page must fetch nothing, log no error or warning, and fit the width of the window. No button of a chart may
        upload the chart or cover the legend.

        Args:
          path: The HTML file.
          look: A function that inspects the Playwright Page.
          width: The width of the window in pixels.
          dark: Whether the system prefers dark colors.
          leaves: Whether `look` follows a link to another page.
        """
        return self._thread.submit(self._visit, path.absolute().as_uri(), look, width, dark, leaves).result()

    def _visit(self, url: str, look: Callable[[Any], Any], width: int, dark: bool, leaves: bool) -> Any:
        context = self._chromium.new_context(
            viewport={'width': width, 'height': 900}, color_scheme='dark' if dark else 'light', reduced_motion='reduce'
        )
        try:
            page, wrong, fetched = context.new_page(), [], []
            page.on('console', lambda line: wrong.append(line.text) if line.type in ('error', 'warning') else None)
            page.on('pageerror', lambda error: wrong.append(str(error)))
            page.on('request', lambda request: fetched.append(request.url))
            page.goto(url)
            page.wait_for_selector('html[data-ready]')
            found = look(page)
            assert not _overflowing(page)
            assert not _wrong_buttons(page)
        finally:
            context.close()
        assert not wrong, wrong
        own = (url, page.url if leaves else url)
        assert [other for other in fetched if other not in own and not other.startswith(('data:', 'blob:'))] == []
        return found


def _overflowing(page: Any) -> list[str]:
    """Elements that reach past the right edge of a page; wide content must scroll inside its own frame."""
    return page.evaluate("""() => {
      const width = document.documentElement.clientWidth;
      const framed = (e) => e && (getComputedStyle(e).overflowX !== 'visible' || framed(e.parentElement));
      const out = (e) => e.getBoundingClientRect().right > width + 1 && !framed(e);
      const found = [...document.body.querySelectorAll('*')].filter(out).map((e) => e.outerHTML.slice(0, 120));
      return document.documentElement.scrollWidth > width ? ['the page scrolls sideways', ...found] : found;
    }""")


def _wrong_buttons(page: Any) -> list[str]:
    """Buttons that send a chart to a server, and charts whose button bar covers the legend."""
    return page.evaluate("""() => [...document.querySelectorAll('.plot')].flatMap((plot) => {
      const words = (e) => [e.title, e.dataset.title, e.ariaLabel, e.dataset.attr].filter(Boolean).join(' ');
      const upload = [...plot.querySelectorAll('.modebar-btn')].map(words)
        .filter((title) => /share|cloud|upload|studio|edit|send/i.test(title));
      const box = (selector) => plot.querySelector(selector)?.getBoundingClientRect();
      const bar = box('.modebar'), legend = box('.legend .bg');
      const apart = !bar || !legend || bar.bottom <= legend.top || bar.top >= legend.bottom
        || bar.right <= legend.left || bar.left >= legend.right;
      return apart ? upload : [...upload, `buttons over the legend of ${plot.ariaLabel}`];
    })""")


def launch_browser() -> Iterator[Browser]:
    """Starts the browser and yields it; skips the test where no browser is installed."""
    api = pytest.importorskip('playwright.sync_api', reason='needs playwright to open a page in a browser')
    path = shutil.which('chromium') or shutil.which('chromium-browser') or shutil.which('google-chrome')
    if path is None:
        pytest.skip('needs chromium to open a page (Debian: apt-get install chromium)')
    # Chromium cannot use its sandbox as root; /dev/shm of a container may be too small for it.
    arguments = ['--no-sandbox', '--disable-dev-shm-usage'] if os.geteuid() == 0 else []
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        playwright = thread.submit(lambda: api.sync_playwright().start()).result()
        try:
            launch = lambda: playwright.chromium.launch(executable_path=path, args=arguments)  # noqa: E731
            chromium = thread.submit(launch).result()
            yield Browser(thread, chromium)
            thread.submit(chromium.close).result()
        finally:
            thread.submit(playwright.stop).result()
