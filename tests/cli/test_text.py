"""Numbers as a person reads them."""

from __future__ import annotations

import pytest

from ltx2c.cli.text import count, first, operations, size


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.00 kB"),
        (42_017_512_960, "42.0 GB"),
        (999_600, "1.00 MB"),
        (9e15, "9000 TB"),
    ],
)
def test_size(nbytes: float, text: str) -> None:
    assert size(nbytes) == text


def test_operations() -> None:
    assert operations(17.1e12) == "17.1 TFLOP"
    assert operations(404e9) == "404 GFLOP"


def test_count() -> None:
    assert [count(n, "tensor") for n in (0, 1, 4349)] == ["0 tensors", "1 tensor", "4,349 tensors"]


def test_first() -> None:
    lines = [f"  {number}" for number in range(1012)]
    assert first(lines[:12]) == lines[:12]
    assert first(lines) == [*lines[:12], "  and 1,000 more (--json has them all)"]
