"""A client of WebDriver, by the W3C's protocol: JSON over HTTP to a chromedriver that this module starts.

Does not know the page under test. Whatever the browser refuses is an exception with the browser's own words.
"""

import base64
import json
import socket
import subprocess
import time
import urllib.error
import urllib.request

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"


class Browser:
    """A headless Chromium with a profile of its own, which ends with this object."""

    def __init__(self, width=1400, height=900, log=None):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.base = f"http://127.0.0.1:{port}"
        self.driver = subprocess.Popen(
            ["chromedriver", f"--port={port}"], stdout=log or subprocess.DEVNULL, stderr=subprocess.STDOUT
        )
        self.session = None
        try:
            self._open(width, height)
        except BaseException:
            self.close()
            raise

    def _open(self, width, height):
        for _ in range(300):
            try:
                if self._ask("GET", "/status")["ready"]:
                    break
            except OSError:
                time.sleep(0.2)
        arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
                     "--no-first-run", "--force-color-profile=srgb", f"--window-size={width},{height}"]
        options = {
            "browserName": "chrome",
            "goog:chromeOptions": {"args": arguments},
            "goog:loggingPrefs": {"browser": "ALL"},
        }
        answer = self._ask("POST", "/session", {"capabilities": {"alwaysMatch": options}})
        self.session = f"/session/{answer['sessionId']}"
        self.scheme("light")

    def _ask(self, method, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.base + path, data, {"Content-Type": "application/json"}, method=method)
        # A proxy of the environment does not know this host.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=180) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            value = json.load(error)["value"]
            raise RuntimeError(f"{path}: {value['error']}: {value['message'].splitlines()[0]}") from None

    def _do(self, method, path, body=None):
        return self._ask(method, self.session + path, body)

    def cdp(self, command, parameters):
        """A command of Chromium's own protocol."""
        return self._do("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def go(self, url):
        self._do("POST", "/url", {"url": url})

    def run(self, script, *arguments):
        """The value that `script` returns, in the page."""
        return self._do("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def wait(self, what, script, *arguments, seconds=60):
        """Runs `script` until the value is true."""
        deadline = time.monotonic() + seconds
        while True:
            value = self.run(script, *arguments)
            if value:
                return value
            if time.monotonic() > deadline:
                raise AssertionError(f"the page does not show {what}")
            time.sleep(0.2)

    def element(self, selector):
        return self._do("POST", "/element", {"using": "css selector", "value": selector})[ELEMENT]

    def click(self, selector):
        self._do("POST", f"/element/{self.element(selector)}/click", {})

    def write(self, selector, text):
        element = self.element(selector)
        self._do("POST", f"/element/{element}/clear", {})
        if text:
            self._do("POST", f"/element/{element}/value", {"text": text})

    def log(self):
        """The messages of the console since the last call."""
        return self._do("POST", "/se/log", {"type": "browser"})

    def scheme(self, name):
        """What the user prefers: light or dark."""
        self.cdp("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": name}]})

    def screen(self, width, height, phone=False):
        self.cdp("Emulation.setDeviceMetricsOverride",
                 {"width": width, "height": height, "deviceScaleFactor": 2 if phone else 1, "mobile": phone})

    def picture(self, path, whole=True):
        """A picture of the page, as PNG; of the visible part only unless `whole`."""
        answer = self.cdp("Page.captureScreenshot", {"format": "png", "captureBeyondViewport": whole})
        with open(path, "wb") as file:
            file.write(base64.b64decode(answer["data"]))

    def close(self):
        try:
            if self.session:
                self._ask("DELETE", self.session)
        except (OSError, RuntimeError):
            pass
        self.driver.terminate()
        try:
            self.driver.wait(20)
        except subprocess.TimeoutExpired:
            self.driver.kill()
            self.driver.wait()
