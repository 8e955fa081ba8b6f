#!/usr/bin/env python3
"""Opens the status page of a running daemon in a headless Chromium, compares every figure with the API, and takes pictures.

Usage: check.py URL TOKEN-FILE DIRECTORY

DIRECTORY is shared with the machine of the daemon, where `guest` looks for files: `load` names devices to be used until the file is
gone; `damage` names a device of whose data a bit is to be damaged in the cache. Pictures go to DIRECTORY as well.
"""

import json
import os
import signal
import sys
import time
import urllib.request

import drawn
import expected
import metrics
from webdriver import Browser

URL, TOKEN_FILE, DIRECTORY = sys.argv[1:]
TOKEN = open(TOKEN_FILE).read().strip()
MANY = 2000
passed = 0

# All that the page shows, with the two answers behind it. Arguments: none.
COLLECT = """
const of = (node) => ({value: node.dataset.value, text: node.textContent});
const cells = (row, from) => [...row.children].slice(from).map((cell) => of(cell.querySelector('[data-value]') || cell));
const charts = (id) => [...document.querySelectorAll(id + ' figure')].filter((box) => box.querySelector('rect')).map((box) => ({
  bars: [...box.querySelectorAll('rect')].map((bar) => Number(bar.dataset.value)),
  figures: [...box.querySelectorAll('span[data-value]')].map(of),
}));
const rows = (id, from) => [...document.querySelectorAll(id + ' tr')].map((row) => cells(row, from));
return {
  shown: window.glidefs.shown(),
  figures: Object.fromEntries([...document.querySelectorAll('[data-figure]')].map((node) => [node.dataset.figure, of(node)])),
  rows: [...document.querySelectorAll('#rows tr')].map((row) => ({name: row.dataset.export, cells: cells(row, 0).slice(0, -1)})),
  store: rows('#store-rows', 1), workers: rows('#worker-rows', 1), detail: rows('#detail-rows', 1),
  latency: charts('#latency'), detailLatency: charts('#detail-latency'),
  warnings: [...document.querySelectorAll('#warning-list li')].map((item) => item.textContent),
  range: document.getElementById('range').textContent,
};
"""


def check(what, holds, said=""):
    global passed
    if not holds:
        raise SystemExit(f"not so: {what}: {said}")
    passed += 1
    print(f"ok  {what}", flush=True)


