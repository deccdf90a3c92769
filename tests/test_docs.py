"""Every code block of the docs runs: here, with stand-ins for others' software, or in the script that it names."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from fusing import adapter, save, values
from model_folders import in_a_cache, pipeline
from snippets import ROOT, Snippet, launcher, parse, run_console, run_python, run_shell, shape, snippets

import ltx2c

SNIPPETS = snippets()
STANDINS = Path(__file__).parent / "standins"

# What stands before a block's first line, where the text around it says so.
CREATE = "ltx2c job create JOB base.safetensors --lora style.safetensors 0.8 -o fused.safetensors --units 64\n"
BEFORE = {
    "#SBATCH": CREATE,
    "kind: Job": CREATE,
    "LTX2Pipeline.from_pretrained": "ltx2c fuse hf://Lightricks/LTX-2 --lora style.safetensors 0.8 -o fused",
    "DiffusionStage.from_checkpoint": "ltx2c phases ti2vid_two_stages ltx-2.5.safetensors "
    "--distilled-lora distilled-lora.safetensors -o phases",
}
# Names that the blocks of Python use without making them.
NAMES = """
import ml_dtypes, numpy as np

def made(*shape):
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(ml_dtypes.bfloat16)

weight, a, b, a2, b2 = made(64, 48), made(4, 48), made(64, 4), made(2, 48), made(64, 2)
layers = [(made(64, 48), a, b), (made(64, 40), made(3, 40), made(64, 3))]

class pipeline:
    dtype, device = "bfloat16", "cpu"
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny base, adapters and a hub's cache, under the names that the docs use."""
    home = tmp_path_factory.mktemp("docs")
    work = home / "work"
    work.mkdir()
    modules = {"proj_out": (33, 7, 65), "transformer_blocks.0.attn1.to_q": (300, 16, 128)}
    for name in ("base", "ltx-2.5"):
        tensors = {f"model.diffusion_model.{key}.weight": values(3, out, n) for key, (out, _, n) in modules.items()}
        save(work / f"{name}.safetensors", {**tensors, "left": np.zeros(2 << 20, np.uint8)})
    for seed, name in enumerate(ADAPTERS):
        few = {key: sizes for key, sizes in modules.items() if key != "proj_out" or name not in BOTH}
        save(work / f"{name}.safetensors", adapter(few, 10 * seed))
    for one in SNIPPETS:
        if one.mark == "file":
            (work / one.told).write_text(one.code)
    for name in json.loads(MERGERS.read_text()):
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        (work / name).write_text(MERGER.format(data=str(MERGERS), name=name))
    in_a_cache(pipeline(home / "pipeline", shards=2), home / "hub", "Lightricks/LTX-2")
    (work / "engine.cpp").write_text("#include <ltx2c.h>\nconst char *engine() { return LTX2C_VERSION; }\n")
    launcher(home / "bin")
    return home


# What other projects' scripts take, at the commits that are named there; in their place stands what takes just that.
MERGERS = Path(__file__).parent / "data" / "merge_commands.json"
MERGER = """
import argparse, json, pathlib
parser = argparse.ArgumentParser(allow_abbrev=False)
for option, takes in json.loads(pathlib.Path({data!r}).read_text())[{name!r}]["options"].items():
    parser.add_argument(option, **takes)
for given in vars(parser.parse_args()).values():
    for value in given if isinstance(given, list) else [given]:
        assert not str(value).endswith("base.safetensors") or pathlib.Path(value).is_file(), value
"""

ADAPTERS = ("style", "style-lora", "distilled", "distilled-lora", "a-lora", "b-lora", "detail")
BOTH = ("style",)  # fits diffusers' transformer too, which has no proj_out


@pytest.fixture
def folder(home: Path, tmp_path: Path) -> Path:
    """A folder of a block's own with all of that."""
    made = tmp_path / "work"
    shutil.copytree(home / "work", made, copy_function=os.link)
    return made


@pytest.fixture
def environment(home: Path) -> dict[str, str]:
    package = str(Path(ltx2c.__file__).parents[1])
    return {
        "PATH": f"{home / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": ":".join([package, *(str(STANDINS / name) for name in ("ltx2", "diffusers"))]),
        "PYTHONDONTWRITEBYTECODE": "1",
        "HOME": str(home),
        "HF_HUB_CACHE": str(home / "hub"),
        "SLURM_ARRAY_TASK_ID": "1",
        "SLURM_CPUS_PER_TASK": "2",
        "JOB_COMPLETION_INDEX": "2",
    }


def runs(snippet: Snippet) -> bool:
    return snippet.language != "text" and snippet.mark != "file"


