"""The performance gate: does this tree still fuse at the machine's speed, and as fast as the commit before it?

Two questions, each answered in processes of their own so that nothing leaks from one measurement into the next:

floor       4096 x 450 x 4096 is at least 100 times faster than the scalar loop that ltx2c replaces (and gives the same
            bytes). It, low ranks and a weight of few rows reach their shares of the most that this machine's best
            instruction can do on all its cores.
regression  no kernel or file benchmark takes more than 1.25 times as long as with the base commit. Both are built
            alike and measured in turn; what looks slower is measured again before it counts, and both its shortest
            times and the median of its rounds must say so, because the machine may be shared.

    python ci/gate.py                  this tree, against its parent; against HEAD where files have changed since
    python ci/gate.py --base v0.1.0    against a release
    python ci/gate.py --tree DIR       another working tree
    python ci/gate.py --base HEAD --cflags=-DLTX2C_SABOTAGE=LTX2C_SCALAR_LOOP    this tree, spoilt (ci/sabotage.py)

Exit code 0: passed, or nothing to measure. 3: failed, and the table says where. 1: the gate itself broke.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent

FASTER_THAN_SCALAR = 100
LARGE = "4096x450x4096"
# By out x rank x in: a fifth less than the least that was measured on any machine (kernels/README.md). Low ranks end in
# the epilogue and in memory; a weight of few rows reads packed A from L2, and that is slow where L2 is.
SHARES_OF_PEAK = {LARGE: 0.6, "4096x128x4096": 0.48, "4096x32x4096": 0.36, "4096x16x4096": 0.28, "32x450x4096": 0.22}
FACTOR = 1.25

UNFINISHED = "not finished"

FAILED = 3  # an exit code that no traceback has: a gate that broke proves nothing

ROUNDS = 4
REPEATS = 5  # of what looks wrong, before it counts
HOPELESS = 0.25  # of a limit: no noise explains less, so it is not measured again
BUDGET = 420  # seconds, after which nothing more is repeated
DEADLINE = 600  # seconds, after which what is still being measured counts as too slow

# The benchmarks compared. The serial kernel is left to asv: nobody waits for it.
COMPARED = (
    r"^kernels\.(Shapes|OneBlock)\.",
    r"^kernels\.InstructionSets\..*\((haswell|skylake|neon)\)",
    r"^files\.File\.time_fuse",
)

# Room that the file benchmarks need: one block of LTX-2.5, its adapters, the result.
MODEL_BYTES = 6_000_000_000

# What cannot change a measurement.
DOCUMENTS = re.compile(r"\.(md|svg|png)$|^LICENSE$|^asv_bench/results/")

STARTED = time.monotonic()


class Round(NamedTuple):
    """Seconds by benchmark, of both sides, measured one right after the other."""

    base: dict[str, float]
    head: dict[str, float]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", help="the commit to compare with")
    parser.add_argument("--tree", type=Path, default=HERE.parent, help="the working tree to judge")
    parser.add_argument("--cflags", default="", help="compile the tree, and not its base, with these besides")
    args = parser.parse_args()
    tree = args.tree.resolve()
    base = args.base or default_base(tree)
    changed = changed_files(tree, base) if base and not args.cflags else []
    if changed and all(map(DOCUMENTS.search, changed)):
        print(f"gate: skipped: only documents changed since {base}")
        return 0
    with tempfile.TemporaryDirectory(prefix="ltx2c-gate-") as folder:
        try:
            passed = judge(tree, base, Path(folder), args.cflags)
        except subprocess.TimeoutExpired as error:
            print(f"  {UNFINISHED} after {DEADLINE} s: {' '.join(map(str, error.cmd))}")
            passed = False
    print(f"\ngate: {'passed' if passed else 'FAILED'}")
    return 0 if passed else FAILED


def judge(tree: Path, base: str | None, folder: Path, cflags: str) -> bool:
    """Both questions; the second only where the first is answered well, for it may take forever otherwise."""
    head_build = build(copy_of_tree(tree, folder / "head"), cflags)
    if not floor_holds(head_build):
        return False
    if base is None:
        print("regression: skipped: there is no commit to compare with")
        return True
    try:
        base_build = build(copy_of_commit(tree, base, folder / "base"))
    except subprocess.CalledProcessError:
        print(f"regression: skipped: {base} does not build")
        return True
    print(f"regression against {base}, limit {FACTOR}:")
    with tempfile.TemporaryDirectory(prefix="ltx2c-gate-", dir=scratch()) as inputs:
        measure(head_build, Path(inputs), "gate_times.py", "--prepare", *COMPARED)
        return no_slower(base_build, head_build, Path(inputs))


def scratch() -> str | None:
    """Where the file benchmarks' files go: into memory if there is room, since a disk's moods are not ltx2c's doing."""
    memory = Path("/dev/shm")
    return str(memory) if memory.is_dir() and shutil.disk_usage(memory).free > MODEL_BYTES else None


