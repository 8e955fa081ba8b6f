"""What the status page must show of two answers of /v1/top: computed here once more, from the answers alone."""

from decimal import ROUND_HALF_UP, Decimal

KINDS = ["read", "write", "flush", "zero"]
TIMED = ["read", "write", "flush"]
WAITS = ["limit_wait_nanoseconds", "index_wait_nanoseconds", "log_wait_nanoseconds"]


def fixed(n, places):
    """`n` with so many decimals, as JavaScript's toFixed rounds."""
    return str(Decimal(n).quantize(Decimal(1).scaleb(-places), ROUND_HALF_UP))


def three(n):
    return fixed(n, 1 if n < 9.95 and n != int(n) else 0)


def scaled(n, step, units):
    unit = 0
    while unit + 1 < len(units) and n >= step * 0.9995:
        n /= step
        unit += 1
    return (fixed(n, 1) if n < 99.95 and unit > 0 else three(n)) + units[unit]


def text(kind, n):
    """`n` as the page writes such a figure."""
    if n is None:
        return "–"
    if kind == "count":
        return scaled(n, 1000, ["", "k", "M", "G", "T", "P"])
    if kind == "bytes":
        return scaled(n, 1024, [" B", " KiB", " MiB", " GiB", " TiB", " PiB", " EiB"])
    if kind == "whole":
        return f"{n:,}"
    if kind == "percent":
        return three(n) + " %"
    if kind == "seconds":
        if n < 120:
            return three(n) + " s"
        if n < 7200:
            return f"{int(n // 60)} min"
        return f"{int(n // 3600)} h" if n < 172800 else f"{int(n // 86400)} d"
    if kind == "nanos":
        if n < 1e3:
            return fixed(n, 0) + " ns"
        if n < 1e6:
            return three(n / 1e3) + " µs"
        return three(n / 1e6) + " ms" if n < 1e9 else three(n / 1e9) + " s"
    return n


def seconds_between(before, now):
    if not before or before["instance"] != now["instance"]:
        return None
    nanos = now["uptime_nanoseconds"] - before["uptime_nanoseconds"]
    return nanos / 1e9 if nanos > 0 else None


def quantile(share, buckets, bounds):
    total = sum(buckets)
    if total == 0:
        return None
    rank = share * total
    low = 0
    for count, bound in zip(buckets, bounds):
        if count > 0 and rank <= count:
            return low + (bound - low) * rank / count
        rank -= count
        low = bound
    return bounds[-1]


def difference(before, now, buckets):
    """What an export did between two answers; None if that is not known."""
    if not before or "io" not in before or "io" not in now or before["io"]["id"] != now["io"]["id"]:
        return None
    did = {"wait": sum(now["io"].get(wait, 0) - before["io"].get(wait, 0) for wait in WAITS)}
    for kind in KINDS:
        then, this = before["io"][kind], now["io"][kind]
        did[kind] = {f: this.get(f, 0) - then.get(f, 0) for f in ["operations", "bytes", "errors", "latency_nanoseconds"]}
        full = lambda one: one.get("latency", []) + [0] * (buckets - len(one.get("latency", [])))
        did[kind]["latency"] = [b - a for a, b in zip(full(then), full(this))]
    return did


def row(export, did, seconds, bounds):
    """The figures of an export's row: a kind and a number for each column."""
    io = export.get("io")
    unknown = None if io else 0
    rates = dict.fromkeys(["ops", "read", "write", "bytes", "waits"], unknown)
    mean = p99 = None
    if did:
        requests = sum(did[kind]["operations"] for kind in TIMED)
        rates["ops"] = sum(did[kind]["operations"] for kind in KINDS) / seconds
        rates["read"] = did["read"]["bytes"] / seconds
        rates["write"] = did["write"]["bytes"] / seconds
        rates["bytes"] = rates["read"] + rates["write"]
        rates["waits"] = did["wait"] / seconds
        mean = sum(did[kind]["latency_nanoseconds"] for kind in TIMED) / requests if requests else None
        p99 = quantile(0.99, [sum(of) for of in zip(*(did[kind]["latency"] for kind in TIMED))], bounds)
    return [
        ("text", export["name"]), ("text", export["state"]), ("bytes", export["size_bytes"]), ("count", rates["ops"]),
        ("bytes", rates["read"]), ("bytes", rates["write"]), ("bytes", rates["bytes"]), ("nanos", mean), ("nanos", p99),
        ("whole", io.get("in_flight", 0) if io else 0), ("bytes", export.get("dirty_bytes", 0)),
        ("seconds", export.get("at_risk_seconds", 0)), ("nanos", rates["waits"]),
    ]


