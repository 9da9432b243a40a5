"""Every exercise: its solution passes its check, the unsolved cell does not."""

import contextlib
import io
import re
from pathlib import Path

import nbformat
import pytest

from transformer18.exercise import agree, check

BOOK = Path(__file__).parent.parent / "book"
FENCE = re.compile(r"<summary>Solution</summary>\n+```python\n(.*?)```", re.DOTALL)


def exercises():
    """(notebook, exercise cell, check cell, solution) of the whole book."""
    for path in sorted(BOOK.glob("*.ipynb")):
        cells = nbformat.read(path, 4).cells
        for i, cell in enumerate(cells):
            if "exercise" in cell.metadata.get("tags", []):
                number = re.search(r'@check\("(.*?)"\)', cells[i + 1].source)
                name = f"{path.stem}-{number[1] if number else i}"
                yield pytest.param(path.stem, cells[i : i + 3], id=name)


ALL = list(exercises())


def said(*sources) -> str:
    """What these cells print, run one after the other in an empty kernel."""
    namespace, printed = {"__name__": "__main__"}, io.StringIO()
    with contextlib.redirect_stdout(printed):
        for source in sources:
            exec(compile(source, "cell", "exec"), namespace)
    return printed.getvalue()


@pytest.mark.parametrize("notebook, cells", ALL)
def test_solved_and_unsolved(notebook, cells):
    exercise, checked, solution = cells
    assert "check" in checked.metadata.get("tags", []), "a check comes next"
    assert "solution" in solution.metadata.get("tags", []), "then the solution"
    found = FENCE.findall(solution.source)
    assert len(found) == 1, "one solution, as python code"
    unsolved = said(exercise.source, checked.source)
    assert re.fullmatch(r"Exercise [\d.]+: not yet\. .+\n", unsolved, re.DOTALL), unsolved
    assert re.fullmatch(r"Exercise [\d.]+: solved\.\n", said(found[0], checked.source))


def test_there_are_exercises_and_their_numbers_differ():
    names = [param.id for param in ALL]
    assert len(names) == len(set(names)) >= 6
    for notebook in ("00_before_we_start", "17_training"):
        assert any(name.startswith(notebook) for name in names)


def outcome(test) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        check("9.9")(test)
    return printed.getvalue()


def test_a_check_prints_and_never_raises():
    def fails(error):
        def test():
            raise error

        return test

    assert outcome(lambda: None) == "Exercise 9.9: solved.\n"
    assert outcome(fails(AssertionError("Too long."))) == "Exercise 9.9: not yet. Too long.\n"
    assert outcome(fails(NotImplementedError("Fill."))) == "Exercise 9.9: not yet. Fill.\n"
    assert "TypeError: None" in outcome(fails(TypeError("None")))
    assert "AssertionError" in outcome(fails(AssertionError()))


def test_agree_names_the_first_case_that_differs():
    agree(lambda x: x + 1, lambda x: x + 1, [(1,), (2,)])
    agree(lambda x: x / 3, lambda x: x * (1 / 3), [(1.0,), (7.0,)])
    with pytest.raises(AssertionError, match=r"For \(2\) it gives 4; right is 3"):
        agree(lambda x: 2 * x, lambda x: x + 1, [(1,), (2,), (3,)])
    with pytest.raises(AssertionError, match="gives None"):
        agree(lambda x: None, lambda x: x, [(1,)])
