#!/usr/bin/env python3
"""Programs that sync, for scripts/power-cuts: writes until the power is cut, and says after a cut whether synced data is missing.

cuts-load.py load DIRECTORY ACKS        writes with all writers until the machine ends
cuts-load.py verify DIRECTORY ACKS      status 1, and a line for each difference, if something that was synced is not there

Each writer is a sequence of operations. Operation N is a function of N alone, so the state after N operations can be computed. After
the sync of operation N has returned (fsync, fdatasync, a write with O_DSYNC, COMMIT) the writer adds a line "N" to its file in ACKS, a
directory of the host, which no cut hurts. So after a cut the state must be that of the last line, N. Operation N + 1 may have been under
way: what it touches may be old or new. Then the load does operation N + 1 once more, and goes on.
"""

import mmap
import os
import sqlite3
import sys
import threading
import traceback
import zlib

SECTOR = 512
BLOCK = 4096
BLOCKS = 256
FILES = 24
LOG_MAX = 512 * 1024
ROWS = 400
# Name, journal mode, synchronous, and whether a COMMIT that has returned may be rolled back: SQLite removes the rollback journal of mode
# DELETE with FULL without a sync of its directory, so the journal may be back after a cut, and the newest transaction with it.
DATABASES = [
    ("truncate", "TRUNCATE", "FULL", 0),
    ("delete-extra", "DELETE", "EXTRA", 0),
    ("delete", "DELETE", "FULL", 1),
    ("wal", "WAL", "FULL", 0),
]


def draw(writer, number, choices):
    """A number below `choices`, the same for the same writer and operation."""
    return zlib.crc32(f"{writer} {number} {choices}".encode()) % choices


def content(key, number, size):
    """Bytes that name operation and sector: a sector of another operation shows which."""
    sectors = (size + SECTOR - 1) // SECTOR
    return b"".join(f"{key} {number} {i}\n".encode().ljust(SECTOR, b".") for i in range(sectors))[:size]


def sync_directory(path):
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(directory)
    os.close(directory)


