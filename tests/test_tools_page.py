"""The page that a reader sees, and `pytest --nbval book/`."""

import re
import subprocess
import sys
from html import unescape
from pathlib import Path

import pytest
import toybook
from toybook import ALT, CAPTION, code, stream, text

from tools.export import export


def command(root, program, *words):
    """Run a program of this environment in the folder `root`."""
    path = Path(sys.executable).with_name(program)
    return subprocess.run([path, *words], cwd=root, capture_output=True, text=True, timeout=300)


def build(root):
    return command(root, "jupyter-book", "build", ".", "-W", "-n", "--keep-going")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The toy book as HTML."""
    root = toybook.with_project(toybook.write(tmp_path_factory.mktemp("site")))
    nb = toybook.toy()["12_double"]
    nb["cells"].append(code("#| hide\nkept_from_the_page = 1", "hide"))
    nb["cells"].append(code("#| export third\nTHREE = 3", "third"))
    folded = code("#| export third\nFOUR = 4", "folded", tags=["hide-input"])
    nb["cells"].append(folded)
    nb["cells"].append(text("See [0](00_start.ipynb#0-start) and $x^2$.", "end"))
    toybook.save(root, "12_double", nb)
    done = build(root)
    assert done.returncode == 0, done.stdout + done.stderr
    return root / "_build/html"


@pytest.fixture(scope="module")
def page(site):
    return unescape((site / "book/12_double.html").read_text(encoding="utf-8"))


def words(html):
    """What is read, without the markup."""
    return re.sub(r"<[^>]+>", "", html)


def test_directives_are_not_shown(page):
    assert "#|" not in words(page)
    assert "default_exp" not in words(page)


def test_exported_cells_are_marked(page):
    marks = re.findall(r'<div class="exported-to[^>]*>\s*<p>(.*?)</p>', page)
    assert [words(mark) for mark in marks] == [
        "→ transformer18.double",
        "→ transformer18.double",
        "→ transformer18.double",
        "→ transformer18.third",
        "→ transformer18.third",
    ]
    text = words(page)
    assert re.search(r"→ transformer18\.double\s+def twice\(x\):", text), "right above its cell"
    assert re.search(r"→ transformer18\.third\s+THREE = 3", text)


def test_exported_cells_can_be_folded(page):
    folds = re.findall(r"<details[^>]*above-input.*?</details>", page, flags=re.DOTALL)
    assert [("FOUR" in fold, "THREE" in fold) for fold in folds] == [(True, False)]
    assert re.search(r"→ transformer18\.third\s+Show code", words(page)), "mark above the fold"


def test_hidden_cells_are_gone(page):
    assert "google.colab" not in page, "the set-up cell"
    assert "kept_from_the_page" not in page, "#| hide"


def test_other_cells_keep_their_code_and_output(page):
    assert "twice(3)" in words(page)
    assert "ZeroDivisionError: division by zero" in words(page)


def test_figure_has_caption_and_alt_text_but_no_number(page):
    assert f'alt="{ALT}"' in page
    assert CAPTION in words(page)
    assert "Fig. 1" not in words(page)


def test_links_lead_to_pages(page):
    assert 'href="00_start.html#start"' in page or 'href="00_start.html#0-start"' in page
    assert ".ipynb#" not in page


def test_nothing_is_loaded_from_elsewhere(site):
    assert (site / "_static/tex-svg-full.js").stat().st_size > 1_000_000
    pages = list(site.rglob("*.html"))
    assert len(pages) >= 4
    for path in pages:
        html = path.read_text(encoding="utf-8")
        assert not re.findall(
            r'<(?:script|link|img)\b[^>]*(?:src|href)="(?:https?:)?//[^"]*"', html
        )
    assert "tex-svg-full.js" in (site / "book/12_double.html").read_text(encoding="utf-8")


def test_front_page_leads_to_the_book(site):
    assert "book/index.html" in (site / "index.html").read_text(encoding="utf-8")


def test_dead_anchor_and_stored_warning_fail_the_build(tmp_path):
    root = toybook.with_project(toybook.write(tmp_path))
    nb = toybook.toy()["12_double"]
    nb["cells"][1]["source"] += " [x](00_start.ipynb#gone)"
    nb["cells"][6]["outputs"].append(stream("UserWarning: mind\n", "stderr"))
    toybook.save(root, "12_double", nb)
    done = build(root)
    assert done.returncode != 0
    assert "gone" in done.stdout + done.stderr
    assert "stderr" in done.stdout + done.stderr


def test_nbval_line_compares_every_output(tmp_path):
    """`pytest --nbval book/`, exactly so, passes on what is true and fails
    on one stored number that is not."""
    root = toybook.with_project(toybook.write(tmp_path))
    nb = toybook.toy()["12_double"]
    nb["cells"][6]["outputs"][0]["data"]["text/plain"] = "7"
    toybook.save(root, "12_double", nb)
    address = code("object()", "address", toybook.value("<object at 0x7f0000000000>"))
    first = toybook.toy()["00_start"]
    first["cells"].append(address)
    toybook.save(root, "00_start", first)
    export(root)
    done = command(root, "pytest", "--nbval", "book/")
    assert done.returncode == 1, done.stdout + done.stderr
    cells = sum(c["cell_type"] == "code" for c in nb["cells"] + first["cells"])
    assert f"1 failed, {cells - 1} passed" in done.stdout
    assert re.search(r"FAILED book/12_double.ipynb::Cell 4", done.stdout), done.stdout
