#!/usr/bin/env python3
"""Look over the whole book in seconds, executing nothing.

    python tools/check.py             everything
    python tools/check.py 12 README   only what concerns these files

Each finding is one line: file and cell, what is wrong, what to do. Any of
them makes the exit status 1; lines that begin with "note" do not.
"""

import argparse
import ast
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import median
from urllib.parse import unquote, urlsplit

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools.export import existing, plan, source_notebook
from tools.notebooks import (
    PACKAGE,
    ROOT,
    Module,
    NotebookError,
    all_notebooks,
    canonical,
    chapter_of,
    code_cells,
    default_module,
    exported_to,
    is_setup_cell,
    joined,
    modules,
    parse,
    setup_cell,
    split_directives,
    tags,
    to_text,
)

LONGEST_CELL = 40  # lines
MEDIAN_CELL = 6
LONGEST_LINE = 74  # characters; longer ones scroll on the page
SHORTEST_ALT = 40  # characters
MOST_IGNORED = 3  # cells a notebook may keep out of the comparison

# Put together so that this file does not hold what it looks for.
LEAKS = [
    re.compile("|".join(words))
    for words in [
        ["/" + "work/", "/" + "tmp/", "/" + "root/", "/" + "home/[a-z]"],
        [r"\.\./" + "shared", "shared/" + "spec"],
        [r"\bfiles\." + "pythonhosted", r"\bpypi" + r"\.org", "--index" + "-url"],
        ["127" + r"\.0\.0\.1", "local" + "host:"],
    ]
]


@dataclass(frozen=True)
class Finding:
    """One thing to mend (or, not `fatal`, to think about)."""

    file: str
    cell: str | None
    what: str
    remedy: str
    fatal: bool = True

    def __str__(self) -> str:
        place = self.file + (f", cell {self.cell}" if self.cell else "")
        return f"{'' if self.fatal else 'note: '}{place}: {self.what}; {self.remedy}"


@dataclass
class Book:
    """Everything that is checked, read once."""

    root: Path = ROOT
    broken: list[Finding] = field(default_factory=list)

    @cached_property
    def texts(self) -> dict[str, str]:
        """File name → text, of the notebooks."""
        return {p.name: p.read_text(encoding="utf-8") for p in all_notebooks(self.root)}

    @cached_property
    def notebooks(self) -> dict[str, dict]:
        """File name → notebook, of those that can be read."""
        found = {}
        for name, text in self.texts.items():
            try:
                nb = parse(text, name)
            except NotebookError as error:
                self.broken.append(Finding(f"book/{name}", None, *_said(error)))
                continue
            for cell, fixed in zip(nb["cells"], canonical(nb)["cells"], strict=True):
                cell["id"] = fixed["id"]
            found[name] = nb
        return found

    @cached_property
    def modules(self) -> dict[str, Module]:
        """Name → module, of all that the notebooks export."""
        found = {}
        for name, nb in self.notebooks.items():
            try:
                found.update(modules(nb, name))
            except NotebookError as error:
                self.broken.append(Finding(f"book/{name}", None, *_said(error)))
        return found

    @cached_property
    def pages(self) -> dict[str, str]:
        """Path from the root → text, of the Markdown files."""
        paths = [*self.root.glob("*.md"), *(self.root / "book").glob("*.md")]
        return {p.relative_to(self.root).as_posix(): p.read_text("utf-8") for p in sorted(paths)}

    @property
    def book_pages(self) -> set[str]:
        """Those of the Markdown files that are pages of the book."""
        return {path for path in self.pages if path.startswith("book/")}

    @cached_property
    def markdown(self) -> dict[str, list[tuple[str | None, list]]]:
        """Path → (cell id or None, tokens) of all Markdown of the project."""
        found = {path: [(None, tokens(text))] for path, text in self.pages.items()}
        for name, nb in self.notebooks.items():
            found[f"book/{name}"] = [
                (cell["id"], tokens(cell["source"]))
                for cell in nb["cells"]
                if cell["cell_type"] == "markdown"
            ]
        return found


