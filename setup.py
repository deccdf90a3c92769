"""Build instructions for the compiled kernels; everything else is in pyproject.toml."""

from setuptools import setup

setup()
