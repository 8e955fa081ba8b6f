"""Prints the counts of scripts/bench-device --profile: instructions a request, by function.

Usage: report.py DIR [LINES]. DIR holds counts (of the plugin), ops, kallsyms, and maps.NAME of each process of interest.
"""

import bisect
import collections
import pathlib
import subprocess
import sys


class Symbols:
    """Functions of one file or of the kernel, by address."""

    def __init__(self, lines):
        found = sorted(lines)
        self.addresses = [address for address, _ in found]
        self.names = [name for _, name in found]

    def name(self, address, otherwise):
        at = bisect.bisect_right(self.addresses, address) - 1
        return self.names[at] if at >= 0 else otherwise


def kernel(path):
    rows = (line.split() for line in path.read_text().splitlines())
    return Symbols((int(row[0], 16), row[2]) for row in rows if row[1] in "tTwW")


def of_file(path):
    text = subprocess.run(["nm", "-C", "--defined-only", path], capture_output=True, text=True, check=False).stdout
    rows = (line.split(None, 2) for line in text.splitlines())
    return Symbols((int(row[0], 16), row[2]) for row in rows if len(row) == 3 and row[1] in "tTwWiI")


def mappings(path):
    rows = (line.split() for line in path.read_text().splitlines())
    for row in rows:
        if len(row) >= 6:
            start, end = (int(part, 16) for part in row[0].split("-"))
            yield start, end, int(row[2], 16), row[5]


def main():
    directory = pathlib.Path(sys.argv[1])
    lines = int(sys.argv[2]) if len(sys.argv) > 2 else 40
    operations = int((directory / "ops").read_text())
    of_kernel, files = kernel(directory / "kallsyms"), {}
    regions = [
        (start, end, start - offset, path, maps.suffix[1:])
        for maps in sorted(directory.glob("maps.*"))
        for start, end, offset, path in mappings(maps)
    ]
    bases = {}
    for start, _, base, path, process in regions:
        bases[process, path] = min(base, bases.get((process, path), base))
    functions, groups = collections.Counter(), collections.Counter()
    for row in (directory / "counts").read_text().splitlines():
        address, count = int(row.split()[0], 16), int(row.split()[1])
        group, name = "other", "other"
        if address >> 63:
            group, name = "kernel", of_kernel.name(address, "?")
        else:
            for start, end, _, path, process in regions:
                if start <= address < end:
                    if path not in files:
                        files[path] = of_file(path) if path.startswith("/") else Symbols([])
                    base = bases[process, path] if path.startswith("/") else 0
                    group, name = process, f"{process}: {files[path].name(address - base, path)}"
                    break
        functions[name] += count
        groups[group] += count
    total = sum(groups.values()) // operations
    parts = ", ".join(f"{name} {count // operations}" for name, count in groups.most_common())
    print(f"{operations} requests, {total} instructions each: {parts}")
    for name, count in functions.most_common(lines):
        print(f"{count // operations:8d}  {name}")


main()
