"""tools/export.py: from notebooks to modules."""

import importlib
import sys

import pytest
import toybook
from toybook import code, notebook, text

from tools.export import existing, export, exported, main
from tools.notebooks import NotebookError, setup_cell


@pytest.fixture
def root(tmp_path):
    return toybook.write(tmp_path)


def make(tmp_path, *cells, name="03_three", module="three"):
    """The modules of one notebook of these cells."""
    (tmp_path / "book").mkdir(exist_ok=True)
    first = code(setup_cell(module), "setup")
    return exported([toybook.save(tmp_path, name, notebook(first, *cells))])


def test_modules_say_where_they_come_from(root):
    export(root)
    files = existing(root)
    assert sorted(files) == ["__init__.py", "double.py", "numbers.py", "vocabulary.py"]
    assert files["double.py"].startswith('"""Chapter 12. What is double?"""\n')
    assert "File to edit: ../../book/12_double.ipynb." in files["double.py"]
    assert "# %% ../../book/12_double.ipynb #twice\n" in files["double.py"]
    assert "#|" not in "".join(files.values())
    assert "find_spec" not in "".join(files.values()), "the set-up cell is not exported"


def test_public_names_and_relative_imports(root):
    export(root)
    files = existing(root)
    assert "__all__ = ['twice']" in files["double.py"], "exporti keeps _hidden private"
    assert "__all__ = ['PAD', 'BEGIN']" in files["vocabulary.py"]
    assert "from .vocabulary import (" in files["double.py"]


def test_exported_package_can_be_imported(root, monkeypatch):
    export(root)
    (root / "src/transformer18").rename(root / "src/toy18")
    monkeypatch.syspath_prepend(str(root / "src"))
    try:
        double = importlib.import_module("toy18.double")
        assert double.twice(4) == 8
        assert double._hidden() == 2
    finally:
        for name in [n for n in sys.modules if n.split(".")[0] == "toy18"]:
            del sys.modules[name]


def test_second_export_changes_nothing(root):
    assert len(export(root)) == 3
    assert export(root) == []
    assert main(["--check"], root) == 0


def test_check_fails_with_a_diff(root, capsys):
    export(root)
    module = root / "src/transformer18/double.py"
    module.write_text(module.read_text().replace("2 * x", "3 * x"))
    before = module.read_text()
    assert main(["--check"], root) == 1
    said = capsys.readouterr().out
    assert "-    return max(3 * x, PAD)\n+    return max(2 * x, PAD)\n" in said
    assert "src/transformer18/double.py" in said
    assert module.read_text() == before, "a check changes nothing"


def test_check_sees_missing_and_stale_modules(root, capsys):
    export(root)
    folder = root / "src/transformer18"
    (folder / "double.py").rename(folder / "triple.py")
    assert main(["--check"], root) == 1
    said = capsys.readouterr().out
    assert "--- (missing)" in said
    assert "+++ (no notebook makes it)" in said


def test_stale_module_goes_and_handwritten_files_stay(root):
    export(root)
    folder = root / "src/transformer18"
    (folder / "notes.py").write_text("X = 1\n")
    (folder / "pretrained").mkdir()
    (folder / "pretrained/mini.json").write_text("{}")
    (root / "book/12_double.ipynb").unlink()
    assert export(root) == ["removed src/transformer18/double.py: no notebook makes it"]
    there = {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}
    assert there == {
        "__init__.py",
        "numbers.py",
        "vocabulary.py",
        "notes.py",
        "pretrained/mini.json",
    }


def test_one_notebook_leaves_the_others_alone(root):
    export(root)
    folder = root / "src/transformer18"
    (folder / "numbers.py").unlink()
    said = export(root, [root / "book/12_double.ipynb"])
    assert said == []
    assert not (folder / "numbers.py").exists()


def test_module_dropped_from_a_notebook_goes_with_it(root):
    export(root)
    books = toybook.toy()["00_start"]
    books["cells"] = [c for c in books["cells"] if c["id"] != "ids"]
    path = toybook.save(root, "00_start", books)
    assert export(root, [path]) == ["removed src/transformer18/vocabulary.py: no notebook makes it"]