def _said(error: NotebookError) -> tuple[str, str]:
    what, _, remedy = str(error).partition("; ")
    return what, remedy or "mend the cell"


# -- the package -------------------------------------------------------------


def check_readable(book: Book) -> Iterator[Finding]:
    """Every notebook can be read, and its exported cells parse."""
    _ = book.notebooks, book.modules
    yield from book.broken


def check_export(book: Book) -> Iterator[Finding]:
    """The package is what the notebooks make it."""
    try:
        changes = plan(all_notebooks(book.root), book.root, whole=True)
    except NotebookError as error:
        yield Finding("book/", None, *_said(error))
        return
    for name, text in changes.items():
        what = "no notebook makes this module" if text is None else "differs from its notebook"
        remedy = "edit the notebook, run `make export` (diff: python tools/export.py --check)"
        yield Finding(f"src/{PACKAGE}/{name}", None, what, remedy)
    for name, text in existing(book.root).items():
        if name != "__init__.py" and name not in changes and source_notebook(text) is None:
            what = "is written by hand"
            remedy = "move it into a notebook; only __init__.py is not exported"
            yield Finding(f"src/{PACKAGE}/{name}", None, what, remedy)


def imported_modules(tree: ast.AST) -> Iterator[str]:
    """Names of the modules of the package that the code imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                first, _, rest = alias.name.partition(".")
                if first == PACKAGE and rest:
                    yield rest.split(".")[0]
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            first, _, rest = node.module.partition(".")
            if first == PACKAGE:
                names = [rest.split(".")[0]] if rest else [alias.name for alias in node.names]
                yield from (name for name in names if name != "__version__")


def check_import_graph(book: Book) -> Iterator[Finding]:
    """Exported code imports from earlier chapters, or from modules that
    its own chapter makes before it."""
    order = list(book.modules)
    for module in book.modules.values():
        chapter = chapter_of(module.notebook)
        for cell in module.cells:
            for name in imported_modules(cell.tree):
                file = f"book/{module.notebook}"
                source = book.modules.get(name)
                if source is None:
                    what = f"exported code imports {PACKAGE}.{name}, which no notebook makes"
                    yield Finding(file, cell.cell_id, what, "mend the name or write that chapter")
                elif name == module.name:
                    what = f"module {name} imports itself"
                    yield Finding(file, cell.cell_id, what, "take the name from the cells above")
                elif source.notebook == module.notebook:
                    if order.index(name) > order.index(module.name):
                        what = f"module {module.name} imports {name}, which is made after it"
                        yield Finding(file, cell.cell_id, what, "put the cells in order")
                elif _rank(source.notebook) > _rank(module.notebook):
                    what = (
                        f"exported code of chapter {chapter} imports {PACKAGE}.{name} "
                        f"of {source.notebook}"
                    )
                    yield Finding(file, cell.cell_id, what, "imports run to earlier chapters only")


def _rank(notebook: str) -> int:
    chapter = chapter_of(notebook)
    return 1000 if chapter is None else chapter


def chapters_named(text: str) -> set[int]:
    """Numbers of the chapters that a text names: "chapter 17", "chapters
    16 and 17", "第17章", with or without links."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    lists = re.findall(r"[Cc]hapters?\s+(\d+(?:(?:\s*,\s*|\s+and\s+|\s*–\s*)\d+)*)", text)
    numbers = {int(n) for found in lists for n in re.findall(r"\d+", found)}
    return numbers | {int(n) for n in re.findall(r"第\s*(\d+)\s*章", text)}


