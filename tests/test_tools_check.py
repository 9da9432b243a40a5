"""tools/check.py: every check is silent on a good book and has a bad
example that it must find, with file and cell."""

import copy
import re

import pytest
import toybook
from toybook import code, error, picture, png, stream, text

from tools import check
from tools.check import Book
from tools.export import export
from tools.notebooks import ROOT


@pytest.fixture
def root(tmp_path):
    """A book without fault."""
    toybook.write(tmp_path)
    export(tmp_path)
    toybook.git(tmp_path)
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    return tmp_path


@pytest.mark.parametrize("one", check.CHECKS, ids=lambda one: one.__name__)
def test_good_book_passes(root, one):
    assert [str(f) for f in one(Book(root))] == []


def test_command_line(root, capsys):
    assert check.main([], root) == 0
    assert "all well" in capsys.readouterr().out
    (root / "src/transformer18/double.py").write_text("x = 1\n")
    (root / "README.md").write_text("# Toy\n\n[gone](gone.md)\n")
    assert check.main([], root) == 1
    said = capsys.readouterr().out
    assert "src/transformer18/double.py: differs from its notebook; edit the notebook" in said
    assert said.strip().endswith("2 to mend")
    assert check.main(["README"], root) == 1
    said = capsys.readouterr().out
    assert "README.md: link to gone.md, which is not there; mend the address" in said
    assert "double" not in said


# A bad example: check, cell to change (or None), change, what is said.
EXAMPLES: list[tuple] = []


def example(one, fragment, cell="double", where=None, book="12_double"):
    """Register a function that spoils one cell of the toy book; `where`
    is the cell that the finding must name."""

    def take(spoil):
        EXAMPLES.append(
            pytest.param(one, fragment, cell, where or cell, book, spoil, id=spoil.__name__)
        )
        return spoil

    return take


def add(nb, cell, after=None):
    ids = [c["id"] for c in nb["cells"]]
    nb["cells"].insert(ids.index(after) + 1 if after else len(ids), cell)


# -- the package --


@example(
    check.check_import_graph,
    "imports transformer18.double of 12_double.ipynb",
    "root",
    book="00_start",
)
def early_imports_late(nb, cell):
    cell["source"] = "#| export\ndef f():\n    from transformer18.double import twice"


@example(check.check_import_graph, "which no notebook makes", "imports")
def import_of_nothing(nb, cell):
    cell["source"] = "#| export\nimport transformer18.nothing"


@example(check.check_import_graph, "which is made after it", "root", book="00_start")
def own_chapter_out_of_order(nb, cell):
    cell["source"] = "#| export\nfrom transformer18 import vocabulary"


@example(check.check_import_graph, "imports itself", "imports")
def import_of_itself(nb, cell):
    cell["source"] = "#| export\nfrom transformer18.double import twice"


@example(check.check_borrowing, "later than this chapter", "try0", book="00_start")
def later_chapter_without_tag(nb, cell):
    cell["source"] = "from transformer18.double import twice"


@example(check.check_borrowing, "chapter 12 without saying so", "try0", book="00_start")
def later_chapter_without_word(nb, cell):
    cell["source"] = "# chapter 1, 2 and 13\nfrom transformer18.double import twice"
    cell["metadata"]["tags"] = ["borrowed"]


@example(check.check_borrowing, "second cell", "again", book="00_start")
def two_borrowing_cells(nb, cell):
    for name in ("once", "again"):
        source = "# chapter 12: twice\nfrom transformer18.double import twice"
        add(nb, code(source, name, tags=["borrowed"]))


@example(check.check_borrowing, "imports nothing of a later", "try0", book="00_start")
def tag_without_borrowing(nb, cell):
    cell["metadata"]["tags"] = ["borrowed"]


@example(check.check_definitions, "does something: `plt.show()`", "twice")
def exported_call(nb, cell):
    cell["source"] += "\nplt.show()"


@example(check.check_definitions, "does something: `for i in", "twice")
def exported_loop(nb, cell):
    cell["source"] += "\nfor i in range(3):\n    pass"


