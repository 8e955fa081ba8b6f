"""Uses a daemon with real devices by the generated client: over TCP with a token, and over the Unix socket.

    check.py URL TOKEN-FILE SOCKET RESULT

Prints a line for each check, and writes the numbers of checks passed and failed into the file RESULT.
"""

import os
import stat
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol, TypeVar
from urllib.parse import parse_qs, urlsplit

import httpx
from glidefs_client import AuthenticatedClient, Client
from glidefs_client.api.daemon import status
from glidefs_client.api.exports import create_export, delete_export, fork_export, list_exports, resize_export, set_export, show_export
from glidefs_client.api.snapshots import create_snapshot, list_snapshots
from glidefs_client.api.store import list_deleted_exports, list_stored_exports
from glidefs_client.models import (
    CreateRequest, Deleted, DeletedExport, Export, ForkRequest, Limits, LimitsChange, Problem, ProblemCode, ResizeRequest, SetRequest,
    Snapshot, SnapshotRequest, Status, StoredExport,
)
from glidefs_client.types import UNSET, Response, Unset

MIB = 1 << 20
T = TypeVar("T")
passed, failed = 0, 0


def expect(kind: type[T], value: object) -> T:
    """The value, which has this type."""
    assert isinstance(value, kind), f"{kind.__name__} was expected: {value}"
    return value


def problem(code: ProblemCode, answer: Response[T]) -> Problem:
    """The refusal, which has this code."""
    found = expect(Problem, answer.parsed)
    assert found.code is code, f"{code} was expected: {found}"
    assert found.status == answer.status_code and found.type_ == f"/v1/problems/{code.value}" and found.detail, str(found)
    return found


class Listing(Protocol):
    def __call__(self, *, limit: int | Unset, after: str | Unset) -> Response[Any]: ...


def pages(kind: type[T], listing: Listing, limit: int) -> Iterator[list[T]]:
    """The pages of a list, until no address of a next page comes."""
    after: str | Unset = UNSET
    while True:
        answer = listing(limit=limit, after=after)
        page = [expect(kind, entry) for entry in expect(list, answer.parsed)]
        assert len(page) <= limit, f"{len(page)} entries"
        yield page
        link = answer.headers.get("link")
        if link is None:
            return
        assert link.endswith('; rel="next"'), link
        after = parse_qs(urlsplit(link[1 : link.index(">")]).query)["after"][0]


def device_bytes(export: Export) -> int:
    device = expect(str, export.device)
    assert stat.S_ISBLK(os.stat(device).st_mode), device
    with open(device, "rb") as file:
        return file.seek(0, os.SEEK_END)


