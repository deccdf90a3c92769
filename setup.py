"""Build instructions for the compiled kernels; everything else is in pyproject.toml.

The baseline stays at the ABI's floor: a built wheel runs on any x86-64 or aarch64 machine and picks its kernel when it
is first used. What the compiler at hand cannot do, OpenMP or one instruction set, is tried here and left out with a
word, so an old compiler loses speed and not the build.
"""

from __future__ import annotations

import os
import re
import tempfile
import warnings
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CCompilerError, CompileError, LinkError

KERNELS = Path("ltx2c", "kernels")

# Contraction would turn the contract's multiply-then-add into a fused one. These come after the user's CFLAGS, so that
# a -ffast-math there loses.
COMPILE = ["-std=c11", "-O3", "-ffp-contract=off", "-fno-fast-math"]

# The linker gets CFLAGS too: of -ffast-math or -Ofast there, GCC makes code that flushes denormals in the whole process
# from the import on.
LINK = ["-O3", "-fno-fast-math"]

OPENMP = """
#include <omp.h>
int main(void) {
    int count = 0;
#pragma omp parallel reduction(+ : count)
    count += omp_get_num_threads();
    return count == 0;
}
"""

PAUSE = """
#include <omp.h>
int main(void) { return omp_pause_resource_all(omp_pause_hard); }
"""

CLONES = """
__attribute__((target_clones("default", "arch=x86-64-v3", "arch=x86-64-v4"))) static int twice(int x) { return 2 * x; }
int main(int count, char **words) { return words[0] ? twice(count) : 0; }
"""


class BuildKernels(build_ext):
    """Tries out what the compiler can do, then builds for it."""

    def build_extensions(self) -> None:
        for extension in self.extensions:
            extension.extra_compile_args[:0] = COMPILE  # first: -fno-fast-math undoes what is narrower
            extension.extra_link_args += LINK
            for name in re.findall(r'#include "(\w+)\.h"', (KERNELS / "kernels.def").read_text()):
                if not self._builds(f'#include "{name}.h"\nint main(void) {{ return 0; }}\n', COMPILE):
                    warnings.warn(f"this compiler cannot build the {name} kernel: left out", stacklevel=1)
                    extension.define_macros.append((f"LTX2C_WITHOUT_{name.upper()}", "1"))
            if self._builds(CLONES, COMPILE):
                extension.define_macros.append(("LTX2C_CLONES_BUILD", "1"))
            if self._builds(OPENMP, ["-fopenmp"]):
                extension.extra_compile_args.append("-fopenmp")
                extension.extra_link_args.append("-fopenmp")
                if self._builds(PAUSE, ["-fopenmp"]):
                    extension.define_macros.append(("LTX2C_OMP_PAUSE", "1"))
            else:
                warnings.warn("this compiler has no OpenMP: ltx2c will fuse on one core", stacklevel=1)
        super().build_extensions()

    def _builds(self, source: str, arguments: list[str]) -> bool:
        """Whether ``source`` compiles and links with these arguments."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "probe.c")
            path.write_text(source)
            try:
                objects = self.compiler.compile(
                    [str(path)], output_dir=folder, include_dirs=[str(KERNELS)], extra_postargs=arguments
                )
                self.compiler.link_executable(objects, "probe", output_dir=folder, extra_postargs=arguments)
            except (CCompilerError, CompileError, LinkError):
                return False
        return True


# Compilers vectorise a choice between two results only where computing both cannot trap. Nothing here can: exceptions
# are masked while codecs run. No result depends on it.
FLAGS = {"fuse": [], "codecs": ["-fno-trapping-math"], "elementwise": ["-fno-trapping-math"]}

EXTENSIONS = [
    Extension(
        f"ltx2c.kernels.{name}",
        [f"ltx2c/kernels/{name}.pyx"],
        extra_compile_args=flags,
        include_dirs=[str(KERNELS)],
        depends=[os.fspath(path) for pattern in ("*.h", "*.def") for path in KERNELS.glob(pattern)],
    )
    for name, flags in FLAGS.items()
]

setup(
    ext_modules=cythonize(EXTENSIONS, compiler_directives={"language_level": 3}),
    cmdclass={"build_ext": BuildKernels},
)
