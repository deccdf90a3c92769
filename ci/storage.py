#!/usr/bin/env python3
"""Inputs and results in S3, by the real s3fs against moto's server on the loopback, with faults on the way.

usage: ci/with_packages.sh "s3fs moto flask flask-cors" python "$PWD/ci/storage.py"      (.ci/run pins the versions)

A proxy stands between: it drops connections, loses replies and changes objects where a case asks for it. What this
cannot show, as moto is no S3, this disk no network, and two cores no cluster, is said in docs/storage.md.
"""

from __future__ import annotations

import contextlib
import filecmp
import http.client
import importlib.util
import itertools
import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

ROWS, COLUMNS, WEIGHTS, RANK = 1024, 4096, 6, 16  # 50 MB: four parts
BUCKET = "models"


class Proxy(BaseHTTPRequestHandler):
    """Hands requests on to moto. ``rule(method, path, number)`` may ask for a fault, by its name."""

    protocol_version = "HTTP/1.1"
    target: tuple[str, int]
    rule: Callable[[str, str], str | None] = staticmethod(lambda method, path: None)
    seen: list[tuple[str, str]] = []  # noqa: RUF012

    def handle_any(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        type(self).seen.append((self.command, self.path))
        fault = type(self).rule(self.command, self.path)
        if fault == "drop":
            self.close_connection = True
            return
        if fault == "500":
            self._reply(500, {}, b"<Error><Code>InternalError</Code></Error>")
            return
        upstream = http.client.HTTPConnection(*self.target, timeout=60)
        upstream.request(self.command, self.path, body, dict(self.headers))
        reply = upstream.getresponse()
        data = reply.read()
        upstream.close()
        if fault == "lose":
            self.close_connection = True
            return
        headers = {name: value for name, value in reply.getheaders() if name.lower() not in ("connection", "server")}
        self._reply(reply.status, headers, data)

    def _reply(self, status: int, headers: dict[str, str], data: bytes) -> None:
        self.send_response(status)
        for name, value in headers.items():
            if name.lower() not in ("content-length", "transfer-encoding", "date"):
                self.send_header(name, value)
        length = headers.get("Content-Length", str(len(data))) if self.command == "HEAD" else str(len(data))
        self.send_header("Content-Length", length)
        self.end_headers()
        if self.command != "HEAD":
            with contextlib.suppress(ConnectionError):  # of a run that was killed
                self.wfile.write(data)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = handle_any  # noqa: N815

    def log_message(self, *given: Any) -> None:
        """Nothing."""


@contextlib.contextmanager
def serving() -> Iterator[None]:
    """moto and the proxy; the environment leads there."""
    from moto.moto_server.threaded_moto_server import ThreadedMotoServer

    moto = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    moto.start()
    Proxy.target = moto.get_host_and_port()
    proxy = ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
    thread = threading.Thread(target=proxy.serve_forever, daemon=True)
    thread.start()
    os.environ.update(
        AWS_ENDPOINT_URL=f"http://127.0.0.1:{proxy.server_address[1]}",
        AWS_ACCESS_KEY_ID="nobody",
        AWS_SECRET_ACCESS_KEY="nothing",
        AWS_DEFAULT_REGION="us-east-1",
    )
    try:
        yield
    finally:
        proxy.shutdown()
        moto.stop()


@contextlib.contextmanager
def faults(rule: Callable[[str, str], str | None]) -> Iterator[list[tuple[str, str]]]:
    Proxy.rule, Proxy.seen[:] = staticmethod(rule), []  # type: ignore[assignment]
    try:
        yield Proxy.seen
    finally:
        Proxy.rule = staticmethod(lambda method, path: None)  # type: ignore[assignment]


def once(wanted: Callable[[str, str], bool], fault: str, times: int = 1) -> Callable[[str, str], str | None]:
    left, lock = [fault] * times, threading.Lock()

    def rule(method: str, path: str) -> str | None:
        with lock:
            return left.pop() if left and wanted(method, path) else None

    return rule


class Case:
    """The files of all cases, here and in the bucket."""

    def __init__(self, folder: Path) -> None:
        import s3fs

        self.folder = folder
        self.storage = s3fs.S3FileSystem(use_listings_cache=False)
        self.storage.mkdir(BUCKET)
        rng = np.random.default_rng(0)
        names = [f"model.diffusion_model.blocks.{at}.weight" for at in range(WEIGHTS)]
        base = {name: rng.standard_normal((ROWS, COLUMNS), np.float32).astype(np.float16) for name in names}
        factors = {}
        for name in names:
            module = name.removeprefix("model.").removesuffix(".weight")
            factors[f"{module}.lora_A.weight"] = rng.standard_normal((RANK, COLUMNS), np.float32).astype(np.float16)
            factors[f"{module}.lora_B.weight"] = rng.standard_normal((ROWS, RANK), np.float32).astype(np.float16)
        save_file(base, folder / "base.safetensors")
        save_file(factors, folder / "lora.safetensors")
        for name in ("base.safetensors", "lora.safetensors"):
            self.storage.put_file(str(folder / name), f"{BUCKET}/{name}")
        self.wanted = folder / "wanted.safetensors"
        self.ltx2c("fuse", folder / "base.safetensors", "--lora", folder / "lora.safetensors", 0.5, "-o", self.wanted)

    def url(self, name: str) -> str:
        return f"s3://{BUCKET}/{name}"

    def ltx2c(self, *arguments: object, expect: int = 0) -> str:
        """Run a command; what it said on stderr, or on stdout where it had nothing to say there."""
        done = self.started(*arguments)
        out, err = done.communicate(timeout=120)
        assert done.returncode == expect, f"{arguments}: {done.returncode}: {err}{out}"
        return err or out

    def started(self, *arguments: object) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "ltx2c", *map(str, arguments)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def fuse(self, out: str, *more: object, base: str | None = None) -> tuple[object, ...]:
        lora = self.url("lora.safetensors")
        return ("fuse", base or self.url("base.safetensors"), "--lora", lora, 0.5, "-o", self.url(out), *more)

    def assert_whole(self, name: str) -> None:
        there = self.folder / "there"
        self.storage.get_file(f"{BUCKET}/{name}", str(there))
        assert filecmp.cmp(there, self.wanted, shallow=False), f"{name}: bytes differ"

    def uploads(self) -> list[str]:
        return [one["Key"] for one in self.storage.call_s3("list_multipart_uploads", Bucket=BUCKET).get("Uploads", [])]

    def assert_absent(self, name: str) -> None:
        assert not self.storage.exists(f"{BUCKET}/{name}"), f"{name} is there"
        assert not self.uploads(), f"left: {self.uploads()}"


def is_part(method: str, path: str) -> bool:
    return method == "PUT" and "partNumber=" in path


def is_complete(method: str, path: str) -> bool:
    return method == "POST" and "uploadId=" in path


def same_bytes(case: Case) -> None:
    with faults(lambda method, path: None) as seen:
        case.ltx2c(*case.fuse("plain.safetensors"))
    case.assert_whole("plain.safetensors")
    parts = sum(is_part(*one) for one in seen)
    assert parts == -(-case.wanted.stat().st_size // (16 << 20)), parts
    read = sum(method == "GET" and "base.safetensors" in path for method, path in seen)
    case.ltx2c(
        "verify",
        case.url("plain.safetensors"),
        case.url("base.safetensors"),
        "--lora",
        case.url("lora.safetensors"),
        0.5,
    )
    print(f"same bytes: {parts} parts; {read} reads of the base")


def sharded(case: Case) -> None:
    with faults(lambda method, path: None) as seen:
        case.ltx2c(*case.fuse("sharded", "--max-shard-size", "20MB"))
    done = [path.partition("?")[0].rpartition("/")[2] for method, path in seen if is_complete(method, path)]
    assert done[-1].endswith(".index.json") and len(done) == 4, done
    case.ltx2c(
        "verify", case.url("sharded"), case.folder / "base.safetensors", "--lora", case.folder / "lora.safetensors", 0.5
    )


def changed_in_the_middle(case: Case) -> None:
    content = (case.folder / "base.safetensors").read_bytes()
    case.storage.pipe_file(f"{BUCKET}/changing.safetensors", content)
    count, lock = [0], threading.Lock()

    def rule(method: str, path: str) -> str | None:
        if method == "GET" and "changing" in path:
            with lock:
                count[0] += 1
                if count[0] == 6:
                    case.storage.pipe_file(f"{BUCKET}/changing.safetensors", content[:-1] + b"x")
        return None

    with faults(rule):
        said = case.ltx2c(*case.fuse("changed.safetensors", base=case.url("changing.safetensors")), expect=2)
    assert "s3://models/changing.safetensors: changed since it was opened" in said, said
    case.assert_absent("changed.safetensors")


def part_retried(case: Case) -> None:
    for fault in ("drop", "500"):
        with faults(once(lambda method, path: is_part(method, path) and "partNumber=3" in path, fault, 2)) as seen:
            case.ltx2c(*case.fuse("retried.safetensors", "--force"))
        assert sum("partNumber=3&" in path or path.endswith("partNumber=3") for _, path in seen) == 3, fault
        case.assert_whole("retried.safetensors")


def read_retried(case: Case) -> None:
    with faults(once(lambda method, path: method == "GET" and "base" in path, "drop", 3)):
        case.ltx2c(*case.fuse("reread.safetensors"))
    case.assert_whole("reread.safetensors")


def reply_lost(case: Case) -> None:
    with faults(once(is_complete, "lose")) as seen:
        case.ltx2c(*case.fuse("lost.safetensors"))
    case.assert_whole("lost.safetensors")
    assert not case.uploads()
    print(f"reply lost: complete was asked for {sum(is_complete(*one) for one in seen)} times")


def destination_exists(case: Case) -> None:
    case.storage.pipe_file(f"{BUCKET}/taken.safetensors", b"theirs")
    said = case.ltx2c(*case.fuse("taken.safetensors"), expect=2)
    assert "exists; --force replaces it" in said, said

    def rule(method: str, path: str) -> str | None:
        if is_complete(method, path):
            case.storage.pipe_file(f"{BUCKET}/appears.safetensors", b"theirs")
        return None

    with faults(rule):
        said = case.ltx2c(*case.fuse("appears.safetensors"), expect=2)
    assert "it appeared while the result was made" in said, said
    for name in ("taken", "appears"):
        assert case.storage.cat_file(f"{BUCKET}/{name}.safetensors") == b"theirs"
    assert not case.uploads()


def killed(case: Case) -> None:
    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)):
        third = threading.Event()

        def rule(method: str, path: str, third: threading.Event = third) -> str | None:
            if is_part(method, path) and "partNumber=3" in path:
                third.set()
                time.sleep(0.5)  # the part is under way while the signal comes
            return None

        with faults(rule):
            run = case.started(*case.fuse("killed.safetensors"))
            assert third.wait(60), run.communicate()
            run.send_signal(number)
            run.communicate(timeout=60)
        assert run.returncode == code, run.returncode
        if number != signal.SIGKILL:
            case.assert_absent("killed.safetensors")
    assert case.uploads() == ["killed.safetensors"]
    said = case.ltx2c(*case.fuse("killed.safetensors"))
    assert "ltx2c job abandon s3://models/killed.safetensors" in said, said
    case.assert_whole("killed.safetensors")
    case.ltx2c("job", "abandon", case.url("killed.safetensors"))
    assert not case.uploads()
    case.assert_whole("killed.safetensors")