def everything(client: Client | AuthenticatedClient, prefix: str) -> None:
    """The life of exports, in checks that build upon each other."""
    names = [f"{prefix}-{letter}" for letter in "abcde"]
    made: dict[str, Export] = {}

    def create() -> None:
        for name in names:
            answer = create_export.sync_detailed(client=client, body=CreateRequest(name=name, size="16MiB"))
            made[name] = expect(Export, answer.parsed)
            assert answer.status_code == 201 and made[name].size_bytes == device_bytes(made[name]) == 16 * MIB
        again = create_export.sync_detailed(client=client, body=CreateRequest(name=names[0], size=16 * MIB))
        assert again.status_code == 200 and expect(Export, again.parsed).id == made[names[0]].id

    def page_by_page() -> None:
        listed = list(pages(Export, lambda *, limit, after: list_exports.sync_detailed(client=client, limit=limit, after=after), 2))
        assert [len(page) for page in listed] == [2, 2, 1], listed
        assert [export.name for page in listed for export in page] == names
        whole = expect(list, list_exports.sync(client=client))
        assert [export.name for export in whole] == names
        stored = pages(StoredExport, lambda *, limit, after: list_stored_exports.sync_detailed(client=client, limit=limit, after=after), 2)
        assert [export.name for page in stored for export in page] == names

    def snapshot_and_fork() -> None:
        text = f"written to {names[0]} ".encode() * 1000
        with open(expect(str, made[names[0]].device), "r+b") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        for name in ("monday", "tuesday"):
            answer = create_snapshot.sync_detailed(names[0], client=client, body=SnapshotRequest(name=name))
            assert answer.status_code == 201 and expect(Snapshot, answer.parsed).name == name
        shots = pages(Snapshot, lambda *, limit, after: list_snapshots.sync_detailed(names[0], client=client, limit=limit, after=after), 1)
        assert [[shot.name for shot in page] for page in shots] == [["monday"], ["tuesday"]]
        problem(ProblemCode.SNAPSHOT_EXISTS, create_snapshot.sync_detailed(names[0], client=client, body=SnapshotRequest(name="monday")))
        fork = expect(Export, fork_export.sync(names[0], client=client, body=ForkRequest(name=f"{prefix}-fork", snapshot="monday")))
        with open(expect(str, fork.device), "rb") as file:
            assert file.read(len(text)) == text, "the fork has another content"
        again = fork_export.sync_detailed(names[0], client=client, body=ForkRequest(name=f"{prefix}-fork", snapshot="monday"))
        assert again.status_code == 200 and expect(Export, again.parsed).id == fork.id, str(again)

    def resize() -> None:
        grown = expect(Export, resize_export.sync(names[1], client=client, body=ResizeRequest(size="32MiB")))
        assert grown.size_bytes == device_bytes(grown) == 32 * MIB
        problem(ProblemCode.CANNOT_SHRINK, resize_export.sync_detailed(names[1], client=client, body=ResizeRequest(size=MIB)))

    def limits() -> None:
        change = LimitsChange(read_iops=5000, write_bytes_per_second="100MiB")
        limited = expect(Export, set_export.sync(names[2], client=client, body=SetRequest(limits=change, weight=200)))
        found = expect(Limits, limited.limits)
        assert (found.read_iops, found.write_bytes_per_second, limited.weight) == (5000, 100 * MIB, 200), str(limited)
        freed = SetRequest(limits=LimitsChange(read_iops=None, write_bytes_per_second=None))
        assert expect(Export, set_export.sync(names[2], client=client, body=freed)).limits is UNSET

    def errors() -> None:
        missing = problem(ProblemCode.NOT_FOUND, show_export.sync_detailed("nobody", client=client))
        problem(ProblemCode.BAD_NAME, create_export.sync_detailed(client=client, body=CreateRequest(name="a/b", size=MIB)))
        problem(ProblemCode.BAD_PARAMETER, list_exports.sync_detailed(client=client, limit=0))
        other = create_export.sync_detailed(client=client, body=CreateRequest(name=names[0], size=MIB))
        problem(ProblemCode.EXISTS_WITH_OTHER_PARAMETERS, other)
        newer = Problem.from_dict({**missing.to_dict(), "code": "of_a_newer_daemon"})
        assert newer.code == "of_a_newer_daemon", "a client reads the codes of newer daemons as text"

    def delete() -> None:
        for name in [*names, f"{prefix}-fork"]:
            assert expect(Deleted, delete_export.sync(name, client=client)).existed
        assert not expect(Deleted, delete_export.sync(names[0], client=client)).existed
        assert expect(list, list_exports.sync(client=client)) == []
        # The same name is deleted a second time.
        expect(Export, create_export.sync(client=client, body=CreateRequest(name=names[0], size=MIB)))
        expect(Deleted, delete_export.sync(names[0], client=client))
        listing = pages(DeletedExport, lambda *, limit, after: list_deleted_exports.sync_detailed(client=client, limit=limit, after=after), 1)
        deleted = [export for page in listing for export in page if export.name.startswith(prefix)]
        assert [export.name for export in deleted] == sorted([names[0], *names, f"{prefix}-fork"]), str(deleted)
        assert len({export.volume for export in deleted}) == len(deleted) == 7, "each volume is listed once"

    check("the daemon says how it is", lambda: expect(Status, status.sync(client=client)))
    for sentence, part in [
        ("exports are created, and their devices have the size", create), ("lists come page by page", page_by_page),
        ("a fork of a snapshot has the content", snapshot_and_fork), ("an export grows", resize), ("limits are set and ended", limits),
        ("refusals have the codes of the generated type", errors), ("exports are deleted, and listed as deleted", delete),
    ]:
        check(f"{prefix}: {sentence}", part)


def check(sentence: str, part: Callable[[], object]) -> None:
    global passed, failed
    try:
        part()
        passed += 1
        print("ok", sentence, flush=True)
    except Exception:
        failed += 1
        print("FAILED", sentence, flush=True)
        traceback.print_exc()


def main(url: str, token_file: str, socket: str, result: str) -> int:
    def wrong_token() -> None:
        with AuthenticatedClient(base_url=url, token="0123456789abcdef") as client:
            problem(ProblemCode.UNAUTHORIZED, list_exports.sync_detailed(client=client))

    check("a wrong token is refused", wrong_token)
    with AuthenticatedClient(base_url=url, token=Path(token_file).read_text().strip(), timeout=httpx.Timeout(60)) as tcp:
        everything(tcp, "tcp")
    transport = httpx.HTTPTransport(uds=socket)
    with Client(base_url="http://localhost", httpx_args={"transport": transport}, timeout=httpx.Timeout(60)) as unix:
        everything(unix, "socket")
    Path(result).write_text(f"{passed} {failed}\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
