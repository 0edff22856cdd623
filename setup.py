"""The optional C extension; everything else about the package is in pyproject.toml."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension("tilejit.runtime._launcher", ["tilejit/runtime/_launcher.c"], optional=True)
    ]
)