def answer(path, body=None):
    request = urllib.request.Request(URL + path, None if body is None else json.dumps(body).encode(),
                                     {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"})
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=120) as answered:
        return answered.read().decode()


def api(path, body=None):
    return json.loads(answer(path, body))


def leave(name, text=""):
    """Makes a file that the daemon's machine looks for, whole from its first moment on."""
    path = os.path.join(DIRECTORY, name)
    with open(path + ".new", "w") as file:
        file.write(text)
    os.rename(path + ".new", path)


def same(found, kind, number):
    """Whether a figure of the page is the number, and its text the number in short."""
    if number is None:
        return found["value"] == "" and found["text"] == "–"
    if kind == "text":
        return found["value"] == number and found["text"].startswith(number)
    value = float(found["value"])
    # The page adds up in another order.
    return abs(value - number) <= 1e-9 * max(1.0, abs(number)) and found["text"] == expected.text(kind, value if kind != "whole" else int(value))


class Differences(list):
    def note(self, where, found, wanted):
        if not same(found, *wanted):
            self.append(f"{where}: {found} instead of {wanted}")

    def lines(self, where, found, wanted):
        if len(found) != len(wanted):
            return self.append(f"{where}: {len(found)} rows instead of {len(wanted)}")
        for i, (cells, figures) in enumerate(zip(found, wanted)):
            for j, (cell, figure) in enumerate(zip(cells, figures, strict=True)):
                self.note(f"{where} {i},{j}", cell, figure)

    def histogram(self, where, found, buckets, nanos, bounds):
        bars, figures = expected.histogram(buckets, nanos, bounds)
        if found["bars"] != bars:
            self.append(f"{where}: {found['bars']} instead of {bars}")
        self.lines(where, [found["figures"]], [figures])


def compare(browser, what):
    """Stops the page, compares all that it shows with the answers behind it, and goes on. Returns the figures compared and all found."""
    browser.run("if (!window.glidefs.shown().paused) document.getElementById('pause').click()")
    found = browser.run(COLLECT)
    shown, wrong = found["shown"], Differences()
    before, now, bounds = shown["before"], shown["now"], shown["now"]["latency_bounds_nanoseconds"]
    figures, rows, did = expected.page(before, now)
    if set(figures) != set(found["figures"]):
        wrong.append(f"figures: {set(figures) ^ set(found['figures'])}")
    for name, wanted in figures.items():
        wrong.note(name, found["figures"][name], wanted)
    for line in found["rows"]:
        wrong.lines(line["name"], [line["cells"]], [rows[line["name"]]])
    if now["exports"] and not found["rows"]:
        wrong.append("the table is empty")
    wrong.lines("store", found["store"], expected.store_rows(before, now))
    wrong.lines("workers", found["workers"], expected.worker_rows(now))
    end = now["uptime_nanoseconds"] / 1e9
    recent = [point for point in shown["history"] if point.get("latency") and end - point["time"] + point["seconds"] <= 60]
    # The sums of a minute are those of the page's own points, the newest of which is the difference of the two answers.
    for kind in expected.TIMED:
        grown = [sum(of) for of in zip([0] * (len(bounds) + 1), *(one[kind]["latency"] for one in did))]
        if shown["history"][-1]["latency"][kind] != grown:
            wrong.append(f"the newest point of {kind}: {shown['history'][-1]['latency'][kind]} instead of {grown}")
    for kind, chart in zip(expected.TIMED, found["latency"], strict=True):
        buckets = [sum(of) for of in zip([0] * (len(bounds) + 1), *(point["latency"][kind] for point in recent))]
        wrong.histogram(f"latency {kind}", chart, buckets, sum(point["nanos"][kind] for point in recent), bounds)
    selected = next((e for e in now["exports"] if e["name"] == shown["selected"] and "io" in e), None)
    if selected:
        wrong.lines("detail", found["detail"], expected.detail_rows(selected))
        for kind, chart in zip(expected.TIMED, found["detailLatency"], strict=True):
            of = selected["io"][kind]
            latency = of.get("latency", [])
            wrong.histogram(f"detail {kind}", chart, latency + [0] * (len(bounds) + 1 - len(latency)), of.get("latency_nanoseconds", 0), bounds)
    differences, charts = drawn.differences(browser.run(drawn.COLLECT), shown)
    wrong += differences
    compared = charts + len(figures) + sum(len(line["cells"]) for line in found["rows"]) + 5 * len(found["store"]) + 3 * len(found["workers"])
    compared += sum(len(chart["bars"]) + 4 for chart in found["latency"] + (found["detailLatency"] if selected else [])) + (16 if selected else 0)
    check(f"{what}: {compared} figures are those of the API's answers", not wrong, "\n".join(wrong[:20]))
    browser.run("if (window.glidefs.shown().paused) document.getElementById('pause').click()")
    return found


def picture(browser, name, whole=True):
    browser.picture(os.path.join(DIRECTORY, name + ".png"), whole)


def newer(browser, what="the next answer"):
    """Waits until the page has two answers newer than now."""
    last = api("/v1/top")["uptime_nanoseconds"]
    browser.wait(what, "const s = window.glidefs.shown(); return s.before && s.before.uptime_nanoseconds > arguments[0]", last, seconds=180)


def token(browser):
    browser.go(URL + "/")
    browser.wait("the question for the token", "return !document.getElementById('ask').hidden")
    check("without the token the page shows nothing of the daemon",
          browser.run("return document.getElementById('main').hidden && window.glidefs.shown().now === null"))
    picture(browser, "token")
    browser.write("#token", "not-the-token-of-this-daemon")
    browser.click("#ask button")
    browser.wait("the refusal", "return document.getElementById('why').textContent.includes('does not take')")
    check("a wrong token is refused, and forgotten", browser.run("return sessionStorage.length") == 0)
    browser.write("#token", TOKEN)
    browser.click("#ask button")
    browser.wait("the figures", "return !document.getElementById('main').hidden")
    check("the token is in the tab's memory and nowhere else",
          browser.run("return [sessionStorage.length, localStorage.length, document.cookie, location.href]") == [1, 0, "", URL + "/"])
    browser.go(URL + "/")
    browser.wait("the figures again", "return !document.getElementById('main').hidden")
    check("the tab keeps the token when it is loaded again", True)


def policy(browser):
    names = browser.run("return performance.getEntriesByType('resource').map((one) => one.name)")
    check("the page fetches from this daemon only", all(name.startswith((URL, "data:")) for name in names), names)
    blocked = browser.run("""
        window.seen = [];
        document.addEventListener('securitypolicyviolation', (event) => window.seen.push(event.effectiveDirective));
        const script = document.createElement('script');
        script.textContent = 'window.ran = true';
        document.body.append(script);
        const style = document.createElement('style');
        style.textContent = 'body { display: none }';
        document.body.append(style);
        fetch('http://127.0.0.1:1/').catch(() => {});
        return window.ran === true || getComputedStyle(document.body).display === 'none'""")
    check("the policy stops inline scripts and styles", not blocked)
    seen = browser.wait("the violations", "return window.seen.length >= 3 && window.seen")
    check("the policy stops requests to other places", sorted(seen) == ["connect-src", "script-src-elem", "style-src-elem"], seen)
    # What this check did itself, and the two answers before the token, are in the console; nothing else may be.
    browser.log()


def load(browser):
    names = ["db-main", "mail-spool", "web-7"]
    devices = [api("/v1/exports", {"name": name, "size": "288MiB"})["device"] for name in names]
    leave("load", "\n".join(devices) + "\n")
    browser.wait("requests of three exports", """
        const s = window.glidefs.shown();
        return s.now.exports.filter((one) => one.io && one.io.write.operations > 0).length === 3""", seconds=240)
    browser.click('#rows tr[data-export="db-main"] button')
    # A line needs some points.
    browser.wait("a history", "return window.glidefs.shown().history.length > 12", seconds=240)
    found = compare(browser, "three exports under load")
    check("figures under load are not zero", all(float(found["figures"][name]["value"]) > 0 for name in ["read.ops", "write.ops", "flush.ops", "read.bytes", "write.bytes"]))
    picture(browser, "load")
    browser.scheme("dark")
    picture(browser, "dark")
    browser.scheme("light")
    browser.screen(390, 844, phone=True)
    check("the page is no wider than a phone", browser.run("return document.documentElement.scrollWidth") <= 390)
    picture(browser, "phone", whole=False)
    picture(browser, "phone-whole")
    browser.screen(1400, 900)


def top():
    """`glidefs top` beside the same load."""
    leave("capture")
    while os.path.exists(os.path.join(DIRECTORY, "capture")):
        time.sleep(0.5)
    read = lambda name: open(os.path.join(DIRECTORY, name)).read()
    lines = read("top.txt").splitlines()
    names = ["db-main", "mail-spool", "web-7"]
    check("glidefs top has each export in a line of 80 columns",
          len(lines) <= 24 and all(len(line) <= 80 for line in lines) and all(any(line.strip().startswith(name) for line in lines) for name in names), read("top.txt"))
    check("glidefs top --once has each export", all(name in read("top-once.txt") for name in names), read("top-once.txt"))
    sample = json.loads(read("top.json"))
    check("glidefs top --json has rates, and those of the host are the sums",
          all(one["iops"] > 0 for one in sample["exports"])
          and abs(sample["host"]["read_bytes"] - sum(one["read_bytes"] for one in sample["exports"])) < 1, sample)


def rest(browser):
    """After the load, counters stand still: those of the page are those of a fresh answer."""
    os.remove(os.path.join(DIRECTORY, "load"))
    while not os.path.exists(os.path.join(DIRECTORY, "unloaded")):
        time.sleep(0.5)
    newer(browser)
    found = compare(browser, "after the load")
    fresh = api("/v1/top")
    counters = lambda top: {export["name"]: export.get("io") for export in top["exports"]}
    check("counters on the page are those of a fresh answer", counters(found["shown"]["now"]) == counters(fresh))
    wrong, compared = metrics.differences(api("/v1/top"), answer("/metrics"))
    check(f"{compared} figures of /v1/top are those of /metrics", not wrong, "\n".join(wrong[:20]))
    check("rates are zero again", float(found["figures"]["write.ops"]["value"]) == 0)
    browser.click("#close")


def warning(browser):
    leave("damage", api("/v1/exports/web-7")["device"])
    browser.wait("a warning", "return document.querySelectorAll('#warning-list li').length > 0", seconds=120)
    found = compare(browser, "with a warning")
    check("the warning about damaged data is there", len(found["warnings"]) == 1 and "damaged" in found["warnings"][0], found["warnings"])
    check("glidefs status has the warning", api("/v1/status")["warnings"] == found["warnings"], found["warnings"])
    check("the title counts warnings", browser.run("return document.title").startswith("(1)"))
    picture(browser, "warning")


def many(browser):
    names = [f"vm-{number:04}" for number in range(MANY)]
    # In the machine: a port that QEMU forwards has a queue of one connection.
    leave("create", "\n".join(names))
    browser.wait("all exports", "return window.glidefs.shown().now.exports.length >= arguments[0]", MANY, seconds=240)
    found = compare(browser, f"{MANY} exports, the first page")
    check("a page has fifty rows", len(found["rows"]) == 50 and found["range"] == f"1–50 of {MANY + 3}", found["range"])
    picture(browser, "exports-2000")
    browser.run("document.querySelectorAll('#heads button')[0].click()")
    found = compare(browser, "sorted by name")
    wanted = sorted(export["name"] for export in found["shown"]["now"]["exports"])[:50]
    check("rows are in the order of names", [line["name"] for line in found["rows"]] == wanted)
    browser.run("document.querySelectorAll('#heads button')[0].click()")
    browser.click("#next")
    found = compare(browser, "the other way round, the second page")
    wanted = sorted((export["name"] for export in found["shown"]["now"]["exports"]), reverse=True)[50:100]
    check("rows are in the opposite order", [line["name"] for line in found["rows"]] == wanted)
    browser.write("#find", "vm-17")
    found = compare(browser, "a search")
    check("a search finds names with the word", found["range"] == "1–50 of 100" and all("vm-17" in line["name"] for line in found["rows"]), found["range"])
    browser.write("#find", "no such export")
    check("a search without a match says so", browser.run("return !document.getElementById('none').hidden"))


def main():
    # The browser ends with this script, however this script ends.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    with open(os.path.join(DIRECTORY, "chromedriver.log"), "w") as log:
        browser = Browser(log=log)
        try:
            token(browser)
            policy(browser)
            newer(browser)
            compare(browser, "no exports")
            picture(browser, "empty")
            load(browser)
            top()
            rest(browser)
            warning(browser)
            many(browser)
            said = [line["message"] for line in browser.log() if line["level"] == "SEVERE"]
            check("the console has no error", not said, said)
            browser.click("#forget")
            check("a forgotten token is gone", browser.run("return sessionStorage.length === 0 && window.glidefs.shown().now === null"))
            browser.write("#token", TOKEN)
            browser.click("#ask button")
            browser.wait("the figures", "return !document.getElementById('main').hidden")
            browser.run("document.getElementById('pause').click(); document.getElementById('forget').click()")
            browser.write("#token", TOKEN)
            browser.click("#ask button")
            browser.wait("the figures after a pause", "return !document.getElementById('main').hidden")
            check("a token counts also when the page was paused before the one before was forgotten", True)
        except (AssertionError, RuntimeError, SystemExit):
            picture(browser, "failed")
            raise
        finally:
            browser.close()
    print(f"page-test: {passed} passed, 0 failed; pictures in {DIRECTORY}")


main()
