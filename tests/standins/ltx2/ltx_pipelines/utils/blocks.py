"""A stand-in: a stage that remembers what it was made of, with upstream's signature."""


class DiffusionStage:
    """Made by ``from_checkpoint`` alone."""

    def __init__(self, given):
        self.given = given

    @classmethod
    def from_checkpoint(
        cls,
        checkpoint_path,
        dtype,
        device,
        loras=(),
        quantization=None,
        registry=None,
        compilation_config=None,
        alloc_trim_strategy=None,
        offload_mode=None,
        model_configurator=None,
        model_sd_ops=None,
        scale_factors=None,
    ):
        given = dict(locals())
        del given["cls"]
        return cls(given)
