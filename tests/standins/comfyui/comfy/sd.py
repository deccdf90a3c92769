"""A stand-in: its loaders give back what they were asked for, and the tensors of the file."""

from dataclasses import dataclass

from calls import recorded
from safetensors.numpy import load_file


@dataclass
class Model:
    """In the place of a ModelPatcher."""

    loader: str
    path: str
    tensors: dict


@recorded
def load_checkpoint_guess_config(
    ckpt_path,
    output_vae=True,
    output_clip=True,
    output_clipvision=False,
    embedding_directory=None,
    output_model=True,
    model_options={},  # noqa: B006
    te_model_options={},  # noqa: B006
):
    return (Model("checkpoint", ckpt_path, load_file(ckpt_path)), None, None, None)


@recorded
def load_diffusion_model(unet_path, model_options={}):  # noqa: B006
    return Model("diffusion model", unet_path, load_file(unet_path))
