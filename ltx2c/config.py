"""Where build systems find the C API: ``python -m ltx2c.config --cflags`` and so on, as pkg-config would say it."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

from ltx2c.version import __version__

_PACKAGE = Path(__file__).parent


def get_include() -> str:
    """The folder of ``ltx2c.h``, and of nothing else: the same kernels and the same bytes from C and C++."""
    return str(_PACKAGE / "include")


def get_cmake_dir() -> str:
    """The folder of the CMake package: ``cmake -Dltx2c_DIR=...``, then ``find_package(ltx2c)``."""
    return str(_PACKAGE / "share" / "cmake" / "ltx2c")


def get_pkgconfig_dir() -> str:
    """The folder of ``ltx2c.pc``, for ``PKG_CONFIG_PATH``."""
    return str(_PACKAGE / "share" / "pkgconfig")


def main(arguments: list[str] | None = None) -> int:
    """Print what is asked for, one line each, in the order of the options."""
    parser = argparse.ArgumentParser(prog="python -m ltx2c.config", description=__doc__)
    answers = {
        "--cflags": (f"-I{shlex.quote(get_include())}", "compiler flags, quoted for a shell"),
        "--includedir": (get_include(), "the folder of ltx2c.h"),
        "--cmakedir": (get_cmake_dir(), "the CMake package, for -Dltx2c_DIR="),
        "--pkgconfigdir": (get_pkgconfig_dir(), "the folder of ltx2c.pc, for PKG_CONFIG_PATH"),
        "--version": (__version__, "the version"),
    }
    for option, (answer, text) in answers.items():
        parser.add_argument(option, dest="asked", action="append_const", const=answer, help=text)
    asked = parser.parse_args(arguments).asked
    if not asked:
        parser.error(f"ask for one of {', '.join(answers)}")
    print(*asked, sep="\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
