"""Formulas without a network: MathJax as one file beside the pages.

The file is taken from the installed package sphinx-mathjax-offline at build
time. It holds every TeX extension and draws SVG, so there are no fonts and
nothing to load later: the book works from a folder on a stick.
"""

import shutil
from importlib.metadata import distribution
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

DISTRIBUTION = "sphinx-mathjax-offline"
FILE = "tex-svg-full.js"


def mathjax_file() -> Path:
    """Where the installed package keeps the file."""
    for file in distribution(DISTRIBUTION).files or []:
        if file.name == FILE:
            return Path(file.locate())
    raise ExtensionError(f"{DISTRIBUTION} holds no {FILE}; install the version of requirements.txt")


def copy_mathjax(app: Sphinx) -> None:
    """Put the file where the pages look for it."""
    if app.builder.format == "html":
        target = Path(app.outdir) / "_static" / FILE
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(mathjax_file(), target)


def setup(app: Sphinx) -> dict:
    """Register the extension."""
    app.connect("config-inited", lambda app, config: setattr(config, "mathjax_path", FILE))
    app.connect("builder-inited", copy_mathjax)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
