"""Run the docs' code blocks that are too slow for the tests: in a copy of the tree, with environments of their own.

The blocks are those that say `run by ci/docs.py`: the main job, the session with files of LTX-2.5's shape, whose output
must be what the docs show but for numbers, and how the node pack is installed.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[0] = str(ROOT / "tests")
from snippets import Snippet, launcher, run_console, run_shell, snippets  # noqa: E402

LIMIT = 900  # seconds for one block
# Not copied. Objects are, with their times, so that nothing is compiled again that CI has just compiled.
LEFT = shutil.ignore_patterns(".git", ".venv", ".*cache", "__pycache__", "env", "html", "*.so")

# An environment that a block makes sees this one's packages. `ci/wheels.sh` installs them afresh.
PYTHON3 = """#!/bin/sh
"{python}" "$@" || exit
if [ "$1 $2" = "-m venv" ]; then
    for site in "$3"/lib/python*/site-packages; do cp "{outer}" "$site/outer.pth"; done
fi
"""


def main() -> int:
    """Run them all; the first that fails ends it."""
    blocks = [one for one in snippets() if one.mark == "run by" and one.told == "ci/docs.py"]
    with tempfile.TemporaryDirectory(prefix="ltx2c-docs-") as name:
        home = Path(name)
        clone = home / "clone" / "ltx2c"
        shutil.copytree(ROOT, clone, ignore=LEFT)
        sessions, pack = home / "me", home / "pack"
        sessions.mkdir()
        environment = {**os.environ, "PATH": f"{launcher(home / 'bin')}:{os.environ['PATH']}"}
        fresh = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
        fresh["PATH"] = f"{_python3(home / 'python3')}:{os.environ['PATH']}"
        for block in blocks:
            began = time.monotonic()
            if block.language == "console":
                run_console(block.code, sessions, environment, timeout=LIMIT)
            elif block.document.startswith("integrations/"):
                _pack(pack, clone, block, fresh)
            else:
                run_shell(block.code, clone, fresh, timeout=LIMIT)
            print(f"{block.name}: {time.monotonic() - began:.0f} s", flush=True)
    assert {block.language for block in blocks} == {"console", "sh"} and len(blocks) == 5
    print(f"docs: {len(blocks)} blocks ran")
    return 0


def _python3(folder: Path) -> Path:
    folder.mkdir()
    outer = [path for path in sys.path if path.endswith("site-packages")]
    (folder / "outer").write_text("".join(f"import site; site.addsitedir({path!r})\n" for path in outer))
    (folder / "python3").write_text(PYTHON3.format(python=sys.executable, outer=folder / "outer"))
    (folder / "python3").chmod(0o755)
    return folder


def _pack(folder: Path, clone: Path, block: Snippet, environment: dict[str, str]) -> None:
    """With a ComfyUI that is nothing but its folders and its Python."""
    (folder / "COMFYUI" / "custom_nodes").mkdir(parents=True)
    run_shell("python3 -m venv COMFYUI/.venv", folder, environment)
    shutil.copytree(clone, folder / "ltx2c", ignore=LEFT)
    run_shell(block.code, folder, environment, timeout=LIMIT)
    nodes = folder / "COMFYUI" / "custom_nodes" / "ltx2c"
    assert (nodes / "__init__.py").is_file() and (nodes / "LICENSE").is_file()
    run_shell("COMFYUI/.venv/bin/python -c 'import ltx2c; ltx2c.fuse_checkpoint'", folder, environment)


if __name__ == "__main__":
    sys.exit(main())
