"""A second user attacks a fuse in a folder that both may write to: 1,000 rounds of a file and of a folder of shards.

    python ci/attack.py [ROUNDS]

The attacker sees every name that appears in the folder and plants at once what could be taken for a temporary, a shard
or the result: links and hard links to the victim's files, files and folders of its own, under the victim's temporaries'
names, under names made like them, and at the result's own. Afterwards nothing of the victim's has changed, and every
result that the victim was told of is the victim's, whole, and with nobody else's bytes.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from ltx2c.errors import RefusedError
from ltx2c.files.destination import Destination
from ltx2c.files.direct import write_small_file
from ltx2c.files.staging import publish, stage
from ltx2c.files.temporaries import SUFFIX, stem

VICTIM, ATTACKER = 65_532, 65_533
PLANTED = b"planted by the attacker"
RESULT = b"the victim's result"
SHARD, INDEX = "model.safetensors", "model.safetensors.index.json"
OUTS = ("out.safetensors", "out")


def become(user: int) -> None:
    os.setgroups([])
    os.setgid(user)
    os.setuid(user)


def attack(shared: Path, precious: Path, seed: int) -> None:
    """Until killed: plant something under a name that may matter, or swap what stands there."""
    become(ATTACKER)
    chance = random.Random(seed)
    plants = [link_to(precious), hard_link_to(precious), plant_file, plant_folder(precious), swap]
    while True:
        seen = [path.name for path in shared.iterdir() if SUFFIX in path.name]
        guess = f"{stem(chance.choice(OUTS))}{chance.randbytes(16).hex()}{SUFFIX}"
        name = chance.choice([*seen, *seen, guess, *(OUTS if chance.random() < 0.002 else ())])
        with contextlib.suppress(OSError):
            chance.choice(plants)(shared / name)


def link_to(precious: Path):
    return lambda path: path.symlink_to(precious)


def hard_link_to(precious: Path):
    return lambda path: path.hardlink_to(precious)


def plant_file(path: Path) -> None:
    with path.open("xb") as file:  # never through a link: only the victim could change the victim's file
        file.write(PLANTED)


def plant_folder(precious: Path):
    def plant(path: Path) -> None:
        path.mkdir(exist_ok=True)
        (path / SHARD).symlink_to(precious)

    return plant


def swap(path: Path) -> None:
    path.rename(path.with_name("stolen"))
    plant_file(path)


def victim_round(shared: Path, *, folder: bool, force: bool) -> str:
    """One result, without the arithmetic; what came of it."""
    out = shared / OUTS[folder]
    try:
        destination = Destination.check(out, inputs=(), needed_bytes=100, folder=folder, force=force)
        with stage(destination) as staged:
            write_small_file(staged.file(SHARD), RESULT)
            if folder:
                write_small_file(staged.file(INDEX), json.dumps({"weight_map": {"a": SHARD}}).encode())
            publish(staged)
    except (RefusedError, OSError) as error:
        return getattr(error, "code", type(error).__name__)
    file = out / SHARD if folder else out
    for path in (out, file):
        found = path.lstat()
        assert found.st_uid == VICTIM and not path.is_symlink(), f"{path} is another's"
        assert found.st_mode & 0o022 == 0, f"{path} may be written by others"
    assert file.read_bytes() == RESULT, "not the victim's bytes"
    assert not folder or len(list(out.iterdir())) == 2, "the attacker's file is in the result"
    return "published"


def main(rounds: int) -> int:
    if os.geteuid():
        print("NOT RUN: becoming two users needs root")
        return 0
    os.umask(0o022)
    memory = Path("/dev/shm")  # where nothing waits for a disk, and the attack is the quicker
    home = Path(tempfile.mkdtemp(prefix="ltx2c-attack-", dir=memory if memory.is_dir() else None))
    home.chmod(0o755)
    precious, shared = home / "precious", home / "shared"
    precious.write_bytes(b"precious")
    precious.chmod(0o666)  # so that no protection of the system's stands before ours
    os.chown(precious, VICTIM, VICTIM)
    before = precious.lstat()
    shared.mkdir()
    shared.chmod(0o1777)
    seed = time.time_ns() % 1_000_000
    attackers = [start(attack, shared, precious, seed + at) for at in range(2)]
    ends: Counter[str] = Counter()
    try:
        for at in range(rounds):
            folder, force = bool(at & 1), bool(at & 2)
            end = in_child(lambda: victim_round(shared, folder=folder, force=force))  # noqa: B023
            ends["folder, " * folder + "--force, " * force + end] += 1
            assert precious.read_bytes() == b"precious", f"seed {seed}, round {at}: the victim's file changed"
            if force and folder:  # two rounds make a file and a folder, the next two replace them
                clear(shared)
        after = precious.lstat()
        assert (before.st_mtime_ns, before.st_mode) == (after.st_mtime_ns, after.st_mode)
    finally:
        for child in attackers:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        shutil.rmtree(home)
        for end, number in sorted(ends.items()):
            print(f"{number:6,}  {end}")
    bad = [end for end in ends if "BAD" in end]
    assert not bad, f"seed {seed}: {bad}"
    published = sum(number for end, number in ends.items() if end.endswith("published"))
    assert published > rounds // 10, "the attack stopped the victim nearly always: it shows little"
    print(f"{rounds:,} rounds: nothing of the victim's changed, nothing of the attacker's was published")
    return 0


def clear(shared: Path) -> None:
    for path in shared.iterdir():
        with contextlib.suppress(OSError):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def in_child(call: Callable[[], str]) -> str:
    """What ``call`` returns, called by the victim."""
    reader, writer = os.pipe()

    def answer() -> None:
        become(VICTIM)
        try:
            text = call()
        except BaseException as error:
            text = f"BAD {type(error).__name__}: {error}"
        os.write(writer, text.encode())

    child = start(answer)
    os.close(writer)
    with os.fdopen(reader) as end:
        text = end.read()
    os.waitpid(child, 0)
    return text


def start(run: Callable[..., None], *words: object) -> int:
    """``run`` in a child process; its id."""
    if child := os.fork():
        return child
    try:
        run(*words)
    finally:
        os._exit(0)
    raise AssertionError


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000))
