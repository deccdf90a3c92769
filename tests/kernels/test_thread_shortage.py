"""Fewer threads than asked for, threads bound to CPUs, fusions that are interrupted: the process goes on."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest

import ltx2c
from ltx2c import kernels, threads
from ltx2c.crew import Crew, start_thread
from ltx2c.kernels import fuse

FUSE = """
import os, resource, sys, threading
import numpy as np
import ltx2c
from ltx2c import reference
from ltx2c.fusion import fuse_tensor

rng = np.random.default_rng(0)
weight, a, b = (rng.standard_normal(shape, np.float32) for shape in ((600, 700), (8, 700), (600, 8)))
expected = reference.fuse_tensor(weight, [(a, b, 0.5)])

def check(threads):
    assert fuse_tensor(weight, [(a, b, 0.5)], threads=threads).tobytes() == expected.tobytes()

def allow_threads(more):
    if os.getuid() == 0:  # whom the limit does not bind
        os.setuid(65534)
        more += len(os.listdir("/proc/self/task"))
    else:
        more = 1
    resource.setrlimit(resource.RLIMIT_NPROC, (more, more))
"""


def run(program: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", FUSE + program],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **environment},
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


@pytest.mark.parametrize("more", [0, 1, 3])
def test_a_limit_of_processes(more: int) -> None:
    run(f"allow_threads({more}); check(8); check(2); check(8)")


def test_a_limit_after_threads_were_had() -> None:
    run("check(4); allow_threads(0); check(4); check(16); check(1); check(2)")


def test_a_limit_of_address_space() -> None:
    run(
        "pages = int(open('/proc/self/statm').read().split()[0])\n"
        "check(1)\n"
        "room = pages * resource.getpagesize() + (60 << 20)\n"
        "resource.setrlimit(resource.RLIMIT_AS, (room, room))\n"
        "check(32)"
    )


def test_a_limit_and_the_codecs() -> None:
    run(
        "from ltx2c.kernels import codecs, fuse\n"
        "codes, values = np.ones((64, 64), np.uint8), np.zeros((64, 256), np.uint8)\n"
        "allow_threads(0)\n"
        "codecs.decode_fp8(codes, values, True, 0, None, (1, 64), 8)\n"
        "assert values.any() and fuse.obtainable_threads(8) == 1"
    )


def test_a_limit_in_a_thread_of_the_callers() -> None:
    run(
        "done = []\n"
        "thread = threading.Thread(target=lambda: (allow_threads(0), check(4), done.append(True)))\n"
        "thread.start(); thread.join(); assert done"
    )


@pytest.mark.parametrize("more", [0, 1, 2])
def test_a_whole_checkpoint_without_threads(more: int) -> None:
    with tempfile.TemporaryDirectory() as folder:  # not tmp_path, which is for this user alone
        Path(folder).chmod(0o777)
        run(
            "from safetensors.numpy import save_file\n"
            "from ltx2c import fuse_checkpoint, rates\n"
            f"base, lora, out = ('{folder}/' + name for name in ('base', 'lora', 'out'))\n"
            "save_file({'model.diffusion_model.x.weight': weight}, base)\n"
            "save_file({'diffusion_model.x.lora_A.weight': a, 'diffusion_model.x.lora_B.weight': b}, lora)\n"
            "for path in (base, lora): os.chmod(path, 0o644)\n"
            f"allow_threads({more})\n"
            "fuse_checkpoint(base, [(lora, 0.5)], out, threads=8)\n"
            "assert expected.tobytes() in open(out, 'rb').read()\n"
            "assert rates.measure_rates().bytes > 0\n"
        )


@pytest.mark.parametrize(
    "variable", ["OMP_PROC_BIND=true", "OMP_PROC_BIND=close", "GOMP_CPU_AFFINITY=0-127", "OMP_PLACES=cores"]
)
def test_bound_threads_do_not_lower_the_default(variable: str) -> None:
    free = "OMP_NUM_THREADS", *threads._BINDING
    environment = {name: value for name, value in os.environ.items() if name not in free}
    name, value = variable.split("=")
    program = "from ltx2c.threads import limits; check(2); print(limits()['affinity mask'])"
    done = subprocess.run(
        [sys.executable, "-c", FUSE + program], capture_output=True, text=True, env={**environment, name: value}
    )
    assert done.stdout == f"{len(os.sched_getaffinity(0))}\n"


def test_the_default_follows_the_affinity_mask() -> None:
    run(
        "from ltx2c.threads import resolve_threads\n"
        "resolve_threads(None)\n"
        "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "assert resolve_threads(None) == 1"
    )


def test_a_background_fusion_while_the_interpreter_ends() -> None:
    output = run(
        "import time\n"
        "from ltx2c.engines.turns import Turns\n"
        "from ltx2c.engines.pipeline import Steps, run_pipeline\n"
        "def work():\n"
        "    time.sleep(0.3)\n"
        "    check(2)\n"
        "    steps = Steps(lambda item, buffer: item, lambda item, buffer, loaded: check(2))\n"
        "    done = list(run_pipeline(range(3), steps, buffers=[memoryview(b'x')], workers=2))\n"
        "    print(len(done), flush=True)\n"
        "turns = Turns('checkpoint')\n"
        "turns.submit(work)"
    )
    assert output == "3\n"


# ---- Interrupted kernels --------------------------------------------------------------------------------------------


def test_ctrl_c_ends_a_long_fusion() -> None:
    program = (
        "import signal, time\n"
        "a, b = np.ones((4096, 8192), np.float32), np.ones((8192, 4096), np.float32)\n"
        "weight = np.zeros((8192, 8192), np.float32)\n"
        "signal.setitimer(signal.ITIMER_REAL, 0.3)\n"
        "signal.signal(signal.SIGALRM, signal.default_int_handler)\n"
        "try:\n"
        "    fuse_tensor(weight, [(a, b, 1.0)], out=weight)\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted', weight[-1].any())\n"
    )
    assert run(program, LTX2C_KERNEL="serial") == "interrupted False\n"


def test_a_stop_ends_kernels_in_another_thread() -> None:
    a, b, weight = (
        np.ones((4096, 8192), np.float32),
        np.ones((4096, 4096), np.float32),
        np.zeros((4096, 8192), np.float32),
    )
    with Crew(1, "test") as crew:
        future = crew.submit(ltx2c.fuse_tensor, weight, [(a, b, 1.0)] * 8, out=weight, threads=1)
        time.sleep(0.1)
        crew.cancel()
    assert isinstance(future.exception(), kernels.CancelledError)
    assert not weight[-1].any()


def test_a_stop_before_the_start_ends_at_once() -> None:
    stop = fuse.Stop()
    stop.ask()
    jobs = fuse.Jobs(0, 0)
    with pytest.raises(kernels.CancelledError):
        jobs.run(kernels.selected(), 1, stop)


# ---- Crews ----------------------------------------------------------------------------------------------------------


def test_a_crew_without_threads_calls_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_thread(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("threading.Thread.start", no_thread)
    with Crew(3, "test") as crew:
        assert crew.submit(lambda: 3).result(0) == 3
        assert isinstance(crew.submit(lambda: 1 / 0).exception(0), ZeroDivisionError)
    assert start_thread(lambda: None, "test", started := []) is False and started == []


def test_a_crew_waits_for_its_calls_and_cancels_where_its_block_fails() -> None:
    with Crew(1, "test") as crew:
        slow, waiting = crew.submit(time.sleep, 0.05), crew.submit(lambda: 5)
    assert slow.done() and waiting.result() == 5
    with pytest.raises(OSError), Crew(1, "test") as crew:
        slow, waiting = crew.submit(time.sleep, 0.05), crew.submit(lambda: 5)
        raise OSError
    assert slow.done() and waiting.cancelled()