@example(check.check_definitions, "prints", "twice")
def exported_print(nb, cell):
    cell["source"] = "#| export\ndef twice(x):\n    print(x)"


# -- cells and outputs --


@example(check.check_setup_cell, "not the set-up cell", "title12")
def no_setup_cell(nb, cell):
    del nb["cells"][0]


@example(check.check_setup_cell, "shows on the page", "setup12")
def setup_cell_is_shown(nb, cell):
    cell["metadata"] = {}


@example(check.check_cell_size, "has 41 lines", "try12")
def long_cell(nb, cell):
    cell["source"] = "\n".join(["x = 1"] * 41)


@example(check.check_cell_size, "75 characters", "try12")
def long_line(nb, cell):
    cell["source"] = "x" * 75


@example(check.check_outputs, "never run", "try12")
def not_run(nb, cell):
    cell["execution_count"] = None


@example(check.check_outputs, "error: ZeroDivisionError", "try12")
def error_not_meant(nb, cell):
    cell["outputs"] = [error()]


@example(check.check_outputs, "raised nothing", "fails")
def error_missing(nb, cell):
    cell["outputs"] = []


@example(check.check_outputs, "holds a warning: UserWarning", "try12")
def warning(nb, cell):
    cell["outputs"].append(stream("UserWarning: mind\nthe gap\n", "stderr"))


@example(check.check_outputs, "SVG", "try12")
def svg(nb, cell):
    cell["outputs"][0]["data"]["image/svg+xml"] = "<svg/>"


@example(check.check_ignored, "one of 4 cells", "keep3")
def many_ignored(nb, cell):
    for n in range(4):
        add(nb, code("x", f"keep{n}", tags=["nbval-ignore-output", "nbval-skip"][n % 2 :][:1]))


@example(check.check_ignored, "by a comment", "try12")
def ignored_by_comment(nb, cell):
    cell["source"] = "# NBVAL_IGNORE_OUTPUT\ntwice(3)"


@example(check.check_figures, "without a caption", "draw")
def no_caption(nb, cell):
    cell["metadata"]["mystnb"]["figure"]["caption"] = " "


@example(check.check_figures, "without an alt text", "draw")
def no_alt(nb, cell):
    del cell["metadata"]["mystnb"]["image"]


@example(check.check_figures, "alt text of 9 characters", "draw")
def short_alt(nb, cell):
    cell["metadata"]["mystnb"]["image"]["alt"] = "A figure."


@example(check.check_figures, "repeats the caption", "draw")
def alt_is_caption(nb, cell):
    cell["metadata"]["mystnb"]["figure"]["caption"] = toybook.ALT


@example(check.check_figures, "draws 2 figures", "draw")
def two_figures(nb, cell):
    cell["outputs"].append(picture())


@example(check.check_figures, "does not draw", "draw")
def figure_missing(nb, cell):
    cell["outputs"] = []


# -- text --


@example(check.check_links, "no such heading", "title0", book="00_start")
def wrong_anchor(nb, cell):
    cell["source"] += " [x](12_double.ipynb#12-1-how-twice-is-done)"


@example(check.check_links, "13_gone.ipynb, which is not there", "title12")
def dead_link(nb, cell):
    cell["source"] += "\n\n> [x](13_gone.ipynb)"


@example(check.check_links, "image to gone.png", "title12")
def dead_image(nb, cell):
    cell["source"] += '\n\n<img src="gone.png" alt="a">'


@example(check.check_links, "which is not there", "title12")
def link_out_of_the_project(nb, cell):
    cell["source"] += "\n\n[x](../../)"


@example(check.check_links, "no page of the book", "title12")
def link_to_no_page(nb, cell):
    cell["source"] += "\n\n[x](../README.md)"


@example(check.check_links, "without an alt text", "title12")
def image_without_alt(nb, cell):
    cell["source"] += "\n\n![](index.md)"


@example(check.check_plain_markdown, "role {cite}", "how")
def role(nb, cell):
    cell["source"] += " {cite}`x`"


@example(check.check_plain_markdown, "directive {note}", "how")
def directive(nb, cell):
    cell["source"] += "\n\n```{note}\nx\n```"