class Files:
    """Files that are replaced, removed, overwritten in place and appended to."""

    def __init__(self, directory):
        self.name = "files"
        self.directory = f"{directory}/files"
        self.rolled_back = 0

    def path(self, key):
        return f"{self.directory}/{key}"

    def prepare(self):
        os.makedirs(self.directory, exist_ok=True)
        with open(self.path("blocks"), "wb") as file:
            file.write(bytes(BLOCKS * BLOCK))
        with open(self.path("log"), "wb"):
            pass

    def operation(self, number):
        """Kind, key and size."""
        kind = ("replace", "block", "direct", "append", "append", "remove", "block", "replace")[draw("kind", number, 8)]
        if kind in ("replace", "remove"):
            return kind, f"f{draw('file', number, FILES)}", 1 + draw("size", number, 64 * 1024)
        if kind in ("block", "direct"):
            return kind, draw("block", number, BLOCKS), BLOCK
        return kind, "log", 1 + draw("size", number, 16 * 1024)

    def state(self, count):
        """What there is after `count` operations: files, blocks, and the records of the log."""
        files, blocks, log, length = {}, {}, [], 0
        for number in range(1, count + 1):
            kind, key, size = self.operation(number)
            if kind == "replace":
                files[key] = (number, size)
            elif kind == "remove":
                files.pop(key, None)
            elif kind in ("block", "direct"):
                blocks[key] = number
            else:
                if length > LOG_MAX:
                    log, length = [], 0
                log.append((number, size))
                length += size
        return files, blocks, log

    def load(self, count, acknowledge):
        blocks = os.open(self.path("blocks"), os.O_RDWR)
        direct = os.open(self.path("blocks"), os.O_RDWR | os.O_DIRECT | os.O_DSYNC)
        log = os.open(self.path("log"), os.O_RDWR)
        aligned = mmap.mmap(-1, BLOCK)
        length = sum(size for _, size in self.state(count)[2])
        number = count
        while True:
            number += 1
            kind, key, size = self.operation(number)
            if kind == "replace":
                with open(self.path("new"), "wb") as file:
                    file.write(content(key, number, size))
                    file.flush()
                    os.fsync(file.fileno())
                os.rename(self.path("new"), self.path(key))
                sync_directory(self.directory)
            elif kind == "remove":
                if os.path.exists(self.path(key)):
                    os.unlink(self.path(key))
                sync_directory(self.directory)
            elif kind == "block":
                os.pwrite(blocks, content(key, number, size), key * BLOCK)
                os.fdatasync(blocks)
            elif kind == "direct":
                aligned[:] = content(key, number, size)
                os.pwrite(direct, aligned, key * BLOCK)
            else:
                length = 0 if length > LOG_MAX else length
                os.ftruncate(log, length)
                os.pwrite(log, content("log", number, size), length)
                os.fsync(log)
                length += size
            acknowledge(number)

    def verify(self, count):
        files, blocks, log = self.state(count)
        kind, key, size = self.operation(count + 1)
        yield from self.verify_files(files, (kind, key, size), count + 1)
        with open(self.path("blocks"), "rb") as file:
            data = file.read()
        for block in range(BLOCKS):
            found = data[block * BLOCK:(block + 1) * BLOCK]
            number = blocks.get(block)
            old = content(block, number, BLOCK) if number else bytes(BLOCK)
            new = content(block, count + 1, BLOCK) if kind in ("block", "direct") and key == block else old
            for i in range(0, BLOCK, SECTOR):
                if found[i:i + SECTOR] not in (old[i:i + SECTOR], new[i:i + SECTOR]):
                    yield f"blocks: block {block} of operation {number}, sector {i // SECTOR}: {found[i:i + 40]!r}"
                    break
        expected = b"".join(content("log", number, size) for number, size in log)
        with open(self.path("log"), "rb") as file:
            found = file.read()
        # The operation under way may have begun the log anew.
        if kind != "append" or len(expected) <= LOG_MAX:
            for i in range(0, len(expected), SECTOR):
                if found[i:i + SECTOR][:len(expected) - i] != expected[i:i + SECTOR]:
                    yield f"log: {len(expected)} bytes, {len(found)} found, other from byte {i} on: {found[i:i + 40]!r}"
                    break

    def verify_files(self, files, under_way, number):
        kind, key, size = under_way
        for name in (f"f{i}" for i in range(FILES)):
            old = content(name, *files[name]) if name in files else None
            allowed = [old]
            if name == key:
                allowed.append(content(name, number, size) if kind == "replace" else None)
            try:
                with open(self.path(name), "rb") as file:
                    found = file.read()
            except FileNotFoundError:
                found = None
            if found not in allowed:
                begin = found[:40] if found is not None else found
                yield f"{name} of operation {files.get(name)}: {begin!r}"


