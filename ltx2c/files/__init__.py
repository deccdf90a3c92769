"""Safetensors in and out: headers parsed strictly, bytes moved, results put in place atomically."""

from ltx2c.files.checkpoint import Checkpoint
from ltx2c.files.identity import FileIdentity
from ltx2c.files.tensorfile import StoredTensor, TensorFile

__all__ = ["Checkpoint", "FileIdentity", "StoredTensor", "TensorFile"]