def check_borrowing(book: Book) -> Iterator[Finding]:
    """What is not exported may use a later chapter, in one cell tagged
    `borrowed` that says which chapter it is."""
    for name, nb in book.notebooks.items():
        chapter, default, borrowing = _rank(name), default_module(nb), []
        for index, cell in enumerate(nb["cells"]):
            if cell["cell_type"] != "code" or exported_to(cell["source"], default):
                continue
            tree = parsed(cell["source"])
            later = {
                source.notebook
                for module in (imported_modules(tree) if tree else ())
                if (source := book.modules.get(module)) and _rank(source.notebook) > chapter
            }
            place = (f"book/{name}", cell["id"])
            if not later:
                if "borrowed" in tags(cell):
                    what = "is tagged `borrowed` but imports nothing of a later chapter"
                    yield Finding(*place, what, "remove the tag")
                continue
            if "borrowed" not in tags(cell):
                what = f"uses {', '.join(sorted(later))}, later than this chapter"
                yield Finding(*place, what, "move the import to the cell tagged `borrowed`")
                continue
            borrowing.append(cell["id"])
            near = nb["cells"][max(index - 1, 0) : index + 2]
            told = chapters_named(
                "\n".join(c["source"] for c in near if c is cell or c["cell_type"] == "markdown")
            )
            for missing in sorted({_rank(n) for n in later} - told):
                what = f"borrows from chapter {missing} without saying so"
                yield Finding(*place, what, f"write `chapter {missing}: …` in a comment")
        for cell_id in borrowing[1:]:
            what = "is a second cell tagged `borrowed`"
            yield Finding(f"book/{name}", cell_id, what, f"borrow all in cell {borrowing[0]}")


def parsed(source: str) -> ast.Module | None:
    """Tree of a cell's code; None where it is no plain Python."""
    try:
        return ast.parse(split_directives(source)[1])
    except SyntaxError:
        return None


def is_definition(node: ast.stmt) -> bool:
    """May this statement stand at the top level of an exported cell?"""
    match node:
        case ast.Expr(value=ast.Constant(value=str())):
            return True
        case ast.If():
            test = ast.unparse(node.test)
            return "TYPE_CHECKING" in test or test.startswith("__name__ ==")
        case ast.Try():
            return all(map(is_definition, [*node.body, *node.orelse, *node.finalbody])) and all(
                is_definition(inner) for handler in node.handlers for inner in handler.body
            )
    kinds = ast.Import | ast.ImportFrom | ast.FunctionDef | ast.AsyncFunctionDef
    return isinstance(node, kinds | ast.ClassDef | ast.Assign | ast.AnnAssign)


def check_definitions(book: Book) -> Iterator[Finding]:
    """Exported cells hold imports and definitions, and print nothing.

    But for the module whose business it is to tell a reader something.
    """
    for module in book.modules.values():
        for cell in module.cells:
            place = (f"book/{module.notebook}", cell.cell_id)
            for node in cell.tree.body:
                if not is_definition(node):
                    what = f"exported code does something: `{_head(node)}`"
                    yield Finding(*place, what, "move it to a cell that is not exported")
            for node in ast.walk(cell.tree):
                prints = isinstance(node, ast.Call) and getattr(node.func, "id", "") == "print"
                if prints and module.name != "exercise":
                    what = f"exported code prints: `{_head(node)}`"
                    yield Finding(*place, what, "return it, or say it in the command line's module")


def _head(node: ast.AST) -> str:
    return ast.unparse(node).split("\n")[0][:50]


# -- cells and their outputs -------------------------------------------------


def check_setup_cell(book: Book) -> Iterator[Finding]:
    """Cell 0 is the standard set-up cell, hidden, without output."""
    for name, nb in book.notebooks.items():
        first = nb["cells"][0] if nb["cells"] else {"cell_type": "", "source": "", "id": None}
        file = f"book/{name}"
        remedy = "copy it from another notebook (its text is in tools/notebooks.py)"
        if not is_setup_cell(first):
            yield Finding(file, first["id"], "cell 0 is not the set-up cell", remedy)
        elif first["source"].rstrip() != setup_cell(default_module(nb)):
            remedy = "run `python tools/run.py --format-only`"
            yield Finding(file, first["id"], "the set-up cell differs from the standard", remedy)
        elif tags(first) != ["remove-cell"] or first["outputs"]:
            what = "the set-up cell shows on the page"
            yield Finding(file, first["id"], what, "tag it `remove-cell` and keep it silent")