class Database:
    """Transactions of SQLite: each writes rows, removes one, and counts itself."""

    def __init__(self, directory, name, journal, synchronous, rolled_back):
        self.name = f"sqlite-{name}"
        self.directory = f"{directory}/{self.name}"
        self.journal = journal
        self.synchronous = synchronous
        self.rolled_back = rolled_back

    def open(self):
        database = sqlite3.connect(f"{self.directory}/db", isolation_level=None, check_same_thread=False)
        database.execute(f"PRAGMA journal_mode={self.journal}")
        database.execute(f"PRAGMA synchronous={self.synchronous}")
        # Checkpoints come often, and pages are read from the disk.
        database.execute("PRAGMA wal_autocheckpoint=64")
        database.execute("PRAGMA cache_size=16")
        return database

    def prepare(self):
        os.makedirs(self.directory, exist_ok=True)
        database = self.open()
        database.execute("CREATE TABLE row (id INTEGER PRIMARY KEY, number INTEGER, body BLOB)")
        database.execute("CREATE INDEX by_number ON row (number)")
        database.execute("CREATE TABLE done (number INTEGER)")
        database.execute("INSERT INTO done VALUES (0)")
        database.close()

    def operation(self, number):
        """The rows that the transaction writes, and the row that it removes."""
        first = draw(self.name, number, ROWS)
        return [(first + 7 * i) % ROWS for i in range(1 + draw("rows", number, 6))], draw("removed", number, ROWS)

    def state(self, count):
        rows = {}
        for number in range(1, count + 1):
            written, removed = self.operation(number)
            rows.pop(removed, None)
            rows.update((row, number) for row in written)
        return rows

    @staticmethod
    def body(row, number):
        return content(f"row{row}", number, 100 + draw(f"row{row}", number, 2500))

    def load(self, count, acknowledge):
        database = self.open()
        # Transaction `count` + 1 may have been done without a line; `count` may have been rolled back, as `rolled_back` allows.
        number = database.execute("SELECT number FROM done").fetchone()[0]
        while True:
            number += 1
            written, removed = self.operation(number)
            database.execute("BEGIN IMMEDIATE")
            database.execute("DELETE FROM row WHERE id = ?", (removed,))
            for row in written:
                database.execute("INSERT OR REPLACE INTO row VALUES (?, ?, ?)", (row, number, self.body(row, number)))
            database.execute("UPDATE done SET number = ?", (number,))
            database.execute("COMMIT")
            acknowledge(number)

    def verify(self, count):
        database = self.open()
        said = [line for line, in database.execute("PRAGMA integrity_check")]
        if said != ["ok"]:
            yield f"integrity_check: {said}"
            return
        number = database.execute("SELECT number FROM done").fetchone()[0]
        if not count - self.rolled_back <= number <= count + 1:
            yield f"transaction {number} is the newest, and {count} was committed"
            return
        expected = self.state(number)
        for row, written, body in database.execute("SELECT id, number, body FROM row"):
            if expected.pop(row, None) != written or body != self.body(row, written):
                yield f"row {row} of transaction {written} differs"
        if expected:
            yield f"rows are missing: {expected}"
        database.close()


def write_unsynced(path):
    """Direct writes that no sync of this thread follows, so that a cut finds the disk with writes to lose."""
    aligned = mmap.mmap(-1, 4 * BLOCK)
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_DIRECT)
    number = 0
    while True:
        number += 1
        aligned[:] = content("unsynced", number, len(aligned))
        os.pwrite(file, aligned, draw("unsynced", number, 128) * len(aligned))
        threading.Event().wait(0.005)


def acknowledged(path):
    """The number in the last whole line."""
    try:
        with open(path, "rb") as file:
            lines = file.read().split(b"\n")[:-1]
    except FileNotFoundError:
        return 0
    return int(lines[-1]) if lines else 0


def run(writer, acks, failed):
    path = f"{acks}/{writer.name}"
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        writer.load(acknowledged(path), lambda number: os.write(file, b"%d\n" % number))
    except BaseException:
        traceback.print_exc()
        failed.set()


def main():
    verb, directory, acks = sys.argv[1:]
    os.makedirs(acks, exist_ok=True)
    writers = [Files(directory)] + [Database(directory, *database) for database in DATABASES]
    if verb == "verify":
        differences = [f"{w.name}: {line}" for w in writers for line in w.verify(acknowledged(f"{acks}/{w.name}"))]
        print("\n".join(differences), end="\n" if differences else "")
        sys.exit(1 if differences else 0)
    if not os.path.exists(f"{directory}/ready"):
        for writer in writers:
            writer.prepare()
        os.sync()
        with open(f"{directory}/ready", "wb") as file:
            os.fsync(file.fileno())
        sync_directory(directory)
    failed = threading.Event()
    for writer in writers:
        threading.Thread(target=run, args=(writer, acks, failed), daemon=True).start()
    threading.Thread(target=write_unsynced, args=(f"{directory}/unsynced",), daemon=True).start()
    failed.wait()
    sys.exit(1)


if __name__ == "__main__":
    main()
