"""What several test files share."""

from pathlib import Path

import pytest


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder with a few sentence pairs."""
    monkeypatch.chdir(tmp_path)
    lines = [f"{'a b ' * (1 + i % 5)}c\t{'x y ' * (1 + i % 4)}z" for i in range(60)]
    Path("p.tsv").write_text("\n".join(lines))
    Path("d.tsv").write_text("\n".join(lines[:9]))
    return tmp_path
