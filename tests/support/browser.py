"""A real browser, driven from the tests: Debian's chromium over its debugging pipe.

No package is needed: commands and events are JSON, each ended by a zero byte, on two file
descriptors (3 to the browser, 4 from it).
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

PATIENCE = 60.0
"""Seconds until a browser that does not answer is given up; no test measures time with it."""

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)

needs_browser = pytest.mark.skipif(
    CHROMIUM is None, reason="pages are tried in a real browser, and there is no chromium here"
)

_FLAGS = (
    "--headless=new",
    "--remote-debugging-pipe",
    "--no-sandbox",  # containers seldom allow one; only our own files are opened
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-extensions",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
)


class Browser:
    """One browser with one tab."""

    def __init__(self, folder: Path) -> None:
        assert CHROMIUM is not None
        to_read, self._to = os.pipe()
        self._from, to_write = os.pipe()

        def as_three_and_four() -> None:
            # Away from 3 and 4 first: one of the two may be there already.
            read, write = (fcntl.fcntl(fd, fcntl.F_DUPFD, 10) for fd in (to_read, to_write))
            os.dup2(read, 3)
            os.dup2(write, 4)

        self._process = subprocess.Popen(
            [CHROMIUM, *_FLAGS, f"--user-data-dir={folder}", "about:blank"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            close_fds=False,  # Python's own are closed in any child
            preexec_fn=as_three_and_four,
            env={**os.environ, "HOME": str(folder)},
        )
        os.close(to_read)
        os.close(to_write)
        self._rest = b""
        self._number = 0
        self._session: str | None = None
        self._results: dict[int, dict[str, Any]] = {}
        self.events: list[dict[str, Any]] = []
        target = self.do("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.do("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log", "DOM", "Accessibility"):
            self.do(f"{domain}.enable")

    def close(self) -> None:
        os.close(self._to)
        os.close(self._from)
        self._process.terminate()
        self._process.wait(PATIENCE)

    # --- the protocol ----------------------------------------------------------------------

    def do(self, method: str, **params: Any) -> dict[str, Any]:
        """Have a command carried out, and wait for its result."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while self._number not in self._results:
            self._read(PATIENCE)
        answer = self._results.pop(self._number)
        assert "error" not in answer, f"{method}: {answer['error']}"
        result: dict[str, Any] = answer["result"]
        return result

    def _read(self, patience: float) -> None:
        ready, _, _ = select.select([self._from], [], [], patience)
        assert ready, "the browser does not answer"
        read = os.read(self._from, 1 << 20)
        assert read, "the browser is gone"
        *messages, self._rest = (self._rest + read).split(b"\0")
        for message in map(json.loads, messages):
            if "id" in message:
                self._results[message["id"]] = message
            else:
                self.events.append(message)

    def _wait(self, method: str) -> None:
        until = time.monotonic() + PATIENCE
        while not any(event["method"] == method for event in self.events):
            self._read(until - time.monotonic())

    # --- looking at a page -----------------------------------------------------------------

    def open(
        self,
        path: Path,
        *,
        width: int = 1100,
        height: int = 900,
        dark: bool = False,
        script: bool = True,
    ) -> None:
        """Open a file, and forget what the last one did."""
        self.do("Emulation.setScriptExecutionDisabled", value=not script)
        self.size(width, height)
        self.colours(dark)
        for url in ("about:blank", path.resolve().as_uri()):
            self.events.clear()
            self.do("Page.navigate", url=url)
            self._wait("Page.loadEventFired")
        self.settle()

    def size(self, width: int, height: int = 900) -> None:
        self.do(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=False,
        )  # fmt: skip

    def colours(self, dark: bool) -> None:
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.do("Emulation.setEmulatedMedia", features=[scheme])

    def settle(self) -> None:
        """Let the page do what it has put off until the next picture, such as fit a new width."""
        self.do("Page.captureScreenshot", format="jpeg", quality=1)

    def run(self, expression: str) -> Any:
        """The value of an expression, as JSON has it; a promise is waited for."""
        answer = self.do(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def text(self, selector: str) -> str:
        return str(self.run(f"document.querySelector({json.dumps(selector)}).textContent"))

    def focus(self, selector: str) -> None:
        self.run(f"document.querySelector({json.dumps(selector)}).focus()")

    def click(self, selector: str) -> None:
        x, y = self.run(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            "e.scrollIntoView({block: 'center'}); const r = e.getBoundingClientRect();"
            "return [r.x + r.width / 2, r.y + r.height / 2]; })()"
        )
        self.move(x, y)
        for kind in ("mousePressed", "mouseReleased"):
            self.do("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def move(self, x: float, y: float) -> None:
        self.do("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def press(self, *keys: str) -> None:
        """Keys by their names: Tab, Enter, ArrowRight, a letter."""
        codes = {
            "Tab": 9, "Enter": 13, "Escape": 27, " ": 32, "End": 35, "Home": 36,
            "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40,
        }  # fmt: skip
        for key in keys:
            common: dict[str, Any] = {"key": key, "windowsVirtualKeyCode": codes.get(key, 0)}
            typed = {"Enter": "\r", " ": " "}.get(key, key if len(key) == 1 else None)
            self.do(
                "Input.dispatchKeyEvent",
                type="keyDown",
                **common,
                **({"text": typed} if typed else {}),
            )
            self.do("Input.dispatchKeyEvent", type="keyUp", **common)

    # --- what it saw -----------------------------------------------------------------------

    def requests(self) -> list[str]:
        """Every address that the page asked for, whether it got it or not."""
        self.settle()
        sent = (e for e in self.events if e["method"] == "Network.requestWillBeSent")
        return [event["params"]["request"]["url"] for event in sent]

    def complaints(self) -> list[str]:
        """Errors and warnings of the console, exceptions, and breaches of the page's policy."""
        self.settle()
        found = []
        for event in self.events:
            params = event["params"]
            if event["method"] == "Runtime.exceptionThrown":
                found.append(
                    str(params["exceptionDetails"].get("exception", {}).get("description"))
                )
            elif event["method"] == "Log.entryAdded":
                found.append(params["entry"]["text"])
            elif event["method"] == "Runtime.consoleAPICalled" and params["type"] != "log":
                found.append(str([arg.get("value") for arg in params["args"]]))
            elif event["method"] == "Page.javascriptDialogOpening":
                found.append(f"dialog: {params['message']}")
        return found

    def screenshot(self, path: Path, *, whole: bool = True) -> Path:
        more: dict[str, Any] = {}
        if whole:
            size = self.do("Page.getLayoutMetrics")["cssContentSize"]
            more = {"captureBeyondViewport": True, "clip": {**size, "scale": 1}}
        made = self.do("Page.captureScreenshot", format="png", **more)
        path.write_bytes(base64.b64decode(made["data"]))
        return path

    def pdf(self) -> bytes:
        return base64.b64decode(self.do("Page.printToPDF", printBackground=True)["data"])

    def named(self) -> list[tuple[str, str]]:
        """Role and name of everything in the accessibility tree that has a role."""
        nodes = self.do("Accessibility.getFullAXTree")["nodes"]
        return [
            (node["role"]["value"], node.get("name", {}).get("value", ""))
            for node in nodes
            if not node.get("ignored") and "role" in node
        ]


CONTRAST = """
(() => {
  const parsed = (c) => (c.match(/[\\d.]+/g) || []).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((v) => v / 255)
    .map((v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (e) => {
    for (; e; e = e.parentElement) {
      const c = parsed(getComputedStyle(e).backgroundColor);
      if (c.length === 3 || c[3] > 0) return c;
    }
    return [255, 255, 255];
  };
  const found = [];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const e = walk.currentNode.parentElement, said = walk.currentNode.textContent.trim();
    if (!said || !e.checkVisibility() || ["SCRIPT", "STYLE", "title", "desc"].includes(e.tagName)) continue;
    const style = getComputedStyle(e);
    const ink = parsed(e instanceof SVGElement ? style.fill : style.color);
    const [a, b] = [light(ink), light(behind(e))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) found.push([said.slice(0, 40), ratio]);
  }
  return found;
})()
"""
"""Text that is seen and stands out from what is behind it by less than 4.5 to 1."""
