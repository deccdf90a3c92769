"""Each kernel that there is, by its line in kernels.def."""

from __future__ import annotations

import re
from pathlib import Path

from ltx2c import kernels

FOLDER = Path(kernels.__file__).parent
EVERY_KERNEL = re.findall(r'#include "(\w+)\.h"', (FOLDER / "kernels.def").read_text())


def instructions(name: str) -> set[str]:
    """What a kernel's header asks of the compiler beyond the baseline."""
    target = re.search(r'pragma GCC target\("(.*?)"\)', (FOLDER / f"{name}.h").read_text())
    return set(target[1].split(",")) if target else set()
