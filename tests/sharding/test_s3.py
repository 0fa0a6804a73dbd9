"""Source, destination and mirror on a server that speaks S3, over HTTP on this machine."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("s3fs")
moto_server = pytest.importorskip("moto.server")
serving = pytest.importorskip("werkzeug.serving")

import fsspec  # noqa: E402

import sharding.ledger  # noqa: E402
import sharding.stores  # noqa: E402
import sharding.writer  # noqa: E402
from sharding import check, merge, reshard  # noqa: E402
from sharding.errors import ForeignJobError, ShardingError, SourceChangedError  # noqa: E402
from sharding.placement import cut_evenly  # noqa: E402
from tests import twins  # noqa: E402
from tests.sharding.synthetic import device, write_parts  # noqa: E402

pytestmark = pytest.mark.usefixtures("server")

BUCKET = "weights"
TP = 4
SHAPE = (512, 256)
RANKS = [f"tp{rank}_sharded_checkpoint.safetensors" for rank in range(TP)]
FILES = ["host_tables.safetensors", *RANKS]
MANIFEST = "manifest.json"


def placements(dim: int = 0) -> dict[str, Any]:
    host = {"shape": list(SHAPE), "dtype": "BF16", "home": "host", "placement": None, "status": "required"}
    cut = {"a": device(SHAPE, cut_evenly(dim, SHAPE[dim], TP)), "b": device(SHAPE, cut_evenly(1, SHAPE[1], TP))}
    return {
        "tensors": {**cut, "c": host},
        "rank_tensors": {"ids": {"dtype": "int32", "values": [[rank] for rank in range(TP)]}},
    }


@dataclass
class Request:
    """One that was answered. ``range`` is what was asked for, ``sent`` the bytes of the body."""

    method: str
    path: str
    range: str | None
    sent: int = 0


@dataclass
class Server:
    """The store, what was asked of it, and a hook that may refuse a request (``True``: answer 503)."""

    url: str
    requests: list[Request] = field(default_factory=list)
    refuse: Callable[[Request], bool] | None = None

    def bytes_sent(self, name: str) -> int:
        return sum(request.sent for request in self.requests if request.method == "GET" and request.path.endswith(name))


@pytest.fixture(scope="module")
def running() -> Iterator[Server]:
    app = moto_server.DomainDispatcherApplication(moto_server.create_backend_app)
    server = Server("")

    def recorded(environ: dict[str, Any], start_response: Any) -> Any:
        request = Request(environ["REQUEST_METHOD"], environ["PATH_INFO"], environ.get("HTTP_RANGE"))
        if server.refuse and server.refuse(request):
            start_response("503 Slow Down", [("Content-Length", "0")])
            return [b""]
        body = [bytes(chunk) for chunk in app(environ, start_response)]
        request.sent = sum(map(len, body))
        server.requests.append(request)
        return body

    http = serving.make_server("127.0.0.1", 0, recorded, threaded=True)
    thread = threading.Thread(target=http.serve_forever, daemon=True)
    thread.start()
    server.url = f"http://127.0.0.1:{http.server_port}"
    yield server
    http.shutdown()
    thread.join(10)


@pytest.fixture
def server(running: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """The server with one empty bucket; the environment says where it is, as for any program that uses S3."""
    settings = {
        "AWS_ENDPOINT_URL": running.url,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    fsspec.get_filesystem_class("s3").clear_instance_cache()
    system = s3()
    if system.exists(BUCKET):
        system.rm(BUCKET, recursive=True)
    system.mkdir(BUCKET)
    running.requests.clear()
    running.refuse = None
    yield running
    running.refuse = None
    fsspec.get_filesystem_class("s3").clear_instance_cache()


def s3() -> Any:
    return fsspec.filesystem("s3", use_listings_cache=False)


def upload(directory: Path, prefix: str) -> str:
    for path in directory.iterdir():
        s3().pipe_file(f"{BUCKET}/{prefix}/{path.name}", path.read_bytes())
    return f"s3://{BUCKET}/{prefix}"


def objects(prefix: str) -> dict[str, bytes]:
    """Final files under a prefix; records left out."""
    found = {path.removeprefix(f"{BUCKET}/{prefix}/"): path for path in s3().find(f"{BUCKET}/{prefix}")}
    return {name: s3().cat_file(path) for name, path in found.items() if "/" not in name}


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_parts(tmp_path / "in", [{"a": (SHAPE, "BF16")}, dict.fromkeys("bc", (SHAPE, "BF16"))])


@pytest.fixture
def reference(source: Path, tmp_path: Path) -> dict[str, bytes]:
    reshard(placements(), TP, source, tmp_path / "reference")
    return contents(tmp_path / "reference")


class Reclaimed(Exception):
    """The machine is taken away."""


def reclaimed_after(monkeypatch: pytest.MonkeyPatch, files: int) -> None:
    """Let a run finish that many files, and end it in the midst of the next one's bytes."""
    finished: list[str] = []
    real_finish, real_write = sharding.writer.OutputFile.finish, sharding.writer.OutputFile.write

    def finish(self: Any) -> None:
        if self.path.name in FILES and self._file is not None and self.path.name not in finished:
            finished.append(self.path.name)
        real_finish(self)

    def write(self: Any, data: Any, offset: int) -> None:
        if self.path.name in FILES and len(finished) == files and offset:
            raise Reclaimed
        real_write(self, data, offset)

    monkeypatch.setattr(sharding.writer.OutputFile, "finish", finish)
    monkeypatch.setattr(sharding.writer.OutputFile, "write", write)


