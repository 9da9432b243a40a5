"""tools/run.py and the canonical form of notebooks."""

import json
import os
import re
import subprocess
import sys
import types

import pytest
import toybook
from toybook import code, error, notebook, png, stream, text, value

from tools.export import export
from tools.notebooks import (
    NotebookError,
    canonical,
    find_notebooks,
    kernel_environment,
    parse,
    setup_cell,
    to_text,
)
from tools.run import main, run_one


def one_cell(*outputs, **metadata):
    """Canonical form of a code cell with these outputs."""
    return canonical(notebook(code("x", "a", *outputs, **metadata)))["cells"][0]


def test_canonical_form_is_a_fixed_point():
    for nb in toybook.toy().values():
        once = to_text(nb)
        assert to_text(parse(once, "x")) == once
        assert once.endswith("}\n")
        assert json.loads(once)["metadata"]["language_info"] == {"name": "python"}


def test_streams_are_merged():
    cell = one_cell(
        stream("a\n"), stream("w\n", "stderr"), stream("b\n"), value("1"), stream("c\n")
    )
    assert [(o.get("name"), o.get("text")) for o in cell["outputs"]] == [
        ("stdout", "a\nb\nc\n"),
        ("stderr", "w\n"),
        (None, None),
    ]


def test_colab_form_is_restored():
    """Colab saves without ids, with metadata of its own and split lines."""
    nb = toybook.toy()["12_double"]
    tidy = to_text(nb)
    wild = json.loads(tidy)
    for index, cell in enumerate(wild["cells"]):
        cell["metadata"]["id"] = f"colab{index}"
        cell["metadata"]["colab"] = {"height": 100}
        for output in cell.get("outputs", []):
            if "metadata" in output:
                output["metadata"] = {"needs_background": "light"}
            if "image/png" in output.get("data", {}):
                output["data"]["image/png"] = [png()[:40] + "\n", png()[40:] + "\n"]
        if cell["cell_type"] == "code":
            cell["execution_count"] = 7 + index
    wild["metadata"] = {"colab": {"name": "x"}, "language_info": {"version": "3.12.1"}}
    assert to_text(parse(json.dumps(wild), "x")) == tidy
    for cell in wild["cells"]:
        del cell["id"]
    again = parse(to_text(parse(json.dumps(wild), "x")), "x")
    ids = [cell["id"] for cell in again["cells"]]
    assert len(set(ids)) == len(ids)
    assert ids == [c["id"] for c in parse(to_text(parse(json.dumps(wild), "x")), "x")["cells"]]


def test_ids_are_kept_and_made_unique():
    same = [code("x", "a"), code("x", "a"), code("x", None), code("x", "no id!")]
    ids = [cell["id"] for cell in canonical(notebook(*same))["cells"]]
    assert ids[0] == "a"
    assert len(set(ids)) == 4


def test_execution_counts_run_and_unrun_cells_stay_unrun():
    nb = notebook(
        code("a", "a"), code("", "b"), code("c", "c", ran=False), code("d", "d", value("1"))
    )
    cells = canonical(nb)["cells"]
    assert [c["execution_count"] for c in cells] == [1, None, None, 3]
    assert cells[3]["outputs"][0]["execution_count"] == 3


def test_metadata_that_means_something_is_kept():
    figure = {"figure": {"caption": "c"}, "image": {"alt": "a"}}
    cell = one_cell(tags=["borrowed", "borrowed"], mystnb=figure, scrolled=True, colab={})
    assert cell["metadata"] == {"tags": ["borrowed"], "mystnb": figure}


def test_errors_keep_no_path():
    stored = one_cell(error("ValueError", "no\nway"))["outputs"][0]
    assert stored["traceback"] == ["ValueError: no\nway"]
    assert one_cell(error("StopIteration", ""))["outputs"][0]["traceback"] == ["StopIteration"]


def test_setup_cell_is_brought_up_to_date():
    old = setup_cell("double").replace("--quiet", "--verbose")
    assert canonical(notebook(code(old, "s")))["cells"][0]["source"] == setup_cell("double")
    assert len(setup_cell("double").split("\n")) <= 8


def test_setup_cell_does_nothing_in_a_checkout(monkeypatch):
    monkeypatch.delitem(sys.modules, "google.colab", raising=False)
    space: dict = {}
    exec(setup_cell("double"), space)
    assert "pip" not in space


def test_setup_cell_on_colab(monkeypatch):
    """With google.colab loaded and the package missing it installs it;
    as long as no address is known it says what to type."""
    calls = []
    monkeypatch.setitem(sys.modules, "google.colab", types.ModuleType("google.colab"))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr(subprocess, "run", lambda command, check: calls.append(command))
    cell = re.sub(r'REPOSITORY = ".*?"', 'REPOSITORY = "https://x.org/y"', setup_cell("double"))
    exec(cell, {})
    assert calls == [[sys.executable, "-m", "pip", "install", "--quiet", "git+https://x.org/y"]]
    with pytest.raises(AssertionError, match="pip install"):
        exec(cell.replace("https://x.org/y", ""), {})


