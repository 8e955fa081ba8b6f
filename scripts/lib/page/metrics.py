"""Figures of an answer of /v1/top against the text of /metrics, of a moment in which no requests are made."""

import re

KINDS = ["read", "write", "flush", "zero"]
NAME = {"operations": "glidefs_export_operations_total", "bytes": "glidefs_export_bytes_total", "errors": "glidefs_export_errors_total"}


def samples(text):
    """The samples of a scrape: a number by name and labels."""
    found = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            series, value = line.rsplit(" ", 1)
            name, _, labels = series.partition("{")
            found[name, frozenset(re.findall(r'(\w+)="([^"]*)"', labels))] = float(value)
    return found


def differences(top, text):
    """The figures that differ, and how many were compared."""
    scraped, wrong, compared = samples(text), [], 0

    def same(wanted, name, **labels):
        nonlocal compared
        compared += 1
        found = scraped.get((name, frozenset(labels.items())))
        if found is None or abs(found - wanted) > 1e-9 * max(1, abs(wanted)):
            wrong.append(f"{name} {labels}: {found} on /metrics, {wanted} in /v1/top")

    same(top["cache"]["size_bytes"], "glidefs_cache_size_bytes")
    for export in top["exports"]:
        name = export["name"]
        same(export["size_bytes"], "glidefs_export_size_bytes", export=name)
        if "io" not in export:
            continue
        io = export["io"]
        same(io.get("in_flight", 0), "glidefs_export_in_flight_requests", export=name)
        for kind in KINDS:
            same(io[kind].get("operations", 0), NAME["operations"], export=name, operation=kind)
            if kind != "flush":
                same(io[kind].get("bytes", 0), NAME["bytes"], export=name, operation=kind)
            if kind != "zero":
                same(io[kind].get("errors", 0), NAME["errors"], export=name, operation=kind)
                latency = "glidefs_export_latency_seconds"
                same(sum(io[kind].get("latency", [])), latency + "_count", export=name, operation=kind)
                same(io[kind].get("latency_nanoseconds", 0) / 1e9, latency + "_sum", export=name, operation=kind)
        same(io.get("index_wait_nanoseconds", 0) / 1e9, "glidefs_export_index_held_seconds_total", export=name)
        same(io.get("log_wait_nanoseconds", 0) / 1e9, "glidefs_export_log_held_seconds_total", export=name)
    return wrong, compared