def test_source_and_destination_there(source: Path, reference: dict[str, bytes], tmp_path: Path) -> None:
    location = upload(source, "in")
    reshard(placements(), TP, location, f"s3://{BUCKET}/out")
    assert objects("out") == reference
    assert check(f"s3://{BUCKET}/out", location) == ()
    reshard(placements(), TP, location, tmp_path / "local", mirror=f"s3://{BUCKET}/mirror")
    assert contents(tmp_path / "local") == objects("mirror") == reference

    merge(f"s3://{BUCKET}/out", tmp_path / "back")
    for part in source.glob("*.safetensors"):
        assert twins.read_file(tmp_path / "back" / part.name) == twins.read_file(part)


def test_a_source_is_read_in_ranges(server: Server, tmp_path: Path) -> None:
    """Never whole, each tensor once, and what nothing reads not at all."""
    extra = {"tower": ((2048, 1024), "BF16")}
    tensors = {"a": (SHAPE, "BF16"), **extra, "b": (SHAPE, "BF16"), "c": (SHAPE, "BF16")}
    write_parts(tmp_path / "big", [tensors])
    location = upload(tmp_path / "big", "in")
    size = (tmp_path / "big" / "model.safetensors").stat().st_size
    server.requests.clear()

    result = reshard(placements(), TP, location, tmp_path / "out")

    needed = 3 * SHAPE[0] * SHAPE[1] * 2
    assert result.bytes_read == needed
    reads = [request for request in server.requests if request.method == "GET" and "model.safetensors" in request.path]
    assert reads
    for request in reads:
        assert request.range is not None
        first, last = map(int, re.fullmatch(r"bytes=(\d+)-(\d+)", request.range).groups())  # type: ignore[union-attr]
        assert request.sent == last - first + 1 < size / 2
    samples_and_header = 64 * 4096 + 64 * 1024
    assert needed <= server.bytes_sent("model.safetensors") <= needed + samples_and_header < size
    assert sorted(contents(tmp_path / "out")) == sorted([*FILES, MANIFEST])