def test_names(tmp_path):
    root = toybook.write(tmp_path)
    first, second = root / "book/00_start.ipynb", root / "book/12_double.ipynb"
    assert find_notebooks([], root) == [first, second]
    assert find_notebooks(["12"], root) == [second]
    assert find_notebooks(["0", "00", "book/00_start.ipynb"], root) == [first]
    with pytest.raises(NotebookError, match="no notebook '13'.*00_start, 12_double"):
        find_notebooks(["13"], root)


def test_unknown_name_on_the_command_line(tmp_path, capsys):
    assert main(["99"], toybook.write(tmp_path)) == 1
    assert "no notebook '99'" in capsys.readouterr().err


def test_kernel_environment(monkeypatch, tmp_path):
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "PYTHONHASHSEED", "HF_HUB_OFFLINE"):
        monkeypatch.setenv(name, "other")
    monkeypatch.setenv("MPLBACKEND", "agg")
    monkeypatch.setenv("PYTHONPATH", "elsewhere")
    kernel_environment(tmp_path)
    assert os.environ["OMP_NUM_THREADS"] == os.environ["MKL_NUM_THREADS"] == "1"
    assert os.environ["PYTHONHASHSEED"] == "0"
    assert "MPLBACKEND" not in os.environ
    assert os.environ["PYTHONPATH"].split(os.pathsep) == [str(tmp_path / "src"), "elsewhere"]


def test_format_only_executes_nothing(tmp_path):
    root = toybook.write(tmp_path)
    nb = toybook.toy()["12_double"]
    nb["metadata"] = {"colab": {}}
    path = toybook.save(root, "12_double", nb, raw=True)
    assert main(["--format-only", "12"], root) == 0
    assert path.read_text(encoding="utf-8") == to_text(toybook.toy()["12_double"])
    assert not (root / "src/transformer18/double.py").exists()


@pytest.fixture
def environment(monkeypatch):
    """Undo what a run does to the environment."""
    for name in ("PYTHONPATH", "OMP_NUM_THREADS"):
        monkeypatch.setenv(name, os.environ.get(name, ""))


def test_twice_in_a_row_gives_the_same_bytes(tmp_path, environment):
    """Executed for real: outputs as expected, pictures byte for byte."""
    root = toybook.write(tmp_path)
    export(root)
    path = root / "book/12_double.ipynb"
    good, said = run_one(path, root)
    assert good and "stored" in said, said
    once = path.read_bytes()
    cells = {c["id"]: c for c in json.loads(once)["cells"]}
    assert cells["try12"]["outputs"][0]["data"]["text/plain"] == ["6"]
    assert "image/png" in cells["draw"]["outputs"][-1]["data"]
    assert cells["fails"]["outputs"][0]["ename"] == "ZeroDivisionError"
    good, said = run_one(path, root)
    assert good and "no change" in said, said
    assert path.read_bytes() == once


def test_failing_cell_is_named_and_the_file_left(tmp_path, environment, capsys):
    root = toybook.write(tmp_path)
    nb = toybook.toy()["00_start"]
    nb["cells"].append(code("print('before')\nnothing_there", "oops"))
    path = toybook.save(root, "00_start", nb)
    before = path.read_bytes()
    assert main(["00"], root) == 1
    said = capsys.readouterr().err
    assert "00_start.ipynb, cell oops" in said
    assert "NameError" in said and "nothing_there" in said
    assert path.read_bytes() == before
    assert (root / "src/transformer18/numbers.py").exists(), "exported before it was run"


def test_dead_kernel_and_timeout_are_named(tmp_path, environment):
    root = toybook.write(tmp_path, {})
    path = toybook.save(root, "01_dies", notebook(code("import os\nos._exit(1)", "dies")))
    good, said = run_one(path, root)
    assert not good and "01_dies.ipynb, cell dies" in said and "ended the kernel" in said
    path = toybook.save(root, "01_dies", notebook(code("while True:\n    pass", "hangs")))
    good, said = run_one(path, root, timeout=1)
    assert not good and "cell hangs" in said and "longer than 1 s" in said


def test_notebook_edited_meanwhile_is_not_overwritten(tmp_path, environment):
    root = toybook.write(tmp_path, {})
    source = "from pathlib import Path\np = Path('01_x.ipynb')\np.write_text(p.read_text() + ' ')"
    path = toybook.save(root, "01_x", notebook(code(source, "edits")))
    good, said = run_one(path, root)
    assert not good and "edited while it ran" in said
    assert path.read_text().endswith("\n ")


def test_text_cells_are_kept_as_they_are():
    source = "# Two  \nlines\n\n$a_b$ \\* 中文"
    assert canonical(notebook(text(source, "t")))["cells"][0]["source"] == source
