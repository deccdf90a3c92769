"""The version of the package and of its arithmetic, both written into every fused file's metadata."""

__version__ = "0.1.0"

# The arithmetic that produced a fused file (see `ltx2c.reference`); a change of any result's bits changes the name.
CONTRACT = "ltx-1"
