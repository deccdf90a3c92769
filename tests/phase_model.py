"""A small base with four adapters that overlap in known ways, and what every recipe must do with them, by hand.

========  =====================
adapter   weights it touches
========  =====================
u         a, b
v         b, c
d         c, d, e
t         e, f
========  =====================

The base holds six weights, a to f, and two tensors that nothing touches: eight in all.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
from safetensors.numpy import load_file
from tensor_files import pair, weight, write

from ltx2c import Recipe, reference

PREFIX = "model.diffusion_model."
TOUCHES = {"u": "ab", "v": "bc", "d": "cde", "t": "ef"}
TENSORS = 8
OUT, IN = 24, 17
_DTYPES = {"e": np.float32, "f": np.float16}


def make(folder: Path) -> Path:
    """Write ``base.safetensors`` and the adapters into ``folder``; gives the base's path."""
    weights = {
        f"{PREFIX}{name}.weight": weight(OUT, IN, seed=number, dtype=_DTYPES.get(name, weight(1).dtype))
        for number, name in enumerate("abcdef")
    }
    others = {f"{PREFIX}scale_shift_table": weight(3, 5, dtype=np.float32), f"{PREFIX}d.bias": weight(OUT, seed=9)}
    for number, (adapter, names) in enumerate(TOUCHES.items()):
        tensors = {}
        for name in names:
            tensors |= pair(f"diffusion_model.{name}", OUT, 2 + number, IN, seed=100 * number + ord(name))
        write(folder / f"{adapter}.safetensors", tensors)
    return write(folder / "base.safetensors", {**others, **weights})


def recipe_in(folder: Path, name: str, loras: list = (), distilled: list = (), detailing: list = ()) -> Recipe:
    """``Recipe.named`` with adapters given by their letters, each with or without a strength."""

    def there(given: list) -> list:
        return [
            (folder / f"{one[0]}.safetensors", *one[1:]) if isinstance(one, tuple) else folder / f"{one}.safetensors"
            for one in given
        ]

    return Recipe.named(name, loras=there(loras), distilled_lora=there(distilled), detailing_lora=there(detailing))


def expected(folder: Path, state: list[tuple[Path, float]]) -> dict[str, np.ndarray]:
    """What the base's tensors are in ``state``, by the reference and from the files alone."""
    tensors = load_file(folder / "base.safetensors")
    if not any(strength for _, strength in state):
        return tensors
    terms: dict[str, list] = {}
    for path, strength in state:
        factors = load_file(path)
        for name in TOUCHES[path.stem]:
            module = f"diffusion_model.{name}"
            term = (factors[f"{module}.lora_A.weight"], factors[f"{module}.lora_B.weight"], strength)
            terms.setdefault(f"{PREFIX}{name}.weight", []).append(term)
    return {key: reference.fuse_tensor(value, terms.get(key, [])) for key, value in tensors.items()}


class Counts(NamedTuple):
    """Tensors fused and restored by a step."""

    fused: int
    restored: int


NOTHING = Counts(0, 0)


class Case(NamedTuple):
    """A recipe with adapters, and what its steps must do.

    Attributes:
        load: fused at load; everything else is read as it is.
        there: phase 0 to phase 1.
        back: phase 1 to phase 0.
        to_base: last phase to base.
        from_base: base to phase 0.
        naive: tensors fused at the naive load, un-fused and fused on the first way to phase 0, and to phase 1, and
            then back to phase 0.
    """

    name: str
    given: dict
    load: int
    there: Counts | None
    back: Counts
    to_base: Counts
    from_base: Counts
    naive: tuple