def check_cell_size(book: Book) -> Iterator[Finding]:
    """Cells are short, and so are their lines."""
    for name, nb in book.notebooks.items():
        sizes = []
        for cell in code_cells(nb):
            if is_setup_cell(cell):
                continue
            place = (f"book/{name}", cell["id"])
            lines = split_directives(cell["source"])[1].strip("\n").split("\n")
            sizes.append(len(lines))
            if len(lines) > LONGEST_CELL:
                what = f"has {len(lines)} lines, {LONGEST_CELL} are allowed"
                yield Finding(*place, what, "split it")
            longest = max(lines, key=len)
            if len(longest) > LONGEST_LINE:
                what = f"has a line of {len(longest)} characters (`{longest.strip()[:30]}…`)"
                yield Finding(*place, what, f"wrap it at {LONGEST_LINE}")
        if sizes and median(sizes) > MEDIAN_CELL:
            what = f"half of the code cells have {median(sizes):g} lines or more"
            remedy = f"aim at a median of {MEDIAN_CELL}"
            yield Finding(f"book/{name}", None, what, remedy, fatal=False)


def check_outputs(book: Book) -> Iterator[Finding]:
    """Every cell was run; errors only where they are meant; no warnings."""
    for name, nb in book.notebooks.items():
        stem = name.removesuffix(".ipynb")
        again = f"run `make run CH={stem if chapter_of(name) is None else stem[:2]}`"
        for cell in code_cells(nb):
            place = (f"book/{name}", cell["id"])
            if cell["execution_count"] is None:
                yield Finding(*place, "was never run", again)
                continue
            errors = [o for o in cell["outputs"] if o["output_type"] == "error"]
            meant = "raises-exception" in tags(cell)
            if errors and not meant:
                what = f"holds an error: {errors[0]['ename']}"
                yield Finding(*place, what, f"mend it and {again}, or tag it `raises-exception`")
            if meant and not errors:
                what = "is tagged `raises-exception` but raised nothing"
                yield Finding(*place, what, f"remove the tag or {again}")
            for output in cell["outputs"]:
                if output["output_type"] == "stream" and output["name"] == "stderr":
                    text = "".join(output["text"]).strip().split("\n")[0][:60]
                    yield Finding(*place, f"holds a warning: {text}", f"avoid it and {again}")
                if "image/svg+xml" in output.get("data", {}):
                    yield Finding(*place, "holds an SVG, which differs per run", "draw a PNG")


def check_ignored(book: Book) -> Iterator[Finding]:
    """Few cells are kept out of the comparison, and by tags."""
    for name, nb in book.notebooks.items():
        kept_out = []
        for cell in code_cells(nb):
            if {"nbval-ignore-output", "nbval-skip"} & set(tags(cell)):
                kept_out.append(cell["id"])
            if re.search(r"^#\s*(NBVAL|PYTEST_VALIDATE)_", cell["source"], re.MULTILINE):
                what = "steers nbval by a comment, which would be exported"
                yield Finding(f"book/{name}", cell["id"], what, "use a tag such as nbval-skip")
        for cell_id in kept_out[MOST_IGNORED:]:
            what = f"is one of {len(kept_out)} cells whose output is not compared"
            yield Finding(f"book/{name}", cell_id, what, f"{MOST_IGNORED} a notebook are allowed")


def check_form(book: Book) -> Iterator[Finding]:
    """Notebooks are in the one form that `make run` writes."""
    for name in book.notebooks:
        if to_text(parse(book.texts[name], name)) != book.texts[name]:
            remedy = "run `python tools/run.py --format-only`"
            yield Finding(f"book/{name}", None, "is not in canonical form", remedy)


