"""A stand-in of the V3 schema: holds what nodes declare, with upstream's signatures."""

from abc import ABC, abstractmethod

from . import _io as io

__all__ = ["ComfyExtension", "io"]


class ComfyExtension(ABC):
    """What an entry point returns."""

    @abstractmethod
    async def get_node_list(self): ...
