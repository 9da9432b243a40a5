"""What every tool knows about a notebook of the book: where it lies, how
it is read, which cell goes into which module, in which one form it is kept.

A notebook is handled as the plain dictionary of its JSON file.
"""

import ast
import base64
import copy
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "transformer18"

# The environment of every kernel, whether it stores outputs (run.py) or
# compares them (conftest.py): the two must not differ, or numbers will.
# One thread: sums are then taken in one order, and two notebooks side by
# side do not fight over two cores.
KERNEL_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",
    "HF_HUB_OFFLINE": "1",
}
KERNEL_ENVIRONMENT_UNSET = ("MPLBACKEND",)
CELL_TIMEOUT = 120  # seconds; the same number stands in pyproject.toml

# The hidden first cell of every notebook. It does nothing in a checkout.
# On Colab it installs the package from REPOSITORY; as long as that is
# empty it says so. After a change here, `python tools/run.py
# --format-only` brings every notebook up to date.
REPOSITORY = ""
SETUP_CELL = f"""\
import subprocess, sys
from importlib.util import find_spec
if "google.colab" in sys.modules and not find_spec("{PACKAGE}"):
    REPOSITORY = "{REPOSITORY}"  # set for all notebooks in tools/notebooks.py
    assert REPOSITORY, "first run: !pip install git+ADDRESS_OF_THIS_BOOK"
    pip = [sys.executable, "-m", "pip", "install", "--quiet"]
    subprocess.run([*pip, f"git+{{REPOSITORY}}"], check=True)"""
SETUP_MARK = '"google.colab" in sys.modules'

METADATA = {
    "kernelspec": {
        "display_name": "Python 3",
        "language": "python",
        "name": "python3",
    },
    "language_info": {"name": "python"},
}
DIRECTIVE = re.compile(r"^#\s*\|\s*(?P<name>\w+):?[ \t]*(?P<rest>.*?)\s*$")
DIRECTIVES = ("default_exp", "export", "exporti", "hide")
VALID_ID = re.compile(r"^[a-zA-Z0-9_-]{1,64}$")


class NotebookError(Exception):
    """A fault in a notebook, said in one line with the place and the remedy."""


def kernel_environment(root: Path = ROOT) -> None:
    """Give this process, and so every kernel that it starts, the one
    environment in which outputs are made and compared. The package is
    taken from the checkout `root`, whatever else may be installed."""
    os.environ.update(KERNEL_ENVIRONMENT)
    for name in KERNEL_ENVIRONMENT_UNSET:
        os.environ.pop(name, None)
    path = [str(root / "src")]
    path += [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p and p not in path]
    os.environ["PYTHONPATH"] = os.pathsep.join(path)


# -- finding, reading and writing ------------------------------------------


def all_notebooks(root: Path = ROOT) -> list[Path]:
    """Every notebook of the book, in the order of its chapters."""
    return sorted(p for p in (root / "book").glob("*.ipynb") if not p.name.startswith("."))


def find_notebooks(names: list[str], root: Path = ROOT) -> list[Path]:
    """The notebooks meant by `names` ("12", "5", "12_multi_head",
    "book/12_multi_head.ipynb"); all of them where there are no names.

    Raises NotebookError, with what there is, for a name that fits none.
    """
    every = all_notebooks(root)
    found = []
    for name in names:
        stem = Path(name).name.removesuffix(".ipynb")
        start = f"{int(stem):02d}_" if stem.isdecimal() else None
        fits = [p for p in every if (p.stem.startswith(start) if start else p.stem == stem)]
        if not fits:
            there = ", ".join(p.stem for p in every) or "none"
            raise NotebookError(f"no notebook {name!r} in {root / 'book'}; there are: {there}")
        found += [p for p in fits if p not in found]
    return found if names else every


def chapter_of(name: str) -> int | None:
    """Chapter number of a notebook's file name; None for the appendix."""
    match = re.match(r"(\d\d)_", Path(name).name)
    return int(match[1]) if match else None


def parse(text: str, name: str) -> dict:
    """The notebook in `text`; sources and texts as one string each.

    Raises NotebookError, naming `name`, for anything but notebook format 4.
    """
    try:
        nb = json.loads(text)
        if nb["nbformat"] != 4:
            raise NotebookError(f"{name}: notebook format {nb['nbformat']}; save it as format 4")
        for cell in nb["cells"]:
            cell["source"] = joined(cell.get("source", ""))
            cell.setdefault("metadata", {})
            if cell["cell_type"] == "code":
                cell.setdefault("outputs", [])
                cell.setdefault("execution_count", None)
    except (ValueError, KeyError, TypeError) as error:
        raise NotebookError(
            f"{name}: not a notebook ({type(error).__name__}: {error}); restore it"
        ) from None
    return nb


