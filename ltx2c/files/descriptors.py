"""What holds open files cannot be copied: a copy in another process would read whatever its number leads to there."""

from __future__ import annotations

from typing import NoReturn, SupportsIndex


class HoldsDescriptors:
    """A base of classes that own open files, or lead to one that does. Neither ``pickle`` nor ``copy`` takes them."""

    __slots__ = ()

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        """Refuse, as Python's own files do.

        Raises:
            TypeError: always.
        """
        raise TypeError(
            f"a {type(self).__name__} cannot be pickled or copied: it reads through open files of this process; "
            "send its path, and open that again"
        )
