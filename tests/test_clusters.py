"""The scripts for schedulers that docs/clusters.md gives do what it says, in the environments that those set."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from fusing import small_model

import ltx2c

DOCS = (Path(__file__).parents[1] / "docs" / "clusters.md").read_text()
UNITS = 4


def block(beginning: str) -> str:
    """The one fenced block that begins so."""
    (found,) = re.findall(rf"```\w+\n({re.escape(beginning)}.*?)```", DOCS, re.DOTALL)
    return found


def shell(script: str, folder: Path, **environment: str) -> None:
    (folder / "ltx2c").write_text(f'#!/bin/sh\nexec {sys.executable} -m ltx2c "$@"\n')
    (folder / "ltx2c").chmod(0o755)
    path = f"{folder}:{os.environ['PATH']}"
    subprocess.run(["bash", "-euc", script], cwd=folder, env={**os.environ, "PATH": path, **environment}, check=True)


def test_the_scripts_make_the_result(tmp_path: Path) -> None:
    base, adapters, _ = small_model(tmp_path)
    (lora, _), _ = adapters
    lora = lora.rename(tmp_path / "style.safetensors")
    ltx2c.fuse_checkpoint(base, [(lora, 0.8)], tmp_path / "single")
    create, _, finish = block("ltx2c job create").splitlines()
    shell(create.replace("--units 64", f"--units {UNITS}"), tmp_path)
    array = block("#!/bin/bash")
    assert "--array=0-63" in array
    shell(array, tmp_path, SLURM_ARRAY_TASK_ID="2", SLURM_CPUS_PER_TASK="1")
    (command,) = re.findall(r"command: (\[.*\])", block("apiVersion"))
    *_, pod = json.loads(command)
    for number in (3, 0, 1):
        shell(
            pod.replace("/data/", "").replace("--threads 8", "--threads 1"), tmp_path, JOB_COMPLETION_INDEX=str(number)
        )
    shell(finish, tmp_path)
    assert (tmp_path / "fused.safetensors").read_bytes() == (tmp_path / "single").read_bytes()