@pytest.mark.parametrize("snippet", [one for one in SNIPPETS if runs(one)], ids=lambda one: one.name)
def test_it_runs(snippet: Snippet, folder: Path, environment: dict[str, str]) -> None:
    if snippet.mark:
        pytest.skip(f"{snippet.name}: {snippet.mark} {snippet.told}")
    for text, tool in NEEDS.items():
        if text in snippet.code and shutil.which(tool) is None:
            pytest.skip(f"{snippet.name}: there is no {tool} here")
    for text, command in BEFORE.items():
        if text in snippet.code:
            run_shell(command, folder, environment)
    RUN[snippet.language](snippet.code, folder, environment)


def run_container(code: str, folder: Path, environment: dict[str, str]) -> None:
    """What a Kubernetes job's container runs, with its volume here."""
    command = json.loads(re.findall(r"command: (\[.*\])$", code, re.MULTILINE)[0])
    assert command[:2] == ["sh", "-c"]
    run_shell(command[2].replace("/data/", f"{folder}/"), folder, environment)


def check_c(code: str, folder: Path, environment: dict[str, str]) -> None:
    """What a unit of a program begins with."""
    (folder / "unit.c").write_text(code)
    run_shell(
        "cc -std=c11 -fsyntax-only -Wall -Wextra -Werror $(python -m ltx2c.config --cflags) unit.c", folder, environment
    )


def check_cpp(code: str, folder: Path, environment: dict[str, str]) -> None:
    """What a function of an engine does that has jobs, and the examples' pool."""
    (folder / "unit.cpp").write_text(f"{ENGINE}\nvoid engine(std::vector<ltx2c_job> jobs, Pool &pool) {{\n{code}}}\n")
    flags = f"-std=c++17 -fsyntax-only -Wall -Wextra -Werror -I{ROOT}/examples/cpp"
    run_shell(f"c++ {flags} $(python -m ltx2c.config --cflags) unit.cpp", folder, environment)


ENGINE = """#include <stdexcept>
#include "pool.hpp"
"""
# Tools that not every machine has, by what blocks hold that use them.
NEEDS = {"LTX2C_IMPLEMENTATION": "cc", "ltx2c_open_batch": "c++", "c++ ": "c++", "pkg-config ": "pkg-config"}

RUN = {
    "c": check_c,
    "cpp": check_cpp,
    "sh": run_shell,
    "python": lambda code, *where: run_python(NAMES + code, *where),
    "console": run_console,
    "yaml": run_container,
}


@pytest.mark.parametrize("snippet", SNIPPETS, ids=lambda one: one.name)
def test_it_says_what_it_is(snippet: Snippet) -> None:
    assert snippet.language, "a code block is fenced, and names its language"
    if snippet.mark == "run by":
        script = (ROOT / snippet.told.split()[0]).read_text()
        assert snippet.told == ".ci/run" or snippet.told.split()[0] in (ROOT / ".ci" / "run").read_text()
        assert script
    elif runs(snippet) and not snippet.mark:
        assert snippet.language in RUN, f"nothing runs {snippet.language}: let a script do it, and say which"
    elif not runs(snippet) and not snippet.mark:
        assert not re.search(r"^(\$ |ltx2c |pip |import |from )", snippet.code, re.MULTILINE), "this is a program"


def test_the_docs_were_found() -> None:
    found = {one.document for one in SNIPPETS}
    assert found >= {"README.md", "CONTRIBUTING.md", "docs/integrations.md", "integrations/comfyui/README.md"}
    assert sum(not one.mark and one.language in RUN for one in SNIPPETS) >= 12
    assert all(sum(text in one.code for one in SNIPPETS) == 1 for text in BEFORE)


def test_blocks_are_parsed_as_they_stand() -> None:
    text = "a\n\n<!-- snippet: not run: x -->\n```sh\na\n\n    b\n```\n\n    indented\n\n```\n```\n"
    text += "<!-- snippet: file f -->\n\n```toml\n```"
    found = [(one.line, one.language, one.mark, one.told, one.code) for one in parse("d", text)]
    assert found == [
        (4, "sh", "not run:", "x", "a\n\n    b\n"),
        (10, "", "", "", "    indented\n"),
        (12, "", "", "", ""),
        (16, "toml", "", "", ""),  # the mark is not in the line before it
    ]


def test_a_block_that_fails_or_prints_something_else_is_found(folder: Path, environment: dict[str, str]) -> None:
    with pytest.raises(AssertionError, match="No such file"):
        run_shell("ltx2c inspect absent.safetensors\ntrue", folder, environment)
    with pytest.raises(AssertionError, match=r"1\.5 s"):
        run_console("$ echo took 1.5 s\nwould take 2 s\n", folder, environment)
    run_console("$ echo took 1.5 s, 3 GB in $PWD/x\ntook 12 s,\n20.1 MB in /home/me/x\n", folder, environment)
    assert shape("2 weights (kernel genoa, 1 thread)") == shape("30 weights (kernel serial, 16 threads)") != shape("2")
