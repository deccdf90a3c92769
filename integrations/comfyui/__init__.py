"""LoRAs fused into models by ltx2c, as nodes of ComfyUI."""

from comfy_api.latest import ComfyExtension, io

from .nodes import FusedModel, LoraToFuse


class Ltx2cExtension(ComfyExtension):
    """The nodes of this pack."""

    async def get_node_list(self) -> list[type[io.ComfyNode]]:
        return [LoraToFuse, FusedModel]


async def comfy_entrypoint() -> Ltx2cExtension:
    """What ComfyUI calls when it loads the pack."""
    return Ltx2cExtension()