def test_syntax_error_names_the_cell_and_leaves_src_untouched(root, capsys):
    export(root)
    before = existing(root)
    books = toybook.toy()
    books["00_start"]["cells"][2]["source"] += "\n# changed"
    books["12_double"]["cells"][4]["source"] = "#| export\nx = 1\ndef twice(:\n    pass"
    for name, nb in books.items():
        toybook.save(root, name, nb)
    assert main([], root) == 1
    said = capsys.readouterr().err
    assert "12_double.ipynb, cell twice" in said
    assert "line 2" in said and "def twice(:" in said
    assert len(said.strip().split("\n")) == 1
    assert existing(root) == before, "all or nothing"


@pytest.mark.parametrize(
    ("source", "fragment"),
    [
        ("#| exprot\nx = 1", "unknown directive '#| exprot'"),
        ("x = 1\n#| export", "below code"),
        ("#| export a-b\nx = 1", "can't be the name"),
        ("#| export __init__\nx = 1", "can't be the name"),
    ],
)
def test_faulty_directives_are_named(tmp_path, source, fragment):
    with pytest.raises(NotebookError, match="03_three.ipynb, cell bad") as caught:
        make(tmp_path, code(source, "bad"))
    assert fragment in str(caught.value)


def test_export_without_a_module(tmp_path):
    with pytest.raises(NotebookError, match="default_exp"):
        make(tmp_path, code("#| export\nx = 1", "bad"), module=None)


def test_two_notebooks_cannot_make_one_module(root):
    books = toybook.toy()["12_double"]
    books["cells"].append(code("#| export vocabulary\nEND = 2", "more"))
    toybook.save(root, "12_double", books)
    with pytest.raises(NotebookError, match="already exported by 00_start.ipynb"):
        export(root)


def test_future_import_comes_first(tmp_path):
    future = code("#| export\nfrom __future__ import annotations", "a")
    rest = code("#| export\ndef f() -> nonsense:\n    return 1", "b")
    text = make(tmp_path, future, rest)["three.py"]
    assert text.index("__future__") < text.index("__all__") < text.index("def f")
    with pytest.raises(NotebookError, match="module 'three': from __future__"):
        make(tmp_path, rest, future)


def test_leading_string_becomes_the_docstring(tmp_path):
    files = make(tmp_path, code('#| export\n"""Three\nthings."""\n\nimport math', "a"))
    assert files["three.py"].startswith('"""Three\nthings."""\n\n# AUTOGENERATED!')
    assert files["three.py"].count("Three") == 1


def test_title_with_quotes_and_backslashes(tmp_path):
    files = make(tmp_path, text('# 3. A "\\d" `x`', "t"), code("#| export\nx = 1", "a"))
    space: dict = {}
    exec(files["three.py"], space)
    assert space["__doc__"] == "Chapter 3. A '\\d' x"


def test_imports_inside_functions_become_relative(tmp_path):
    source = (
        "#| export\nfrom transformer18 import vocabulary\nimport transformer18.x\n"
        "def f():\n    from transformer18.a.b import c\n    from transformer18x import d\n"
        '    return "from transformer18.q import r", c, d, vocabulary'
    )
    text = make(tmp_path, code(source, "a"))["three.py"]
    assert "from . import vocabulary" in text
    assert "import transformer18.x" in text
    assert "    from .a.b import c" in text
    assert "from transformer18x import d" in text
    assert '"from transformer18.q import r"' in text


def test_second_module_and_main(tmp_path):
    files = make(
        tmp_path,
        code("#| export\nx = 1", "a"),
        code("#| export other\ny = 2", "b"),
        code("#| export\nz = 3", "c"),
        code("#| export __main__\nfrom transformer18.other import y", "d"),
        code("#| hide\nw = 4", "e"),
    )
    assert sorted(files) == ["__main__.py", "other.py", "three.py"]
    assert "__all__ = ['x', 'z']" in files["three.py"]
    assert "from .other import y" in files["__main__.py"]
    assert "w = 4" not in "".join(files.values())


def test_not_a_notebook(root, capsys):
    (root / "book/12_double.ipynb").write_text("{")
    assert main([], root) == 1
    assert "12_double.ipynb: not a notebook" in capsys.readouterr().err
