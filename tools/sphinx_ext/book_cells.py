"""Show code cells without their `#| …` lines; where a cell is exported,
say in its place into which module it goes. `#| hide` hides a cell.

A reader of the page has no use for `#| export`, but may well ask where the
class in front of them lives: the mark "→ transformer18.multi_head" above
the cell tells.
"""

import sys
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform
from sphinx.transforms.post_transforms import SphinxPostTransform

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tools.notebooks import (
    PACKAGE,
    default_module,
    exported_to,
    read,
    split_directives,
)


def mark(module: str) -> nodes.container:
    """The small line that names the module."""
    name = f"{PACKAGE}.{module}"
    line = nodes.paragraph("", "", nodes.Text("→ "), nodes.literal("", name))
    return nodes.container("", line, classes=["exported-to"])


def without_directives(code: nodes.literal_block) -> nodes.literal_block | None:
    """The block without directive lines; None where nothing else is left."""
    source = split_directives(code.astext())[1].strip("\n")
    if not source:
        return None
    new = nodes.literal_block(source, source)
    new.attributes.update(code.attributes)
    new.source, new.line = code.source, code.line
    return new


class ShowCells(SphinxTransform):
    """Strip the code cells of one notebook, and note where they go."""

    default_priority = 400

    def apply(self) -> None:
        path = Path(self.env.doc2path(self.env.docname))
        if path.suffix != ".ipynb":
            return
        default = default_module(read(path))
        for cell in list(self.document.findall(nodes.container)):
            if cell.get("nb_element") != "cell_code_source":
                continue
            code = next(iter(cell.findall(nodes.literal_block)))
            if "hide" in split_directives(code.astext())[0]:
                cell.parent.parent.remove(cell.parent)
                continue
            module = exported_to(code.astext(), default)
            if module:
                cell.parent["exported_to"] = module
            new = without_directives(code)
            if new:
                code.parent.replace(code, new)
            else:
                cell.parent.remove(cell)


class MarkCells(SphinxPostTransform):
    """Mark the exported cells. This has to wait until the cells tagged
    `hide-input` are folded (199), which looks at a cell's first part."""

    default_priority = 250

    def run(self, **kwargs) -> None:
        for cell in self.document.findall(nodes.container):
            if module := cell.get("exported_to"):
                cell.insert(0, mark(module))


def setup(app: Sphinx) -> dict:
    """Register the extension."""
    app.add_transform(ShowCells)
    app.add_post_transform(MarkCells)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
