#!/usr/bin/env python3
"""What a disk with a write cache may do at a power cut, for scripts/power-cuts: keeps some of the writes that were never flushed.

cuts-disk.py PID STABLE LOSS SEED    of the nbdkit process PID, which is stopped and is killed afterwards

nbdkit has every block written so far in an unlinked file, at the block's own place; STABLE has what was flushed. The blocks that differ
were never flushed. LOSS says what becomes of these: "all" loses all; "blocks" keeps each block of 4 KiB or not, as SEED has it, so in
another order than they were written; "sectors" decides for each sector of 512 bytes. Prints the numbers.
"""

import os
import random
import sys

SECTOR = 512
BLOCK = 4096


def cache_of(pid):
    """The unlinked file: the largest, should there be others."""
    links = [f"/proc/{pid}/fd/{fd}" for fd in os.listdir(f"/proc/{pid}/fd")]
    unlinked = [link for link in links if os.readlink(link).startswith("/") and os.readlink(link).endswith(" (deleted)")]
    return os.open(max(unlinked, key=lambda link: os.stat(link).st_size), os.O_RDONLY)


def written(cache):
    """The blocks that were ever written."""
    size, offset = os.fstat(cache).st_size, 0
    while offset < size:
        try:
            start = os.lseek(cache, offset, os.SEEK_DATA)
        except OSError:
            return
        offset = os.lseek(cache, start, os.SEEK_HOLE)
        yield from range(start - start % BLOCK, offset, BLOCK)


def main():
    pid, stable, loss, seed = sys.argv[1:]
    choice = random.Random(seed)
    # At some cuts nearly everything survives, at some nearly nothing.
    chance = choice.choice((0.05, 0.5, 0.95))
    unit = SECTOR if loss == "sectors" else BLOCK
    cache, disk = cache_of(pid), os.open(stable, os.O_RDWR)
    unflushed = kept = 0
    for block in written(cache):
        new, old = os.pread(cache, BLOCK, block), os.pread(disk, BLOCK, block)
        for i in range(0, len(new), unit):
            if new[i:i + unit] == old[i:i + unit]:
                continue
            unflushed += 1
            if loss != "all" and choice.random() < chance:
                os.pwrite(disk, new[i:i + unit], block + i)
                kept += 1
    os.fsync(disk)
    print(f"{unflushed} {'sectors' if unit == SECTOR else 'blocks'} unflushed, {kept} of them kept")


if __name__ == "__main__":
    main()
