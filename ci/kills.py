"""500 fuses killed at random moments, and 200 in which a random system call fails: on ext4, tmpfs and FUSE.

    python ci/kills.py [SCALE]

Files and folders, new ones and such as replace an old result. After each the inputs are as they were, OUT is absent,
the old or the whole new result, and the next run ends well and leaves nothing but its result.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from fusing import small_model
from mounts import mounted_ext4, mounted_fuse, mounted_tmpfs

from ltx2c.api import fuse_checkpoint  # here, and not in each child
from ltx2c.errors import RefusedError

FORMS: dict[str, dict[str, Any]] = {"file": {}, "folder": {"max_shard_bytes": 20_000}}
PLACES = {
    "ext4": (lambda at: mounted_ext4(at, megabytes=32), 200, 80),
    "tmpfs": (lambda at: mounted_tmpfs(at, "size=32M"), 200, 80),
    "FUSE": (lambda at: mounted_fuse(at), 60, 20),
    "FUSE without rename2": (lambda at: mounted_fuse(at, "rename2"), 40, 20),
}
FUNCTIONS = [(os, name) for name in ("open", "mkdir", "rename", "link", "unlink", "rmdir", "stat", "fstat", "dup")]
FUNCTIONS += [(os, name) for name in ("preadv", "pwritev", "pwrite", "fsync", "ftruncate", "listdir", "fchmod")]
FUNCTIONS += [(fcntl, "flock")]
CODES = [errno.EIO, errno.ENOSPC, errno.EACCES, errno.EPERM, errno.ENOSYS, errno.EINVAL, errno.EMFILE, errno.ENOENT]


KEPT = 4  # the exit code of a run that told where it keeps what it could not remove


def digest(path: Path) -> str:
    """Of a file, or of the names and contents of a folder."""
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    return hashlib.sha256(b"".join(file.name.encode() + file.read_bytes() for file in files)).hexdigest()


class Job:
    """A small fuse, into one place in one form."""

    def __init__(self, inputs: Path, place: Path, form: str) -> None:
        self.base, self.adapters, _ = small_model(inputs)
        self.form = FORMS[form]
        self.out = place / form
        self.sources = {path: digest(path) for path in inputs.iterdir()}
        self.run(1.0)
        self.old = self.state()
        began = time.perf_counter()
        self.run(0.5)
        self.seconds = time.perf_counter() - began
        self.new = self.state()
        self.remove()

    def start(self, scale: float, prepare: Callable[[], None] = lambda: None) -> int:
        """A child that fuses; its id."""
        if child := os.fork():
            return child
        code = 70
        try:
            prepare()
            adapters = [(path, strength * scale) for path, strength in self.adapters]
            notes = fuse_checkpoint(self.base, adapters, self.out, threads=1, force=True, **self.form).notes
            code = KEPT if any(".kept-" in note for note in notes) else 0
        except (OSError, RefusedError):
            code = 3
        finally:
            os._exit(code)
        raise AssertionError

    def run(self, scale: float) -> None:
        ended = os.waitpid(self.start(scale), 0)[1]
        assert ended == 0, f"the run ended with {ended}"

    def state(self) -> str:
        return digest(self.out) if os.path.lexists(self.out) else "absent"

    def remove(self) -> None:
        for path in [*self.out.iterdir(), self.out] if self.out.is_dir() else [self.out]:
            path.rmdir() if path.is_dir() else path.unlink()

    def check(self, before: str, what: str) -> str:
        """What came of a run that was killed or failed, once the next has cleared up behind it."""
        found = self.state()
        state = {before: "absent" if before == "absent" else "old", self.new: "new"}.get(found)
        assert state or found == "absent", f"{what}: OUT is neither old nor new"
        for path, content in self.sources.items():
            assert digest(path) == content, f"{what}: {path.name} changed"
        left = len(list(self.out.parent.iterdir())) - (found != "absent")
        self.run(0.5)
        assert self.state() == self.new, f"{what}: the next run's result is another"
        beside = sorted(path.name for path in self.out.parent.iterdir() if path != self.out)
        assert not beside, f"{what}: the next run leaves {beside}"
        return f"OUT {state or 'absent'}" + ", something left to clear" * bool(left)


def killed(job: Job, chance: random.Random, before: str) -> str:
    child = job.start(0.5)
    time.sleep(chance.uniform(0, 1.1 * job.seconds))
    os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    return ("killed: " if os.WIFSIGNALED(status) else "too late: ") + job.check(before, "killed")


def failed(job: Job, chance: random.Random, before: str) -> str:
    module, name = chance.choice(FUNCTIONS)
    code, number = chance.choice(CODES), chance.choice([1, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30])
    ended = os.waitpid(job.start(0.5, lambda: fail(module, name, code, number)), 0)[1]
    what = f"{name} {number}: {errno.errorcode[code]}"
    assert os.waitstatus_to_exitcode(ended) in (0, 3, KEPT), f"{what}: a bug, {ended}"
    assert os.waitstatus_to_exitcode(ended) != 3 or job.state() != job.new, f"{what}: no failure, OUT is in place"
    if os.waitstatus_to_exitcode(ended) == KEPT:
        (kept,) = job.out.parent.glob("*.kept-*")
        shutil.rmtree(kept) if kept.is_dir() else kept.unlink()
    return ("failed: " if ended else "went on: ") + job.check(before, what)


def fail(module: Any, name: str, code: int, number: int) -> None:
    """Let one call of a function fail."""
    whole, left = getattr(module, name), iter(range(number, -1_000_000, -1))

    def call(*words: Any, **named: Any) -> Any:
        if next(left) == 1:
            raise OSError(code, os.strerror(code))
        return whole(*words, **named)

    setattr(module, name, call)


def sweep(place: str, folder: Path, scale: float, chance: random.Random) -> Iterator[tuple[str, str]]:
    mounted, kills, faults = PLACES[place]
    with mounted(folder / "mount") as mount:
        for form in FORMS:
            inputs, at = folder / form, mount / f"in-{form}"
            inputs.mkdir()
            at.mkdir()
            job = Job(inputs, at, form)
            for strike, count in ((killed, kills), (failed, faults)):
                for number in range(round(count * scale / len(FORMS))):
                    if number % 2:
                        job.run(1.0)  # an old result to replace
                    elif job.state() != "absent":
                        job.remove()
                    yield f"{form}{', --force' * (number % 2)}", strike(job, chance, job.state())


def main(scale: float) -> int:
    if os.geteuid() or shutil.which("mkfs.ext4") is None or not Path("/dev/fuse").exists():
        print("NOT RUN: mounting ext4, tmpfs and FUSE needs root, mkfs.ext4 and /dev/fuse")
        return 0
    seed = time.time_ns() % 1_000_000
    total: Counter[str] = Counter()
    for place in PLACES:
        counts: Counter[str] = Counter()
        with tempfile.TemporaryDirectory(prefix="ltx2c-kills-") as folder:
            try:
                for what, end in sweep(place, Path(folder), scale, random.Random(seed)):
                    counts[f"{place}, {what}: {end}"] += 1
                    total["kills" if end.startswith(("killed", "too late")) else "faults"] += 1
            except BaseException:
                print(f"seed {seed}, {place}: {counts}")
                raise
        for line, number in sorted(counts.items()):
            print(f"{number:4}  {line}")
    print(f"{total['kills']} kills, {total['faults']} faults: inputs untouched, OUT absent, old or whole, nothing left")
    return 0


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]) if len(sys.argv) > 1 else 1.0))