CASES = [
    Case("ti2vid_one_stage", {"loras": ["u"]}, 2, None, NOTHING, Counts(0, 2), Counts(2, 0), (2, (0, 0), None, (0, 0))),
    Case("ti2vid_one_stage", {}, 0, None, NOTHING, NOTHING, NOTHING, (0, (0, 0), None, (0, 0))),
    Case(
        "t2a_one_stage", {"loras": ["u", "v"]}, 3, None, NOTHING, Counts(0, 3), Counts(3, 0), (3, (0, 0), None, (0, 0))
    ),
    Case("retake", {"loras": [("v", -0.5)]}, 2, None, NOTHING, Counts(0, 2), Counts(2, 0), (2, (0, 0), None, (0, 0))),
    # D only: phase 0 is the base, phase 1 fuses c, d, e once.
    Case(
        "a2vid_two_stage",
        {"distilled": ["d"]},
        0,
        Counts(3, 0),
        Counts(0, 3),
        Counts(0, 3),
        NOTHING,
        (3, (3, 0), (0, 3), (3, 0)),
    ),
    # c is v's in phase 0 and v's and D's in phase 1: it is fused both ways.
    Case(
        "ti2vid_two_stages",
        {"loras": [("u", 0.5), ("v", 0.25)], "distilled": [("d", 0.75)]},
        3,
        Counts(3, 0),
        Counts(1, 2),
        Counts(0, 5),
        Counts(3, 0),
        (5, (3, 0), (0, 3), (3, 0)),
    ),
    Case(
        "keyframe_interpolation",
        {"loras": ["u"], "distilled": ["d"]},
        2,
        Counts(3, 0),
        Counts(0, 3),
        Counts(0, 5),
        Counts(2, 0),
        (5, (3, 0), (0, 3), (3, 0)),
    ),
    # Two distilled adapters: d on c, d, e and t on e, f.
    Case(
        "a2vid_two_stage",
        {"distilled": ["d", ("t", 0.5)]},
        0,
        Counts(4, 0),
        Counts(0, 4),
        Counts(0, 4),
        NOTHING,
        (4, (4, 0), (0, 4), (4, 0)),
    ),
    # An adapter of strength 0 alone leaves phase 0 the base; beside D in phase 1 it takes part on a and b.
    Case(
        "ti2vid_two_stages",
        {"loras": [("u", 0.0)], "distilled": ["d"]},
        0,
        Counts(5, 0),
        Counts(0, 5),
        Counts(0, 5),
        NOTHING,
        (5, (5, 0), (0, 5), (5, 0)),
    ),
    # Both phases fused, at 0.25 and 0.5.
    Case(
        "ti2vid_two_stages_hq",
        {"distilled": ["d"]},
        3,
        Counts(3, 0),
        Counts(3, 0),
        Counts(0, 3),
        Counts(3, 0),
        (3, (3, 3), (3, 3), (3, 3)),
    ),
    Case(
        "ti2vid_two_stages_hq",
        {"loras": ["v"], "distilled": ["d"]},
        4,
        Counts(3, 0),
        Counts(3, 0),
        Counts(0, 4),
        Counts(4, 0),
        (4, (3, 3), (3, 3), (3, 3)),
    ),
    Case(
        "dfr",
        {"loras": ["u"], "distilled": ["d"]},
        5,
        NOTHING,
        NOTHING,
        Counts(0, 5),
        Counts(5, 0),
        (5, (0, 0), (0, 0), (0, 0)),
    ),
    # Detailing adds to e and begins f.
    Case(
        "dfr",
        {"loras": ["u"], "distilled": ["d"], "detailing": ["t"]},
        5,
        Counts(2, 0),
        Counts(1, 1),
        Counts(0, 6),
        Counts(5, 0),
        (6, (2, 0), (0, 2), (2, 0)),
    ),
    Case(
        "distilled", {"loras": ["u", "v"]}, 3, NOTHING, NOTHING, Counts(0, 3), Counts(3, 0), (3, (0, 0), (0, 0), (0, 0))
    ),
    Case(
        "ic_lora",
        {"loras": ["u", "v"]},
        3,
        Counts(0, 3),
        Counts(3, 0),
        NOTHING,
        Counts(3, 0),
        (3, (0, 0), (3, 0), (0, 3)),
    ),
    Case(
        "dubit", {"loras": [("d", 0.5)]}, 3, NOTHING, NOTHING, Counts(0, 3), Counts(3, 0), (3, (0, 0), (0, 0), (0, 0))
    ),
    Case("hdr_ic_lora", {"loras": ["d"]}, 3, NOTHING, NOTHING, Counts(0, 3), Counts(3, 0), (3, (0, 0), (0, 0), (0, 0))),
]


def schedule(case: Case, renders: int, terminal: str) -> list[tuple[int, str, Counts]]:
    """(render, step, counts) of ``renders`` renders, from the hand-derived rows."""
    steps = [(0, "load", Counts(case.load, TENSORS - case.load))]
    for render in range(1, renders + 1):
        entering = NOTHING if render == 1 else {"last": case.back, "first": NOTHING, "base": case.from_base}[terminal]
        steps.append((render, "phase0", entering))
        if case.there is not None:
            steps.append((render, "phase1", case.there))
        steps.append((render, "terminal", {"last": NOTHING, "first": case.back, "base": case.to_base}[terminal]))
    return steps


def ids(case: Case) -> str:
    adapters = "-".join(
        str(one[0] if isinstance(one, tuple) else one) for given in case.given.values() for one in given
    )
    return f"{case.name}-{adapters}"
