"""The package's version, read by the build and written into every fused file's metadata."""

__version__ = "0.1.0"