def read(path: Path) -> dict:
    """The notebook in the file `path`; see `parse`."""
    try:
        return parse(path.read_text(encoding="utf-8"), path.name)
    except UnicodeDecodeError as error:
        raise NotebookError(f"{path.name}: not UTF-8 ({error.reason}); save it as UTF-8") from None


def write_atomically(path: Path, text: str) -> None:
    """Put `text` into the file `path`: all of it, or none of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
        os.chmod(temporary, path.stat().st_mode & 0o777 if path.exists() else 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def code_cells(nb: Mapping) -> Iterator[dict]:
    """The code cells that hold any code."""
    return (c for c in nb["cells"] if c["cell_type"] == "code" and c["source"].strip())


def tags(cell: Mapping) -> list[str]:
    """The tags of a cell."""
    return list(cell["metadata"].get("tags", []))


def joined(text: str | list[str]) -> str:
    """Text that a notebook file may keep as a list of lines."""
    return text if isinstance(text, str) else "".join(text)


# -- directives: which cell goes where ---------------------------------------


def split_directives(source: str) -> tuple[dict[str, str], str]:
    """`#| name rest` lines at the top of a cell, and the cell without them."""
    lines = source.split("\n")
    found: dict[str, str] = {}
    rest = 0  # where the code begins
    for line in lines:
        match = DIRECTIVE.match(line)
        if not match and line.strip():
            break
        if match:
            found[match["name"]] = match["rest"]
        rest += 1
    return found, "\n".join(lines[rest:]) if found else source


@dataclass
class Exported:
    """A cell on its way into a module."""

    cell_id: str
    source: str  # without directive lines
    public: bool  # its names go into __all__
    tree: ast.Module


@dataclass
class Module:
    """A module of the package as a notebook defines it."""

    name: str
    notebook: str  # file name
    title: str  # the notebook's heading
    cells: list[Exported] = field(default_factory=list)


def default_module(nb: Mapping) -> str | None:
    """What the notebook's `#| default_exp` names."""
    for cell in code_cells(nb):
        name = split_directives(cell["source"])[0].get("default_exp")
        if name:
            return name
    return None


def exported_to(source: str, default: str | None) -> str | None:
    """The module into which a cell with this source goes, if any."""
    directives, _ = split_directives(source)
    for name in ("export", "exporti"):
        if name in directives:
            return directives[name] or default
    return None


def title(nb: Mapping) -> str:
    """The text of the notebook's first heading of level one."""
    for cell in nb["cells"]:
        if cell["cell_type"] == "markdown":
            match = re.search(r"^# +(.+?)\s*#*$", cell["source"], flags=re.MULTILINE)
            if match:
                return re.sub(r"[*`_]", "", match[1])
    return ""


def modules(nb: Mapping, name: str) -> dict[str, Module]:
    """The modules that the notebook called `name` defines, in the order
    in which they first appear.

    Raises NotebookError, with notebook and cell, for a directive that is
    misspelt or misplaced, a missing `default_exp`, or a syntax error.
    """
    default = default_module(nb)
    found: dict[str, Module] = {}
    for cell in code_cells(nb):
        where = f"{name}, cell {cell.get('id', '?')}"
        directives, source = split_directives(cell["source"])
        for directive in directives:
            if directive not in DIRECTIVES:
                known = ", ".join(DIRECTIVES)
                raise NotebookError(
                    f"{where}: unknown directive '#| {directive}'; known are {known}"
                )
        for line in source.split("\n"):
            match = DIRECTIVE.match(line)
            if match and match["name"] in DIRECTIVES:
                raise NotebookError(
                    f"{where}: '#| {match['name']}' below code counts for nothing; "
                    "move it to the top of the cell"
                )
        if not {"export", "exporti"} & set(directives):
            continue
        module = exported_to(cell["source"], default)
        if not module:
            raise NotebookError(f"{where}: '#| export' without '#| default_exp'; add it to cell 0")
        if not module.isidentifier() or module == "__init__":
            raise NotebookError(f"{where}: {module!r} can't be the name of an exported module")
        try:
            tree = ast.parse(source)
        except SyntaxError as error:
            line = (error.text or "").strip()
            raise NotebookError(
                f"{where}: {error.msg} in line {error.lineno} of its code: {line}"
            ) from None
        new = Module(module, name, title(nb))
        found.setdefault(module, new).cells.append(
            Exported(cell.get("id", ""), source, "export" in directives, tree)
        )
    return found