def page(before, now):
    """All figures of the host, the rows of all exports by name, and what all exports did."""
    seconds = seconds_between(before, now)
    bounds = now["latency_bounds_nanoseconds"]
    known = {export["name"]: export for export in before["exports"]} if seconds else {}
    done = {e["name"]: difference(known.get(e["name"]), e, len(bounds) + 1) if seconds else None for e in now["exports"]}
    rows = {e["name"]: row(e, done[e["name"]], seconds, bounds) for e in now["exports"]}
    did = [one for one in done.values() if one]
    rate = lambda kinds, field: sum(one[kind][field] for one in did for kind in kinds) / seconds if seconds else None
    figures = {f"{kind}.ops": ("count", rate([kind], "operations")) for kind in KINDS}
    figures |= {f"{kind}.bytes": ("bytes", rate([kind], "bytes")) for kind in ["read", "write"]}
    figures |= {f"cache.{name}": ("bytes", now["cache"][f"{name}_bytes"]) for name in ["used", "size", "dirty", "clean"]}
    figures |= {f"counts.{name}": ("whole", now["counts"][name]) for name in ["total", "serving", "detached", "failed"]}
    figures |= {
        "version": ("text", now["version"]),
        "uptime": ("seconds", now["uptime_nanoseconds"] / 1e9),
        "warnings": ("whole", len(now["warnings"])),
        "errors": ("count", rate(KINDS, "errors")),
        "in-flight": ("whole", sum(e["io"].get("in_flight", 0) for e in now["exports"] if "io" in e)),
        "risk.bytes": ("bytes", now["at_risk"]["bytes"]),
        "risk.seconds": ("seconds", now["at_risk"]["seconds"]),
        "risk.exports": ("whole", now["at_risk"]["exports"]),
        "store.url": ("text", now["store"]["status"]["url"]),
        "store.state": ("text", now["store"]["status"]["state"]),
        "store.since": ("seconds", now["store"]["status"]["since_seconds"]),
        "store.waiting": ("whole", now["store"]["waiting_reads"]),
        "store.oldest": ("seconds", now["store"]["oldest_read_seconds"]),
        "store.hits": ("whole", now["store"]["block_cache_hits"]),
        "store.misses": ("whole", now["store"]["block_cache_misses"]),
    }
    return figures, rows, did


def store_rows(before, now):
    seconds = seconds_between(before, now)
    rows = []
    for i, of in enumerate(now["store"]["operations"]):
        rate = lambda field: (of[field] - before["store"]["operations"][i][field]) / seconds if seconds else None
        rows.append([("count", rate("requests")), ("bytes", rate("bytes")), ("whole", of["requests"]),
                     ("bytes", of["bytes"]), ("whole", of["errors"])])
    return rows


def worker_rows(now):
    return [[("percent", w["busy_percent"]), ("whole", w["queues"]), ("whole", w["requests"])] for w in now["workers"]]


def detail_rows(export):
    rows = []
    for kind in KINDS:
        of = export["io"][kind]
        count = of.get("operations", 0)
        mean = of.get("latency_nanoseconds", 0) / count if count and kind != "zero" else None
        # Errors of DISCARD and WRITE_ZEROES are counted with those of WRITE.
        errors = None if kind == "zero" else of.get("errors", 0)
        rows.append([("whole", count), ("bytes", of.get("bytes", 0)), ("whole", errors), ("nanos", mean)])
    return rows


def histogram(buckets, nanos, bounds):
    """What a histogram shows: the bars, and number, mean, median and 99th percentile."""
    total = sum(buckets)
    return buckets, [("count", total), ("nanos", nanos / total if total else None),
                     ("nanos", quantile(0.5, buckets, bounds)), ("nanos", quantile(0.99, buckets, bounds))]