@example(check.check_plain_markdown, "fence :::", "how")
def colons(nb, cell):
    cell["source"] += "\n\n:::{note}\nx"


@example(check.check_plain_markdown, "labelled formula (eq)", "how")
def labelled_formula(nb, cell):
    cell["source"] += "\n\n$$\nx\n$$ (eq)"


@example(check.check_plain_markdown, "footnote [^1]", "how")
def footnote(nb, cell):
    cell["source"] += " a[^1]"


@example(check.check_headings, "second title", "more")
def second_title(nb, cell):
    add(nb, text("# More", "more"))


@example(check.check_headings, "without its number", "title12")
def title_without_number(nb, cell):
    cell["source"] = "# What is double?"


@pytest.mark.parametrize(("one", "fragment", "cell", "where", "book", "spoil"), EXAMPLES)
def test_bad_example_is_found(root, one, fragment, cell, where, book, spoil):
    nb = copy.deepcopy(toybook.toy()[book])
    found = {c["id"]: c for c in nb["cells"]}
    spoil(nb, found.get(cell))
    toybook.save(root, book, nb)
    findings = list(one(Book(root)))
    assert len(findings) == 1, [str(f) for f in findings]
    finding = findings[0]
    assert finding.file == f"book/{book}.ipynb"
    assert finding.cell == where
    assert fragment in finding.what
    assert finding.remedy
    line = str(finding)
    assert "\n" not in line
    assert finding.file in line and f"cell {where}" in line


def test_every_check_has_a_bad_example():
    """Those without a single cell to blame have a test of their own."""
    own = {f"check_{w}" for w in ("readable", "export", "form", "contents", "leaks", "ruff")}
    assert own | {p.values[0].__name__ for p in EXAMPLES} == {c.__name__ for c in check.CHECKS}


def only(findings):
    findings = list(findings)
    assert len(findings) == 1, [str(f) for f in findings]
    return findings[0]


def test_unreadable_cell(root):
    nb = toybook.toy()["12_double"]
    nb["cells"][4]["source"] = "#| export\ndef twice(:"
    toybook.save(root, "12_double", nb)
    finding = only(check.check_readable(Book(root)))
    assert finding.file == "book/12_double.ipynb" and "cell twice" in finding.what
    (root / "book/12_double.ipynb").write_text("{}")
    assert "not a notebook" in only(check.check_readable(Book(root))).what


def test_package_out_of_step(root):
    module = root / "src/transformer18/double.py"
    module.write_text(module.read_text() + "\nx = 1\n")
    finding = only(check.check_export(Book(root)))
    assert finding.file == "src/transformer18/double.py" and "make export" in finding.remedy


def test_module_by_hand(root):
    (root / "src/transformer18/notes.py").write_text("x = 1\n")
    finding = only(check.check_export(Book(root)))
    assert finding.file == "src/transformer18/notes.py" and "by hand" in finding.what


def test_wild_form(root):
    nb = toybook.toy()["12_double"]
    nb["metadata"] = {"colab": {}}
    toybook.save(root, "12_double", nb, raw=True)
    finding = only(check.check_form(Book(root)))
    assert finding.file == "book/12_double.ipynb" and "--format-only" in finding.remedy


def test_setup_cell_of_another_text(root):
    nb = toybook.toy()["12_double"]
    nb["cells"][0]["source"] += "\nprint('hello')"
    toybook.save(root, "12_double", nb, raw=True)
    finding = only(check.check_setup_cell(Book(root)))
    assert finding.cell == "setup12" and "differs from the standard" in finding.what


def test_table_of_contents(root):
    toc = root / "_toc.yml"
    toc.write_text(toc.read_text() + "- file: book/13_gone\n")
    assert "lists book/13_gone" in only(check.check_contents(Book(root))).what
    toc.write_text("format: jb-book\nroot: book/index\nchapters:\n- file: book/00_start\n")
    assert "does not list book/12_double" in only(check.check_contents(Book(root))).what


LEAKS = ["/" + "work/x", "see ../" + "shared/x", "/" + "tmp/x", "/" + "home/me"]


