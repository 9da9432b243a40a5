"""The Transformer in 18 Questions: the package that the book builds.

Every other module is exported from a notebook of the book; see the
first lines of a module for the notebook that explains it.
"""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("transformer18")
except PackageNotFoundError:  # imported from a checkout, not installed
    __version__ = "0+unknown"
