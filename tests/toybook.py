"""A book of two tiny chapters, to try the tools on."""

import base64
import json
import subprocess
import zlib
from pathlib import Path

from tools.notebooks import ROOT, setup_cell, to_text

CAPTION = "A line that rises."
ALT = "Line chart over ten points; the one curve rises evenly from left to right."


def png(width: int = 2) -> str:
    """A small white picture, as a notebook keeps it."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        body = kind + data
        return len(data).to_bytes(4, "big") + body + zlib.crc32(body).to_bytes(4, "big")

    size = width.to_bytes(4, "big") * 2
    rows = (b"\x00" + b"\xff" * width) * width
    raw = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", size + bytes([8, 0, 0, 0, 0]))
    raw += chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return base64.b64encode(raw).decode()


def text(source: str, cell_id: str) -> dict:
    """A Markdown cell."""
    return {"cell_type": "markdown", "id": cell_id, "metadata": {}, "source": source}


def code(source: str, cell_id: str, *outputs: dict, ran: bool = True, **metadata) -> dict:
    """A code cell with stored outputs."""
    return {
        "cell_type": "code",
        "id": cell_id,
        "metadata": metadata,
        "source": source,
        "execution_count": 1 if ran else None,
        "outputs": list(outputs),
    }


def stream(said: str, name: str = "stdout") -> dict:
    """What a cell printed."""
    return {"output_type": "stream", "name": name, "text": said}


def value(said: str) -> dict:
    """What a cell's last line is."""
    data = {"text/plain": said}
    return {"output_type": "execute_result", "data": data, "metadata": {}, "execution_count": 1}


def picture() -> dict:
    """What a cell drew."""
    data = {"image/png": png(), "text/plain": "<Figure size 640x480 with 1 Axes>"}
    return {"output_type": "display_data", "data": data, "metadata": {}}


def error(name: str = "ZeroDivisionError", said: str = "division by zero") -> dict:
    """What a cell raised."""
    return {"output_type": "error", "ename": name, "evalue": said, "traceback": ["a", "b"]}


def notebook(*cells: dict) -> dict:
    """A notebook of these cells."""
    return {"cells": list(cells), "metadata": {}, "nbformat": 4, "nbformat_minor": 5}


def toy() -> dict[str, dict]:
    """Two chapters without fault; outputs as a run would store them."""
    figure = {"figure": {"caption": CAPTION}, "image": {"alt": ALT}}
    return {
        "00_start": notebook(
            code(setup_cell("numbers"), "setup0", tags=["remove-cell"]),
            text("# 0. Start\n\nGo to [three](12_double.ipynb#121-how-twice-is-done).", "title0"),
            code(
                '#| export\nimport math\n\n\ndef root(x):\n    """√x."""\n    return math.sqrt(x)',
                "root",
            ),
            code("#| export vocabulary\nPAD, BEGIN = 0, 1", "ids"),
            code("print(root(4))", "try0", stream("2.0\n")),
        ),
        "12_double": notebook(
            code(setup_cell("double"), "setup12", tags=["remove-cell"]),
            text("# 12. What is *double*?\n\nTwice, as in [0](00_start.ipynb).", "title12"),
            text("## 12.1 How `twice` is done\n\n$2x$, see the [index](index.md).", "how"),
            code("#| export\nfrom transformer18.vocabulary import (\n    PAD,\n)", "imports"),
            code(
                '#| export\ndef twice(x):\n    """2x, but at least `PAD`."""\n'
                "    return max(2 * x, PAD)",
                "twice",
            ),
            code("#| exporti\ndef _hidden():\n    return twice(1)", "hidden"),
            code("twice(3)", "try12", value("6")),
            code(
                "import matplotlib.pyplot as plt\n\nplt.plot(range(10))\nplt.show()",
                "draw",
                picture(),
                mystnb=figure,
            ),
            code("1 / 0", "fails", error(), tags=["raises-exception"]),
        ),
    }


def write(root: Path, books: dict[str, dict] | None = None) -> Path:
    """Put a toy book, its package not yet exported, into the folder `root`."""
    for folder in ("book", "src/transformer18", "tests"):
        (root / folder).mkdir(parents=True)
    (root / "src/transformer18/__init__.py").write_text('"""By hand."""\n')
    for name, nb in (toy() if books is None else books).items():
        save(root, name, nb)
    (root / "README.md").write_text("# Toy\n\nSee [the first](book/00_start.ipynb#0-start).\n")
    (root / "book/index.md").write_text("# Index\n\nTwo chapters.\n")
    (root / "_toc.yml").write_text(
        "format: jb-book\nroot: book/index\nchapters:\n"
        "- file: book/00_start\n- file: book/12_double\n"
    )
    return root


def save(root: Path, name: str, nb: dict, raw: bool = False) -> Path:
    """Write one notebook, in canonical form or (`raw`) as it is."""
    path = root / "book" / f"{name}.ipynb"
    path.write_text(json.dumps(nb) if raw else to_text(nb), encoding="utf-8")
    return path


def git(root: Path) -> None:
    """Make the folder a repository, as `check_leaks` wants one."""
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)


def with_project(root: Path) -> Path:
    """Give the toy book the tools and the settings of the real one."""
    (root / "tools").symlink_to(ROOT / "tools")
    for name in ("_config.yml", "conftest.py", "pyproject.toml"):
        (root / name).write_text((ROOT / name).read_text(encoding="utf-8"), encoding="utf-8")
    (root / "book/_static").symlink_to(ROOT / "book/_static")
    return root