def check_figures(book: Book) -> Iterator[Finding]:
    """Every figure has a caption, and an alt text that says what it shows."""
    for name, nb in book.notebooks.items():
        for cell in code_cells(nb):
            place = (f"book/{name}", cell["id"])
            images = [
                o for o in cell["outputs"] if {"image/png", "image/jpeg"} & set(o.get("data", {}))
            ]
            about = cell["metadata"].get("mystnb", {})
            caption = about.get("figure", {}).get("caption", "").strip()
            alt = about.get("image", {}).get("alt", "").strip()
            if not images:
                if caption or alt:
                    what = "describes a figure that it does not draw"
                    yield Finding(*place, what, "remove `mystnb` from its metadata, or draw")
                continue
            if len(images) > 1:
                what = f"draws {len(images)} figures under one caption"
                yield Finding(*place, what, "one cell, one figure")
            if not caption:
                what = "draws a figure without a caption"
                yield Finding(*place, what, "set mystnb.figure.caption in its metadata")
            if not alt:
                what = "draws a figure without an alt text"
                yield Finding(*place, what, "set mystnb.image.alt in its metadata")
            elif alt == caption:
                what = "has an alt text that repeats the caption"
                yield Finding(*place, what, "say what a sighted reader sees")
            elif len(alt) < SHORTEST_ALT:
                what = f"has an alt text of {len(alt)} characters"
                yield Finding(*place, what, "say what a sighted reader sees")


# -- text, links, contents ---------------------------------------------------


def tokens(text: str) -> list:
    """Markdown tokens of a text, nested ones in `.children`."""
    from markdown_it import MarkdownIt
    from mdit_py_plugins.dollarmath import dollarmath_plugin
    from mdit_py_plugins.front_matter import front_matter_plugin

    reader = MarkdownIt("commonmark").enable("table")
    return reader.use(dollarmath_plugin).use(front_matter_plugin).parse(text)


def flat(some: list) -> Iterator:
    """All tokens, the nested ones too."""
    for token in some:
        yield token
        yield from flat(token.children or [])


def anchors(pieces: list[tuple[str | None, list]], depth: int = 3) -> set[str]:
    """Anchors that the headings of a document get, and explicit ones."""
    from myst_parser.mdit_to_docutils.base import default_slugify

    found: set[str] = set()
    for _, piece in pieces:
        for index, token in enumerate(piece):
            if token.type == "heading_open" and int(token.tag[1]) <= depth:
                inner = piece[index + 1].children or []
                text = "".join(t.content for t in inner if t.type in ("text", "code_inline"))
                slug, n = default_slugify(text), 1
                while slug in found:
                    slug, n = f"{slug}-{n}", n + 1
                found.add(slug)
        for token in flat(piece):
            if token.type in ("html_block", "html_inline"):
                found |= set(re.findall(r'\bid="([^"]+)"', token.content))
            if token.type == "text":
                found |= set(re.findall(r"^\(([\w-]+)\)=$", token.content))
    return found


def links(piece: list) -> Iterator[tuple[str, str]]:
    """(kind, address) of the links and images in some Markdown."""
    for token in flat(piece):
        if token.type == "link_open":
            yield "link", token.attrGet("href") or ""
        elif token.type == "image":
            yield "image", token.attrGet("src") or ""
        elif token.type in ("html_block", "html_inline"):
            for name, address in re.findall(r'\b(href|src)="([^"]*)"', token.content):
                yield ("link" if name == "href" else "image"), address


def check_links(book: Book) -> Iterator[Finding]:
    """Links and images inside the project lead to a file and a heading."""
    found: dict[str, set[str]] = {}
    for path, pieces in book.markdown.items():
        for cell_id, piece in pieces:
            for kind, address in links(piece):
                parts = urlsplit(address)
                if parts.scheme or parts.netloc or address.startswith("attachment:"):
                    continue
                target = path
                if parts.path:
                    there = (book.root / path).parent / unquote(parts.path)
                    inside = there.resolve().is_relative_to(book.root.resolve())
                    if not (inside and there.exists()):
                        what = f"{kind} to {address}, which is not there"
                        yield Finding(path, cell_id, what, "mend the address")
                        continue
                    target = there.resolve().relative_to(book.root.resolve()).as_posix()
                    if path.startswith("book/") and target in book.pages.keys() - book.book_pages:
                        what = f"{kind} to {address}, which is no page of the book"
                        yield Finding(path, cell_id, what, "link to a page, or name the file")
                if parts.fragment and target in book.markdown:
                    if target not in found:
                        found[target] = anchors(book.markdown[target])
                    if unquote(parts.fragment) not in found[target]:
                        what = f"link to {address}, but {target} has no such heading"
                        near = [a for a in sorted(found[target]) if a[:3] == parts.fragment[:3]]
                        yield Finding(path, cell_id, what, f"near are: {', '.join(near) or 'none'}")
            for token in flat(piece):
                if token.type == "image" and not token.content.strip():
                    what = f"image {token.attrGet('src')} without an alt text"
                    yield Finding(path, cell_id, what, "write it between the square brackets")


