#!/usr/bin/env python3
"""Execute notebooks and store their outputs, always in the same form.

    python tools/run.py               all notebooks
    python tools/run.py 12 05         these chapters
    python tools/run.py -j 2          two at a time
    python tools/run.py --format-only    bring into form, execute nothing

A notebook's modules are exported before it is executed, so that its later
cells import what its earlier cells say. Where a cell fails, the notebook's
file is left as it was. Run twice in a row, the second run changes nothing.
"""

import argparse
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools.export import export
from tools.notebooks import (
    CELL_TIMEOUT,
    ROOT,
    NotebookError,
    canonical,
    find_notebooks,
    kernel_environment,
    parse,
    to_text,
    write_atomically,
)


def execute(nb: dict, name: str, folder: Path, timeout: int = CELL_TIMEOUT) -> dict:
    """The canonical form of the notebook with outputs made afresh, in a
    kernel of its own with working directory `folder`.

    Raises NotebookError, with notebook, cell and traceback, for a cell
    that fails, takes longer than `timeout` seconds or ends the kernel.
    """
    import nbformat
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

    node = nbformat.from_dict(canonical(nb))
    for cell in node.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    client = NotebookClient(
        node,
        timeout=timeout,
        kernel_name="python3",
        record_timing=False,
        store_widget_state=False,
        extra_arguments=["--log-level=ERROR"],  # of the kernel's own log
        resources={"metadata": {"path": str(folder)}},
    )
    with client.setup_kernel():
        for index, cell in enumerate(node.cells):
            try:
                client.execute_cell(cell, index)
            except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
                first = cell.source.strip().split("\n")[0]
                why = {
                    CellTimeoutError: f"took longer than {timeout} s",
                    DeadKernelError: "ended the kernel",
                }.get(type(error))
                raise NotebookError(
                    f"{name}, cell {cell.id} (number {index}: {first})\n{why or error}"
                ) from None
    return canonical(node)


def run_one(
    path: Path, root: Path, format_only: bool = False, timeout: int = CELL_TIMEOUT
) -> tuple[bool, str]:
    """Bring one notebook up to date; success, and what to say about it."""
    start = time.perf_counter()
    try:
        before = path.read_text(encoding="utf-8")
        nb = parse(before, path.name)
        if not format_only:
            kernel_environment(root)
            nb = execute(nb, path.name, root / "book", timeout)
        after = to_text(nb)
        if path.read_text(encoding="utf-8") != before:
            raise NotebookError(f"{path.name}: edited while it ran; run it again")
        if after != before:
            write_atomically(path, after)
    except NotebookError as error:
        return False, f"FAILED {error}\n{path.name} is left as it was"
    seconds = time.perf_counter() - start
    return True, f"{path.stem}: {'stored' if after != before else 'no change'}, {seconds:.1f} s"


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(description="Execute notebooks and store their outputs.")
    parser.add_argument("names", nargs="*", help="chapters, such as 12 or 12_multi_head; none: all")
    parser.add_argument("-j", "--jobs", type=int, default=1, help="notebooks at a time (1)")
    seconds = f"seconds a cell may take ({CELL_TIMEOUT})"
    parser.add_argument("--timeout", type=int, default=CELL_TIMEOUT, help=seconds)
    parser.add_argument("--format-only", action="store_true", help="execute nothing")
    options = parser.parse_args(arguments)
    try:
        paths = find_notebooks(options.names, root)
        if not options.format_only:
            for line in export(root, paths if options.names else None):
                print(line, flush=True)
    except NotebookError as error:
        print(error, file=sys.stderr)
        return 1
    job = partial(run_one, root=root, format_only=options.format_only, timeout=options.timeout)
    failed = 0
    with ExitStack() as stack:
        work = map
        if options.jobs > 1 and len(paths) > 1:
            work = stack.enter_context(ProcessPoolExecutor(options.jobs)).map
        for good, said in work(job, paths):
            failed += not good
            print(said, file=sys.stdout if good else sys.stderr, flush=True)
    if failed:
        print(f"{failed} of {len(paths)} notebooks failed", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
