"""A stand-in: a pipeline is its folder. The real one loads what ltx2c writes in ``ci/diffusers.py``."""

import json
from pathlib import Path


class LTX2Pipeline:
    """Knows its components."""

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path, **kwargs):
        folder = Path(pretrained_model_name_or_path)
        components = [
            name for name in json.loads((folder / "model_index.json").read_text()) if not name.startswith("_")
        ]
        missing = [name for name in components if not any((folder / name).iterdir())]
        assert components and not missing, missing
        return cls()
