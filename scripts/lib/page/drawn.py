"""What the status page must draw and write of an answer of /v1/top and of the history that the page keeps: computed here once more."""

import re

import expected

# A chart begins with the first point, but is never narrower than the first of these, nor wider than the second.
SPAN_SECONDS = (60, 300)
# Figures of one export's points, in the order in which the page keeps them.
FIELDS = ["ops", "reads", "writes", "read_bytes", "write_bytes", "p99"]

# All that the page draws. Arguments: none.
COLLECT = """
const text = (id) => document.getElementById(id).textContent;
const paths = (svg) => [...svg.querySelectorAll('path')].map((path) => path.getAttribute('d'));
const bars = (svg) => [...svg.querySelectorAll('rect')].map((bar) => [Number(bar.getAttribute('x')), Number(bar.getAttribute('width'))]);
const all = (selector, of) => [...document.querySelectorAll(selector)].map(of);
const shown = window.glidefs.shown();
const ids = Object.fromEntries(shown.now.exports.filter((one) => one.io).map((one) => [one.name, one.io.id]));
return {
  ops: {paths: paths(document.getElementById('ops-chart')), max: text('ops-max')},
  bytes: {paths: paths(document.getElementById('bytes-chart')), max: text('bytes-max')},
  detail: all('#detail-charts figure', (box) => ({paths: paths(box.querySelector('svg')), max: box.querySelector('.max').textContent})),
  sparks: Object.fromEntries(all('#rows tr', (row) => [row.dataset.export, paths(row.querySelector('.spark'))])),
  points: Object.fromEntries(Object.entries(ids).map(([name, id]) => [name, window.glidefs.points(id)])),
  cache: bars(document.getElementById('cache-bar')),
  workers: all('#worker-rows svg', bars),
  warnings: all('#warning-list li', (item) => item.textContent),
  waits: text('detail-waits'), heading: text('h-detail'), state: text('state'),
};
"""


def vertices(path):
    """The points of a path, as pairs of numbers."""
    numbers = [float(number) for number in re.findall(r"-?[0-9.]+", path)]
    return list(zip(numbers[::2], numbers[1::2]))


def is_known(value):
    # Numbers that are none come as null.
    return value is not None and value == value


def chart(lines, end, width, height):
    """The points of each line, and the highest value. A line is a list of times and values."""
    first = min([end] + [line[0][0] for line in lines if line])
    span = max(SPAN_SECONDS[0], min(SPAN_SECONDS[1], end - first))
    highest = max([0] + [value for line in lines for _, value in line if is_known(value)])
    drawn = []
    for line in lines:
        points = [(width * (1 - (end - time) / span), height - 1 - (height - 2) * value / (highest or 1)) for time, value in line if is_known(value)]
        drawn.append([point for point in points if point[0] >= 0] or [(0, 0)])
    return drawn, highest


def is_drawn(paths, wanted):
    """Whether the paths have the wanted points, to a tenth."""
    found = [vertices(path) for path in paths]
    return len(found) == len(wanted) and all(
        len(one) == len(other) and all(abs(a - c) <= 0.11 and abs(b - d) <= 0.11 for (a, b), (c, d) in zip(one, other))
        for one, other in zip(found, wanted)
    )


def stacked(shares):
    """Beginning and width of each part of a bar, in percent."""
    parts, x = [], 0
    for share in shares:
        parts.append((x, max(0, min(100 - x, share * 100))))
        x += share * 100
    return parts


def waits(export):
    names = [("limits", "limit_wait_nanoseconds"), ("memory of the index", "index_wait_nanoseconds"), ("log space", "log_wait_nanoseconds")]
    return "Waited since the start: " + ", ".join(f"for {name} {expected.text('nanos', export['io'].get(field, 0))}" for name, field in names)


def differences(found, shown):
    """What is drawn otherwise than the answers and the history of the page say, and how many figures were compared."""
    now, wrong = shown["now"], []
    end, history, compared = now["uptime_nanoseconds"] / 1e9, shown["history"], 0

    def differs(where, is_same, said):
        nonlocal compared
        compared += 1
        if not is_same:
            wrong.append(f"{where}: {said}")

    def lines(where, drawn, wanted, width, height, kind=None):
        points, highest = chart(wanted, end, width, height)
        differs(where, is_drawn(drawn["paths"], points), f"{drawn['paths']} instead of {points}")
        if kind:
            differs(f"{where}, the highest", drawn["max"] == "max " + expected.text(kind, highest), f"{drawn['max']} instead of {highest}")

    of = lambda field: [(point["time"], point[field]) for point in history]
    lines("requests", found["ops"], [of("read"), of("write")], 300, 60, "count")
    lines("bytes", found["bytes"], [of("readBytes"), of("writeBytes")], 300, 60, "bytes")
    figures, rows, _ = expected.page(shown["before"], now)
    newest = {"read": "read.ops", "write": "write.ops", "readBytes": "read.bytes", "writeBytes": "write.bytes"}
    for field, name in newest.items():
        wanted = figures[name][1]
        is_same = history[-1][field] == wanted or wanted is not None and abs(history[-1][field] - wanted) <= 1e-9 * max(1, wanted)
        differs(f"the newest point of {field}", is_same, f"{history[-1][field]} instead of {wanted}")
    for name, spark in found["sparks"].items():
        points = found["points"].get(name) or [[] for _ in FIELDS]
        lines(f"the history of {name}", {"paths": spark}, [points[0]], 90, 18)
        rate = rows[name][3][1]
        if points[0] and points[0][-1][0] == end:
            differs(f"the newest point of {name}", abs(points[0][-1][1] - rate) <= 1e-9 * max(1, rate), f"{points[0][-1]} instead of {rate}")
    selected = next((one for one in now["exports"] if one["name"] == shown["selected"] and "io" in one), None)
    if selected:
        points = found["points"].get(selected["name"]) or [[] for _ in FIELDS]
        for drawn, fields, kind in zip(found["detail"], [(1, 2), (3, 4), (5,)], ["count", "bytes", "nanos"], strict=True):
            lines(f"detail {kind}", drawn, [points[field] for field in fields], 300, 60, kind)
        differs("waits", found["waits"] == waits(selected), found["waits"])
        heading = f"{selected['name']}: {selected['state']}, {expected.text('bytes', selected['size_bytes'])}"
        differs("heading", found["heading"] == heading, found["heading"])
    cache, size = now["cache"], now["cache"]["size_bytes"] or 1
    other = max(0, cache["used_bytes"] - cache["dirty_bytes"] - cache["clean_bytes"])
    bars = [(found["cache"], [cache["dirty_bytes"] / size, cache["clean_bytes"] / size, other / size])]
    bars += [(drawn, [worker["busy_percent"] / 100]) for drawn, worker in zip(found["workers"], now["workers"], strict=True)]
    for drawn, shares in bars:
        wanted = stacked(shares)
        is_same = len(drawn) == len(wanted) and all(abs(a - c) < 0.006 and abs(b - d) < 0.006 for (a, b), (c, d) in zip(drawn, wanted))
        differs("a bar", is_same, f"{drawn} instead of {wanted}")
    differs("warnings", found["warnings"] == now["warnings"], found["warnings"])
    differs("state", found["state"] == ("ready" if now["ready"] else "starting"), found["state"])
    return wrong, compared