# ---- Trees and builds ------------------------------------------------------------------------------------------------


def git(tree: Path, *arguments: str) -> str:
    return subprocess.run(["git", "-C", str(tree), *arguments], check=True, capture_output=True, text=True).stdout


def default_base(tree: Path) -> str | None:
    """HEAD where the tree differs from it, else its parent; None where there is none, as in a shallow clone."""
    commit = "HEAD" if git(tree, "status", "--porcelain").strip() else "HEAD^"
    verify = ["git", "-C", str(tree), "rev-parse", "--quiet", "--verify", f"{commit}^{{commit}}"]
    found = subprocess.run(verify, check=False, capture_output=True, text=True)
    return found.stdout.strip()[:12] if found.returncode == 0 else None


def changed_files(tree: Path, base: str) -> list[str]:
    """What differs from ``base``, files that git does not know yet included."""
    known = git(tree, "diff", "--name-only", base).split("\n")
    unknown = git(tree, "ls-files", "--others", "--exclude-standard").split("\n")
    return [name for name in (*known, *unknown) if name]


def copy_of_tree(tree: Path, to: Path) -> Path:
    """The tree as it is, without what git ignores: a build must not find an older one's products."""
    names = git(tree, "ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0")
    for name in names:
        if name and (tree / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(tree / name, to / name)
    return to


def copy_of_commit(tree: Path, commit: str, to: Path) -> Path:
    to.mkdir()
    archive = subprocess.run(["git", "-C", str(tree), "archive", commit], check=True, capture_output=True).stdout
    subprocess.run(["tar", "-x", "-C", str(to)], input=archive, check=True)
    return to


def build(source: Path, cflags: str = "") -> Path:
    """Install into a folder of its own, built by pip in isolation as users build it."""
    target = source.with_name(f"{source.name}-installed")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(target), str(source)]
    flags = f"{os.environ.get('CFLAGS', '')} {cflags}".strip()
    subprocess.run(pip, check=True, env={**os.environ, "CFLAGS": flags})
    return target


def measure(build: Path, folder: Path, script: str, *arguments: str) -> dict:
    """What a script prints as JSON when it runs in ``folder`` with the ltx2c of ``build``."""
    environment = {**os.environ, "PYTHONPATH": str(build), "PYTHONSAFEPATH": "1"}
    command = [sys.executable, str(HERE / script), *arguments]
    left = DEADLINE - (time.monotonic() - STARTED)
    done = subprocess.run(
        command, env=environment, cwd=folder, check=True, stdout=subprocess.PIPE, text=True, timeout=max(left, 1)
    )
    return json.loads(done.stdout)


# ---- The two questions -----------------------------------------------------------------------------------------------