def check_plain_markdown(book: Book) -> Iterator[Finding]:
    """Notebooks keep to Markdown that renders everywhere."""
    for path, pieces in book.markdown.items():
        if not path.endswith(".ipynb"):
            continue
        for cell_id, piece in pieces:
            for what in myst_syntax(piece):
                remedy = "it shows as raw text in JupyterLab and Colab: use plain Markdown"
                yield Finding(path, cell_id, what, remedy)


def myst_syntax(piece: list) -> Iterator[str]:
    """What only MyST would understand."""
    for token in flat(piece):
        if token.type == "fence" and token.info.strip().startswith("{"):
            yield f"directive {token.info.strip()}"
        if token.type == "math_block_label":
            yield f"labelled formula ({token.info})"
        for before, after in zip(token.children or [], (token.children or [])[1:], strict=False):
            role = re.search(r"\{[\w:+-]+\}$", before.content) if before.type == "text" else None
            if role and after.type == "code_inline":
                yield f"role {role[0]}"
        if token.type == "text":
            for pattern, name in [
                (r"^:::+", "fence"),
                (r"\[\^[^\]]+\]", "footnote"),
                (r"^\([\w-]+\)=$", "target"),
                (r"\{\{.*?\}\}", "substitution"),
                (r"^\+\+\+", "block break"),
                (r"^%( |$)", "comment"),
            ]:
                match = re.search(pattern, token.content)
                if match:
                    yield f"{name} {match[0]}"


def check_headings(book: Book) -> Iterator[Finding]:
    """One title a notebook, with the number of its chapter."""
    for path, pieces in book.markdown.items():
        if not path.endswith(".ipynb"):
            continue
        titles = [
            (cell_id, piece[index + 1].content)
            for cell_id, piece in pieces
            for index, token in enumerate(piece)
            if token.type == "heading_open" and token.tag == "h1"
        ]
        if not titles:
            yield Finding(path, None, "has no title", "begin with `# n. Question`")
        for cell_id, title in titles[1:]:
            yield Finding(path, cell_id, f"second title: {title}", "make it a `##` heading")
        chapter = chapter_of(path)
        if titles and chapter in range(1, 19) and not titles[0][1].startswith(f"{chapter}. "):
            what = f"title without its number: {titles[0][1]}"
            yield Finding(path, titles[0][0], what, f"begin it with `{chapter}. `")


def check_contents(book: Book) -> Iterator[Finding]:
    """The table of contents and the files of book/ name each other."""
    import yaml

    toc = yaml.safe_load((book.root / "_toc.yml").read_text(encoding="utf-8"))
    listed: list[str] = []

    def walk(entry) -> None:
        if isinstance(entry, list):
            for inner in entry:
                walk(inner)
        elif isinstance(entry, dict):
            listed.extend(str(entry[key]) for key in ("root", "file") if key in entry)
            for key in ("parts", "chapters", "sections"):
                walk(entry.get(key, []))

    walk(toc)
    there = {f"book/{name}".removesuffix(".ipynb") for name in book.texts}
    there |= {p.removesuffix(".md") for p in book.pages if p.startswith("book/")}
    for name in listed:
        if name not in there:
            what = f"lists {name}, which is not there"
            yield Finding("_toc.yml", None, what, "mend the name or write the page")
    for name in sorted(there - set(listed)):
        yield Finding("_toc.yml", None, f"does not list {name}", "add it")


# -- the whole tree ----------------------------------------------------------