def stalled(case: Case) -> None:
    stalls, reads = threading.Event(), itertools.count()

    def rule(method: str, path: str) -> str | None:
        if method == "GET" and "base.safetensors" in path and next(reads) > 0:  # all but that of the header
            stalls.set()
            time.sleep(20)
        return None

    with faults(rule):
        run = case.started(*case.fuse("stalled.safetensors"))
        assert stalls.wait(60), run.communicate()
        began = time.perf_counter()
        run.send_signal(signal.SIGINT)
        run.communicate(timeout=60)
        took = time.perf_counter() - began
    assert run.returncode == 130 and took < 10, (run.returncode, took)
    case.assert_absent("stalled.safetensors")


CASES = (
    same_bytes,
    sharded,
    changed_in_the_middle,
    part_retried,
    read_retried,
    reply_lost,
    destination_exists,
    killed,
    stalled,
)


def main() -> int:
    missing = [name for name in ("s3fs", "moto", "flask") if importlib.util.find_spec(name) is None]
    if missing:
        print(f"NOT RUN: no {', '.join(missing)} here")
        return 0
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder, serving():
        case = Case(Path(folder))
        for check in CASES:
            began = time.perf_counter()
            check(case)
            print(f"{check.__name__.replace('_', ' ')}: ok, {time.perf_counter() - began:.1f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