def floor_holds(build: Path) -> bool:
    """Prints how fast the kernel is, and against what that is enough."""
    best: dict[str, float] = {}
    for attempt in range(1, REPEATS + 1):
        found = measure(build, build, "gate_floor.py")
        best = {what: max(rate, best.get(what, 0.0)) for what, rate in found["gflops"].items()}
        over_scalar = best[LARGE] / best["scalar"]
        print(f"floor, measurement {attempt}, beside {best['peak']:.0f} GFLOP/s, the peak of {found['instruction']}")
        print(f"  on {found['cores']} cores, and {best['scalar']:.2f} GFLOP/s of the scalar loop:")
        print(f"  {LARGE:<14} {over_scalar:8.0f} times the loop; limit {FASTER_THAN_SCALAR}")
        shares = {name: best[name] / best["peak"] if best["peak"] else 1.0 for name in SHARES_OF_PEAK}
        for name, share in shares.items():
            print(f"  {name:<14} {best[name]:8.1f} GFLOP/s, {share:.2f} of the peak; limit {SHARES_OF_PEAK[name]}")
        if not found["same_bytes"]:
            print("  and other bytes than the scalar loop")
            return False
        reached = min(over_scalar / FASTER_THAN_SCALAR, *(shares[name] / SHARES_OF_PEAK[name] for name in shares))
        if reached >= 1:
            return True
        if reached < HOPELESS or out_of_time():
            break
    return False


def no_slower(base_build: Path, head_build: Path, folder: Path) -> bool:
    """Prints base, head and their ratio for every benchmark."""
    rounds = measured_in_turn(base_build, head_build, folder, COMPARED)
    for pattern in COMPARED:
        if not any(re.search(pattern, name) for name in rounds[0].head):
            print(f"  NOT COMPARED: no benchmark here matches {pattern}")
    if not rounds[0].head:
        return False
    for _ in range(REPEATS):
        suspects = slower(rounds)
        if not suspects or out_of_time():
            break
        print(f"  looks slower, measured again: {', '.join(suspects)}")
        exactly = [f"^{re.escape(name)}$" for name in suspects]
        rounds += measured_in_turn(base_build, head_build, folder, exactly)
    print_table(rounds)
    return not slower(rounds)


def measured_in_turn(base_build: Path, head_build: Path, folder: Path, patterns: Iterable[str]) -> list[Round]:
    """Base and head one after the other, and each first as often as the other."""
    rounds = []
    for number in range(ROUNDS):
        order = (base_build, head_build) if number % 2 == 0 else (head_build, base_build)
        times = {build: measure(build, folder, "gate_times.py", *patterns) for build in order}
        rounds.append(Round(times[base_build], times[head_build]))
    return rounds


def ratio(rounds: list[Round], name: str) -> float:
    """How many times longer head takes, by two estimates that must agree: the smaller of them.

    The ratio of the shortest times sees through bursts of other work on the machine, but not through luck: one side may
    never have had a quiet moment. The median of the rounds' own ratios sees through luck. A slow-down shows in both.
    """
    base, head = times_of(rounds, name)
    if not head:
        return float("inf")  # it no longer runs
    pairs = [one.head[name] / one.base[name] for one in rounds if name in one.base and name in one.head]
    return min(min(head) / min(base), statistics.median(pairs))


def times_of(rounds: list[Round], name: str) -> tuple[list[float], list[float]]:
    return [r.base[name] for r in rounds if name in r.base], [r.head[name] for r in rounds if name in r.head]


def names_of(rounds: list[Round]) -> tuple[list[str], list[str]]:
    """What base ran, and what only head ran."""
    known = list(dict.fromkeys(name for one in rounds for name in one.base))
    new = dict.fromkeys(name for one in rounds for name in one.head if name not in known)
    return known, list(new)


def slower(rounds: list[Round]) -> list[str]:
    """What takes too long, or no longer runs at all."""
    return [name for name in names_of(rounds)[0] if ratio(rounds, name) > FACTOR]


def print_table(rounds: list[Round]) -> None:
    known, new = names_of(rounds)
    width = max(map(len, known + new), default=0)
    for name in known:
        base, head = times_of(rounds, name)
        times = ratio(rounds, name)
        verdict = "  SLOWER" if times > FACTOR else ""
        print(f"  {name:<{width}} {milliseconds(base)} {milliseconds(head)} {times:5.2f}{verdict}")
    for name in new:
        print(f"  {name:<{width}} {'':>12} {milliseconds(times_of(rounds, name)[1])}   new")


def milliseconds(times: list[float]) -> str:
    return f"{min(times) * 1000:9.2f} ms" if times else f"{'gone':>12}"


def out_of_time() -> bool:
    return time.monotonic() - STARTED > BUDGET


if __name__ == "__main__":
    sys.exit(main())