@pytest.mark.parametrize("word", LEAKS)
def test_leak(root, word):
    (root / "notes.txt").write_text(f"fine\n{word}\n")
    finding = only(check.check_leaks(Book(root)))
    assert finding.file == "notes.txt" and "line 2" in finding.what


def test_leak_in_an_output_but_not_in_a_picture(root):
    nb = toybook.toy()["12_double"]
    nb["cells"][7]["outputs"][0]["data"]["image/png"] = "/" + "tmp/" + png()[5:]
    toybook.save(root, "12_double", nb, raw=True)
    assert list(check.check_leaks(Book(root))) == []
    nb["cells"][6]["outputs"] = [stream("file /" + "tmp/x\n")]
    toybook.save(root, "12_double", nb)
    finding = only(check.check_leaks(Book(root)))
    assert (finding.file, finding.cell) == ("book/12_double.ipynb", "try12")


def test_ignored_files_do_not_leak(root):
    (root / ".gitignore").write_text("notes.txt\n")
    (root / "notes.txt").write_text("/" + "tmp/x\n")
    assert list(check.check_leaks(Book(root))) == []


def test_ruff_finding_names_the_cell(root):
    nb = toybook.toy()["12_double"]
    nb["cells"][3]["source"] += "\nimport os"
    toybook.save(root, "12_double", nb)
    export(root)
    finding = only(check.check_ruff(Book(root)))
    assert (finding.file, finding.cell) == ("book/12_double.ipynb", "imports")
    assert "F401" in finding.what
    (root / "tests/test_x.py").write_text("import os\n")
    lines = [str(f) for f in check.check_ruff(Book(root))]
    assert any(line.startswith("tests/test_x.py:1: F401") for line in lines), lines


def test_long_cells_are_noted_but_not_fatal(root, capsys):
    nb = toybook.toy()["12_double"]
    for cell in nb["cells"][3:]:
        cell["source"] += "\n# more" * 10
    toybook.save(root, "12_double", nb)
    finding = only(check.check_cell_size(Book(root)))
    assert not finding.fatal and str(finding).startswith("note: book/12_double.ipynb")


@pytest.mark.parametrize(
    ("said", "numbers"),
    [
        ("# chapter 17: the loop", {17}),
        ("Chapters 16 and [17](17_training.ipynb)", {16, 17}),
        ("chapters 4, 5 and 16 give", {4, 5, 16}),
        ("[chapter 17](17_training.ipynb#172-x)", {17}),
        ("第 17 章", {17}),
        ("17 of them in a chapter", set()),
    ],
)
def test_chapters_named(said, numbers):
    assert check.chapters_named(said) == numbers


@pytest.mark.parametrize(
    "source",
    [
        '"""Words."""\nimport os\nfrom a import b\nX = 1\ny: int = 2',
        "try:\n    import a\nexcept ImportError:\n    a = None",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import a",
        'if __name__ == "__main__" and __package__:\n    main()',
        "@d\nclass A:\n    def f(self):\n        self.x += 1",
    ],
)
def test_definitions_pass(source):
    tree = check.parsed(source)
    assert all(map(check.is_definition, tree.body))


def test_anchors_are_those_of_the_page():
    """The same slugs as the page's, doubles and code included."""
    pieces = [("a", check.tokens("# A b\n\n## 12.4 `x_y`: what, *why*?\n\n## A b\n\n#### deep"))]
    pieces += [("b", check.tokens("## 中文 A\n\n$a[b](c)$ <a id='x'></a><b id=\"here\">"))]
    assert check.anchors(pieces) == {"a-b", "124-x_y-what-why", "a-b-1", "中文-a", "here"}


def test_formulas_hold_no_links():
    assert list(check.links(check.tokens("$a[b](c)$ and `[d](e)` and [f](g)"))) == [("link", "g")]


def test_a_bad_figure_does_not_hide_in_another_finding(root):
    """Two faults in one cell are two lines."""
    nb = toybook.toy()["12_double"]
    nb["cells"][7]["metadata"] = {}
    toybook.save(root, "12_double", nb)
    assert [re.sub("draws a figure ", "", f.what) for f in check.check_figures(Book(root))] == [
        "without a caption",
        "without an alt text",
    ]
