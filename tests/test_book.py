"""The book as it stands keeps its own rules, and the README tells the truth."""

import re
import subprocess
import sys

import pytest

from tools import check
from tools.export import differences
from tools.notebooks import ROOT


def test_package_is_what_the_notebooks_make():
    diff = differences(ROOT)
    assert not diff, f"edit the notebook, then run `make export`:\n{diff}"


@pytest.fixture(scope="module")
def book():
    return check.Book(ROOT)


@pytest.mark.parametrize("one", check.CHECKS, ids=lambda one: one.__name__)
def test_rule(one, book):
    findings = [str(finding) for finding in one(book) if finding.fatal]
    assert not findings, "\n".join(findings)


def test_python_of_the_readme_runs():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    assert blocks
    for block in blocks:
        done = subprocess.run([sys.executable, "-c", block], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        for said in re.findall(r"print\(.*#.*: (.*)$", block, flags=re.MULTILINE):
            assert said in done.stdout


def test_plain_lines_of_the_readme_are_those_of_make():
    """Whoever has no make types the same as make does."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    recipes = (ROOT / "Makefile").read_text(encoding="utf-8")
    for line in (
        "jupyter-book build . -W -n --keep-going",
        "pytest --nbval book/",
        "-r requirements.txt",
        "--no-deps -e .",
    ):
        assert line in readme and line in recipes