def tracked(root: Path) -> list[Path]:
    """Files that are, or would be, in git; outside git, all files."""
    command = ["git", "-c", "safe.directory=*", "ls-files", "-z"]
    command += ["--cached", "--others", "--exclude-standard"]
    try:
        done = subprocess.run(command, cwd=root, capture_output=True, check=True)
        paths = [root / name for name in sorted(set(done.stdout.decode().split("\0"))) if name]
    except (OSError, subprocess.CalledProcessError):
        paths = sorted(root.rglob("*"))
        hidden = [[part[0] in "._" for part in p.relative_to(root).parts] for p in paths]
        paths = [p for p, parts in zip(paths, hidden, strict=True) if not any(parts)]
    return [p for p in paths if p.is_file()]


def words_of(cell: dict) -> str:
    """All that can be read in a cell; the bytes of a picture may spell
    anything, and are left out."""
    parts = [cell["source"], repr(cell["metadata"])]
    for output in cell.get("outputs", []):
        parts += [joined(output.get("text", "")), *output.get("traceback", [])]
        data = output.get("data", {})
        parts += [joined(v) for mime, v in data.items() if not mime.startswith("image/")]
    return "\n".join(str(part) for part in parts)


def check_leaks(book: Book) -> Iterator[Finding]:
    """Nothing names a place that only one machine has."""
    remedy = "it means nothing elsewhere: take it out"
    for name, nb in book.notebooks.items():
        for cell in nb["cells"]:
            for leak in LEAKS:
                if match := leak.search(words_of(cell)):
                    yield Finding(f"book/{name}", cell["id"], f"names {match[0]}", remedy)
    for path in tracked(book.root):
        name = path.relative_to(book.root).as_posix()
        if path.name in book.notebooks:
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        for number, line in enumerate(text.split("\n"), start=1):
            for leak in LEAKS:
                if match := leak.search(line):
                    yield Finding(name, None, f"line {number} names {match[0]}", remedy)


def origin(path: Path, line: int, otherwise: str) -> tuple[str, str | None]:
    """Notebook and cell from which a line of the package was exported."""
    for text in reversed(path.read_text(encoding="utf-8").split("\n")[:line]):
        match = re.match(r"# %% \.\./\.\./(book/\S+) #(\S+)$", text)
        if match:
            return match[1], match[2]
    return otherwise, None


def check_ruff(book: Book) -> Iterator[Finding]:
    """The linter is content with all code outside notebooks."""
    places = [p for p in ("src", "tests", "tools", "conftest.py") if (book.root / p).exists()]
    command = [sys.executable, "-m", "ruff", "check", "--output-format", "concise", "--quiet"]
    done = subprocess.run([*command, *places], cwd=book.root, capture_output=True, text=True)
    lines = sorted(line for line in done.stdout.split("\n") if line.strip())
    for line in lines:
        file, number, _, what = line.split(":", maxsplit=3)
        place = origin(book.root / file, int(number), f"{file}:{number}")
        yield Finding(*place, what.strip(), "mend it")
    if done.returncode and not lines:
        yield Finding("pyproject.toml", None, f"ruff failed: {done.stderr.strip()}", "mend it")


CHECKS: list[Callable[[Book], Iterator[Finding]]] = [
    check_readable,
    check_export,
    check_import_graph,
    check_borrowing,
    check_definitions,
    check_setup_cell,
    check_cell_size,
    check_outputs,
    check_ignored,
    check_form,
    check_figures,
    check_links,
    check_plain_markdown,
    check_headings,
    check_contents,
    check_leaks,
    check_ruff,
]


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(description="Look over the book without executing it.")
    parser.add_argument("names", nargs="*", help="only findings whose file begins so: 12, README")
    names = parser.parse_args(arguments).names
    book, fatal = Book(root), 0
    for check in CHECKS:
        for finding in check(book):
            if names and not any(Path(finding.file).name.startswith(n) for n in names):
                continue
            fatal += finding.fatal
            print(finding)
    print(f"{fatal} to mend" if fatal else f"all well: {len(CHECKS)} checks")
    return 1 if fatal else 0


if __name__ == "__main__":
    sys.exit(main())