# -- the one form in which a notebook is kept --------------------------------


def is_setup_cell(cell: Mapping) -> bool:
    """Is this the hidden first cell, whatever its exact text?"""
    return cell["cell_type"] == "code" and SETUP_MARK in cell["source"]


def setup_cell(module: str | None) -> str:
    """Text of the hidden first cell of a notebook that makes `module`."""
    return (f"#| default_exp {module}\n" if module else "") + SETUP_CELL


def canonical(nb: Mapping) -> dict:
    """The notebook in the one form that goes into git.

    Fixed metadata, valid unique ids (kept where they are, else derived
    from the content), the standard set-up cell, running execution counts,
    one block per stream, no output metadata, errors as one line, and of a
    cell's metadata what means something: tags, captions and alt texts.
    `canonical(canonical(nb)) == canonical(nb)`, and cells that were never
    run stay so.
    """
    cells = [copy.deepcopy(cell) for cell in nb["cells"]]
    if cells and is_setup_cell(cells[0]):
        module = split_directives(cells[0]["source"])[0].get("default_exp")
        cells[0]["source"] = setup_cell(module)
    result, used, count = [], set(), 0
    for cell in cells:
        source = cell["source"].replace("\r\n", "\n").rstrip()
        new = {
            "cell_type": cell["cell_type"],
            "id": _new_id(cell.get("id"), cell["cell_type"] + source, used),
            "metadata": _canonical_metadata(cell["metadata"]),
            "source": source,
        }
        if cell.get("attachments"):
            new["attachments"] = cell["attachments"]
        if cell["cell_type"] == "code":
            count += bool(source)
            ran = bool(source) and cell["execution_count"] is not None
            new["execution_count"] = count if ran else None
            new["outputs"] = _canonical_outputs(cell["outputs"], new["execution_count"])
        result.append(new)
    return {"cells": result, "metadata": METADATA, "nbformat": 4, "nbformat_minor": 5}


def to_text(nb: Mapping) -> str:
    """The canonical form of a notebook as the text of its file."""
    nb = canonical(nb)
    for cell in nb["cells"]:
        cell["source"] = cell["source"].splitlines(keepends=True)
        for output in cell.get("outputs", []):
            if "text" in output:
                output["text"] = output["text"].splitlines(keepends=True)
            for mime, value in output.get("data", {}).items():
                if mime.startswith("text/") and isinstance(value, str):
                    output["data"][mime] = value.splitlines(keepends=True)
    return json.dumps(nb, ensure_ascii=False, indent=1, sort_keys=True) + "\n"


def _new_id(old: str | None, content: str, used: set[str]) -> str:
    new = old if isinstance(old, str) and VALID_ID.match(old) else None
    salt = 0
    while new is None or new in used:
        new = hashlib.sha1(f"{content}{salt or ''}".encode()).hexdigest()[:8]
        salt += 1
    used.add(new)
    return new


def _canonical_metadata(metadata: Mapping) -> dict:
    kept = {}
    if metadata.get("tags"):
        kept["tags"] = list(dict.fromkeys(metadata["tags"]))
    if metadata.get("mystnb"):
        kept["mystnb"] = metadata["mystnb"]
    return kept


def _canonical_outputs(outputs: list[Mapping], count: int | None) -> list[dict]:
    result: list[dict] = []
    streams: dict[str, dict] = {}
    for output in outputs:
        kind = output["output_type"]
        if kind == "stream":
            block = streams.get(output["name"])
            if block is None:
                block = {"output_type": kind, "name": output["name"], "text": ""}
                streams[output["name"]] = block
                result.append(block)
            block["text"] += joined(output["text"])
        elif kind == "error":
            # A traceback is full of paths and colours of one machine.
            name, value = output["ename"], output["evalue"]
            line = f"{name}: {value}" if value else name
            result.append(
                {"output_type": kind, "ename": name, "evalue": value, "traceback": [line]}
            )
        else:
            new = {"output_type": kind, "metadata": {}, "data": {}}
            for mime, value in output["data"].items():
                new["data"][mime] = _canonical_data(mime, value)
            if kind == "execute_result":
                new["execution_count"] = count
            result.append(new)
    return result


def _canonical_data(mime: str, value):
    if mime.startswith("image/") and not mime.endswith("+xml"):
        raw = base64.b64decode(joined(value))
        return base64.b64encode(raw).decode("ascii")
    return joined(value) if mime.startswith("text/") else value
