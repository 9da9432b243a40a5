"""The Makefile, tried without making an environment."""

import os
import re
import shutil
import subprocess

import pytest

from tools.notebooks import CELL_TIMEOUT, ROOT

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="no make here")


def script(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n" + text + "\n")
    path.chmod(0o755)
    return path


def make(folder, *words, **environment):
    shutil.copy(ROOT / "Makefile", folder)
    env = {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "TEXT"))}
    return subprocess.run(
        ["make", *words], cwd=folder, capture_output=True, text=True, env={**env, **environment}
    )


@pytest.fixture
def ready(tmp_path):
    """A folder whose environment seems ready; its Python says its words."""
    for name in ("requirements.txt", "pyproject.toml"):
        (tmp_path / name).touch()
    script(tmp_path / ".venv/bin/python", 'for word in "$@"; do echo "<$word>"; done')
    (tmp_path / ".venv/.ready").touch()
    return tmp_path


SENTENCES = [
    "the old man gives the child a book",
    'it\'s "her" book',
    "$HOME costs $5, $(shell echo no) `echo no`",
    "back\\slash; exit 3 # no comment",
    "-n begins with a dash",
    "straße 中文",
]


@pytest.mark.parametrize("sentence", SENTENCES)
def test_any_sentence_reaches_the_program(ready, sentence):
    done = make(ready, "translate", f"TEXT={sentence}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[-3:] == ["<-->", f"<{sentence}>", ""]
    done = make(ready, "translate", TEXT=sentence)
    assert done.stdout.split("\n")[-3:] == ["<-->", f"<{sentence}>", ""]


def test_no_sentence(ready):
    done = make(ready, "translate")
    assert done.returncode != 0
    assert "say what to translate" in done.stdout


def test_train_passes_its_arguments(ready):
    done = make(ready, "train", "DATA=a.en a.de", "ARGS=--steps 5")
    assert done.stdout.endswith("<train>\n<--data>\n<a.en>\n<--data>\n<a.de>\n<--steps>\n<5>\n")
    assert make(ready, "train").stdout.endswith("<transformer18>\n<train>\n")


def test_run_passes_chapters(ready):
    assert "<-j>\n<2>\n<12>\n<05>\n" in make(ready, "run", "CH=12 05").stdout
    assert make(ready, "run").stdout.endswith("<-j>\n<2>\n")


def test_old_python_is_refused(tmp_path):
    for name in ("requirements.txt", "pyproject.toml"):
        (tmp_path / name).touch()
    old = script(tmp_path / "python3.9", '[ "$1" = --version ] && echo "Python 3.9.1"; exit 1')
    done = make(tmp_path, "book", f"PYTHON={old}")
    assert done.returncode != 0
    assert "Python 3.9.1; 3.11 or newer is needed" in done.stdout
    assert not (tmp_path / ".venv").exists()
    done = make(tmp_path, "book", "PYTHON=no-such-python")
    assert "no 'no-such-python' here" in done.stdout


def test_help_lists_every_target(ready):
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.search(r"^\.PHONY: (.*)$", text, re.MULTILINE)[1].split())
    said = make(ready, "help").stdout
    assert targets == set(re.findall(r"^  make (\w+) ", said, re.MULTILINE))
    assert make(ready).stdout == said, "plain make helps"


def test_cell_timeout_is_one_number():
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert re.search(r'"--nbval-cell-timeout", "(\d+)"', text)[1] == str(CELL_TIMEOUT)


def test_requirements_are_pins_that_fit_the_ranges():
    """requirements.txt pins whatever pyproject.toml asks for."""
    import tomllib

    lines = (ROOT / "requirements.txt").read_text(encoding="utf-8").split("\n")
    pins = [line for line in lines if line and not line.startswith("#")]
    assert all(re.match(r"^[A-Za-z0-9._-]+==[0-9][\w.]*( ; .+)?$", pin) for pin in pins)
    names = {re.split("==", pin)[0].lower().replace("_", "-") for pin in pins}
    assert len(names) == len(pins)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = project["dependencies"]
    wanted += project["optional-dependencies"]["book"] + project["optional-dependencies"]["test"]
    assert {re.split("[<>=]", name)[0] for name in wanted} <= names