@pytest.mark.parametrize("fresh", [True, False], ids=["fresh-machine", "same-machine"])
def test_a_mirror_continues_after_the_second_file(
    server: Server,
    source: Path,
    reference: dict[str, bytes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fresh: bool,
) -> None:
    location, mirror = upload(source, "in"), f"s3://{BUCKET}/mirror"
    with monkeypatch.context() as patch:
        reclaimed_after(patch, 2)
        with pytest.raises(Reclaimed):
            reshard(placements(), TP, location, tmp_path / "first", mirror=mirror)
    assert objects("mirror") == {name: reference[name] for name in FILES[:2]}
    server.requests.clear()
    directory = tmp_path / ("second" if fresh else "first")

    result = reshard(placements(), TP, location, directory, mirror=mirror)

    assert result.written == tuple(FILES[2:])
    assert result.reused == tuple(FILES[:2])
    puts = [request.path for request in server.requests if request.method == "PUT"]
    for name in FILES:
        made = [path for path in puts if path.endswith(f"/mirror/{name}")]
        assert len(made) == (name in FILES[2:]), name
    fetched = server.bytes_sent(f"mirror/{FILES[1]}")
    assert (fetched >= len(reference[FILES[1]])) == fresh
    assert contents(directory) == objects("mirror") == reference

    server.requests.clear()
    third = reshard(placements(), TP, location, tmp_path / "third", mirror=mirror)
    assert (third.written, third.bytes_read) == ((), 0)
    assert contents(tmp_path / "third") == reference


@pytest.mark.parametrize("finished", [0, 2, 4])
def test_a_destination_continues(
    source: Path,
    reference: dict[str, bytes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    finished: int,
) -> None:
    location = upload(source, "in")
    with monkeypatch.context() as patch:
        reclaimed_after(patch, finished)
        with pytest.raises(Reclaimed):
            reshard(placements(), TP, location, f"s3://{BUCKET}/out")
    assert objects("out") == {name: reference[name] for name in FILES[:finished]}
    copied = upload(shutil.copytree(source, tmp_path / "again"), "again")  # another place, other times, the same bytes

    result = reshard(placements(), TP, copied, f"s3://{BUCKET}/out")

    assert (result.written, result.reused) == (tuple(FILES[finished:]), tuple(FILES[:finished]))
    assert objects("out") == reference


def _puts_of(name: str) -> Callable[[Request], bool]:
    return lambda request: request.method == "PUT" and request.path.endswith(name)


@pytest.mark.parametrize("name", [FILES[0], RANKS[1], MANIFEST, f"{RANKS[1]}.json", "job.json"])
def test_a_store_that_fails_shows_nothing_half_made(
    server: Server,
    source: Path,
    reference: dict[str, bytes],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    monkeypatch.setattr("s3fs.core.S3FileSystem.retries", 1)
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    server.refuse = _puts_of(f"out/{name}" if name != "job.json" and not name.endswith(".json") else name)
    with pytest.raises(OSError):
        reshard(placements(), TP, source, f"s3://{BUCKET}/out")
    found = objects("out")
    assert found.keys() < reference.keys()
    assert MANIFEST not in found
    assert found == {key: reference[key] for key in found}

    server.refuse = None
    reshard(placements(), TP, source, f"s3://{BUCKET}/out")
    assert objects("out") == reference
    assert check(f"s3://{BUCKET}/out", source) == ()


def test_upload_in_parts(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file too large for one request appears only when its last part is there."""
    monkeypatch.setattr(sharding.stores, "_UPLOAD_PART", 5 * 2**20)
    shape = (4096, 2048)  # 16 MiB
    source = write_parts(tmp_path / "in", [{"x": (shape, "U8"), "y": (shape, "U8")}])
    placed = {"tensors": {name: device(shape, cut_evenly(0, 4096, 1), "U8") for name in "xy"}, "rank_tensors": {}}
    (name,) = RANKS[:1]
    parts: list[str] = []

    def third_part(request: Request) -> bool:
        if request.method == "PUT" and request.path.endswith(name):
            parts.append(request.path)
        return len(parts) > 2

    monkeypatch.setattr("s3fs.core.S3FileSystem.retries", 1)
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    server.refuse = third_part
    with pytest.raises(OSError):
        reshard(placed, 1, source, f"s3://{BUCKET}/out")
    server.refuse = None
    assert objects("out") == {}

    assert reshard(placed, 1, source, f"s3://{BUCKET}/out").written == (name,)
    uploads = [request for request in server.requests if request.method == "PUT" and request.path.endswith(name)]
    assert len(uploads) > 3
    assert check(f"s3://{BUCKET}/out", source) == ()


def test_a_source_replaced_while_it_is_read(source: Path, tmp_path: Path) -> None:
    location = upload(source, "in")
    other = write_parts(tmp_path / "other", [{"a": (SHAPE, "BF16")}, dict.fromkeys("bc", (SHAPE, "BF16"))], seed="o")
    replaced: list[bool] = []

    def replace(_: object) -> None:
        if not replaced:
            replaced.append(True)
            upload(other, "in")

    with pytest.raises(SourceChangedError, match="changed while it was read"):
        reshard(placements(), TP, location, f"s3://{BUCKET}/out", progress=replace)
    assert objects("out") == {}
    with pytest.raises(ForeignJobError, match="the source"):
        reshard(placements(), TP, location, f"s3://{BUCKET}/out")


def test_another_jobs_objects_are_left_alone(source: Path, reference: dict[str, bytes]) -> None:
    reshard(placements(), TP, source, f"s3://{BUCKET}/out")
    with pytest.raises(ForeignJobError, match="another job's files are there"):
        reshard(placements(1), TP, source, f"s3://{BUCKET}/out")
    assert objects("out") == reference


@pytest.mark.parametrize("location", ["s3://weights/absent", "s3://no-such-bucket/x"])
def test_a_source_that_is_not_there(location: str, tmp_path: Path) -> None:
    with pytest.raises(ShardingError, match=location):
        reshard(placements(), TP, location, tmp_path / "out")
    assert not (tmp_path / "out").exists()


RUN = """
import json, sys, time
import sharding.writer
from sharding import reshard
from sharding.errors import ShardingError

placements, tp, source, destination, mirror, slow = json.loads(sys.stdin.readline())
real = sharding.writer.write_at

def write_at(file, data, offset):
    time.sleep(slow)
    return real(file, data[: 2**15], offset)

if slow:
    sharding.writer.write_at = write_at
print("ready", flush=True)
sys.stdin.readline()
try:
    result = reshard(placements, tp, source, destination, mirror=mirror)
except ShardingError as error:
    print(error)
    sys.exit(2)
print(json.dumps(result.written))
"""


def start(job: dict[str, Any], source: str, destination: str, mirror: str | None, slow: float, temporary: Path) -> Any:
    process = subprocess.Popen(
        [sys.executable, "-c", RUN],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "TMPDIR": str(temporary)},
    )
    assert process.stdin is not None
    process.stdin.write(json.dumps([job, TP, source, destination, mirror, slow]) + "\n")
    process.stdin.flush()
    return process


def go(*processes: Any) -> None:
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()


@pytest.mark.parametrize("uploads", [1, 3])
def test_a_killed_run_continues(
    server: Server, source: Path, reference: dict[str, bytes], tmp_path: Path, uploads: int
) -> None:
    """SIGKILL while the file after the given number is being made; what the dead run staged is removed by the next."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    location, destination = upload(source, "in"), f"s3://{BUCKET}/out"
    process = start(placements(), location, destination, None, 0.03, temporary)
    go(process)
    while process.poll() is None:
        puts = [request.path for request in list(server.requests) if request.method == "PUT"]
        if sum(bool(re.search(r"/out/\.reshard/.*safetensors\.json", path)) for path in puts) >= uploads:
            break
        time.sleep(0.01)
    time.sleep(0.1)  # into the next file
    process.kill()
    assert process.wait() == -signal.SIGKILL, "it ended before it was killed"
    process.stdin.close()
    process.stdout.close()
    before = objects("out")
    assert MANIFEST not in before
    assert before == {name: reference[name] for name in before}
    assert len(before) >= uploads
    assert list(temporary.iterdir()), "it was killed while nothing was staged"

    again = start(placements(), location, destination, None, 0, temporary)
    go(again)
    output, _ = again.communicate()
    assert again.returncode == 0, output
    assert len(json.loads(output)) == len(FILES) - uploads
    assert objects("out") == reference
    assert list(temporary.iterdir()) == [], "what the dead run staged is still there"


@pytest.mark.parametrize("attempt", range(2))
def test_two_processes_of_one_job(source: Path, reference: dict[str, bytes], tmp_path: Path, attempt: int) -> None:
    processes = [start(placements(), str(source), f"s3://{BUCKET}/out", None, 0.001 * attempt, tmp_path) for _ in "ab"]
    go(*processes)
    for process in processes:
        output, _ = process.communicate()
        assert process.returncode == 0, output
    assert objects("out") == reference


@pytest.mark.parametrize("attempt", range(3))
def test_two_processes_of_different_jobs(source: Path, tmp_path: Path, attempt: int) -> None:
    """One wins, or both refuse: a manifest stands only over files of its own job, and no job's files are overwritten."""
    slow = 0.001 * attempt
    processes = [start(placements(dim), str(source), f"s3://{BUCKET}/out", None, slow, tmp_path) for dim in (0, 1)]
    go(*processes)
    outputs = [process.communicate()[0] for process in processes]
    codes = [process.returncode for process in processes]
    assert sorted(codes) == [0, 2], outputs
    assert check(f"s3://{BUCKET}/out", source) == ()


def test_two_jobs_claim_at_once(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both find the place empty; the second claims it when the first believes that it has it. Only one may go on."""
    first_has_claimed, second_has_ended = threading.Event(), threading.Event()
    second_found_it_empty = threading.Event()
    real_claim, real_size = sharding.ledger.Ledger.claim, sharding.stores.RemoteStore.size
    outcomes: dict[str, Any] = {}

    def size(self: Any, name: str) -> int | None:
        found = real_size(self, name)
        if threading.current_thread().name == "second" and name.endswith("job.json") and claiming.is_set():
            second_found_it_empty.set()
            first_has_claimed.wait(30)
        return found

    claiming = threading.Event()

    def claim(self: Any) -> None:
        if threading.current_thread().name == "second":
            claiming.set()
            real_claim(self)
        else:
            second_found_it_empty.wait(30)
            real_claim(self)
            first_has_claimed.set()
            second_has_ended.wait(60)

    monkeypatch.setattr(sharding.ledger.Ledger, "claim", claim)
    monkeypatch.setattr(sharding.stores.RemoteStore, "size", size)

    def run(dim: int) -> None:
        name = threading.current_thread().name
        try:
            outcomes[name] = reshard(placements(dim), TP, source, f"s3://{BUCKET}/out")
        except ShardingError as error:
            outcomes[name] = error
        if name == "second":
            second_has_ended.set()

    threads = [threading.Thread(target=run, args=(dim,), name=name) for dim, name in enumerate(("first", "second"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    refused = [outcome for outcome in outcomes.values() if isinstance(outcome, ForeignJobError)]
    assert len(refused) == 1, outcomes
    assert check(f"s3://{BUCKET}/out", source) == ()
