"""What the scripts that compare speeds share: turns, rows, what a file says.

A row is one number that a floor is set for: the values of all rounds, with
their median and extremes, or the reason why it was not measured.
"""

import json
import math
import os
import platform
import re
import shlex
import subprocess
import sys
import time
from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from multiprocessing import get_all_start_methods, get_context
from pathlib import Path
from statistics import median

import torch

from benchmarks.peers import SIZES, SMOKE, Size, missing, versions
from transformer18.vocabulary import write_atomically

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
QUIET = 2.5  # a load average from which on a machine counts as busy


# -- taking turns --------------------------------------------------------------


def interleave(
    turns: dict[str, Callable], rounds: int, *,
    calls: int = 1, clock: Callable[[], float] = time.process_time, warm: bool = True,
) -> dict[str, list[float]]:
    """Seconds a call of every contender, round by round.

    One turn is so many calls. The order moves on by one from round to round.
    One round more warms up and is not counted, unless `warm` is False.
    """  # fmt: skip
    names, seconds = list(turns), {name: [] for name in turns}
    for number in range(-1 if warm else 0, rounds):
        first = number % len(names) if names else 0
        for name in names[first:] + names[:first]:
            began = clock()
            for _ in range(calls):
                turns[name]()
            if number >= 0:
                seconds[name].append(significant((clock() - began) / calls))
    return seconds


@contextmanager
def threads(count: int) -> Iterator[None]:
    """torch computes with so many threads in this block."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def in_a_new_process(function: Callable, *arguments):
    """What function(*arguments) returns in a process that did nothing yet.

    The function must be one that a module has at its top. Where the system
    can, the process is a copy of one that has imported torch and done no more.
    """
    known = get_all_start_methods()
    context = get_context("forkserver" if "forkserver" in known else "spawn")
    if "forkserver" in known:
        context.set_forkserver_preload(["torch"])
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(function, *arguments).result()


def resident(field: str) -> int:
    """Bytes of main memory that this process holds (VmRSS) or held at most
    (VmHWM). Linux only; elsewhere 0."""
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii")
    except OSError:
        return 0
    lines = dict(line.split(":", 1) for line in status.splitlines())
    return 1024 * int(lines[field].split()[0])


# -- rows ----------------------------------------------------------------------


def significant(value: float, digits: int = 5) -> float:
    """Rounded to so many significant digits."""
    return float(f"{value:.{digits}g}") if math.isfinite(value) else value


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median and extremes."""
    found = {"median": median(values), "least": min(values), "most": max(values)}
    return {name: significant(value) for name, value in found.items()}


def row(values: Sequence[float]) -> dict:
    """A number measured in every round."""
    return {"rounds": [significant(value) for value in values], **spread(values)}


def ratios(above: Sequence[float], below: Sequence[float]) -> dict:
    """The row of quotients, each of two values of the same round."""
    return row([a / b for a, b in zip(above, below, strict=True)])


def not_measured(why: str) -> dict:
    """The row of a number that cannot be had here, and why."""
    return {"not measured": why}


# -- the result file -----------------------------------------------------------


def load() -> float | None:
    """Processes that want to run, averaged over a minute."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None


def machine(loads: Sequence[float | None]) -> str:
    """quiet, busy or unknown: was anything else running?"""
    if None in loads:
        return "unknown"
    return "busy" if max(loads) >= QUIET else "quiet"


def processor() -> str:
    """What the machine calls its processor, or its architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def commit() -> str | None:
    """The commit of this checkout, + after it if files differ from it."""
    git = ["git", "-C", str(ROOT), "describe", "--always", "--dirty=+", "--exclude=*"]
    try:
        done = subprocess.run(git, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def about(script: str, arguments: Sequence[str], **more) -> dict:
    """What someone needs to make a result file again.

    script  the file's name without its ending
    """
    capability = torch.backends.cpu.get_cpu_capability()
    return {
        "command": shlex.join(["python", f"benchmarks/{script}.py", *arguments]),
        "date": datetime.now(UTC).date().isoformat(),
        "commit": commit(),
        "hardware": f"{os.cpu_count()} CPU cores ({processor()}, {capability}), no GPU",
        "cores": os.cpu_count(),
        "bfloat16_instructions": bfloat16_instructions(),
        "python": platform.python_version(),
        "versions": versions(),
        "threads": 1,
        "seconds": "CPU seconds of one thread; wall_seconds: wall time of two",
        **more,
    }


def bfloat16_instructions() -> bool:
    """Does this processor multiply in bfloat16 by itself?"""
    known = getattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
    return bool(known())


def store(path: Path, results: dict) -> None:
    """Write a result file, all of it or nothing; numbers side by side."""
    text = json.dumps(results, indent=1, ensure_ascii=False)
    number = r"-?[\d.]+(?:e[-+]?\d+)?"
    lists = rf"\[\s+({number}(?:,\s+{number})*)\s+\]"
    text = re.sub(lists, lambda found: "[" + " ".join(found[1].split()) + "]", text)
    write_atomically(path, (text + "\n").encode())


def lines_of(rows: dict[str, dict], width: int = 44) -> Iterator[str]:
    """Rows as text: name, median, range."""
    for name, found in rows.items():
        if "not measured" in found:
            yield f"  {name:{width}} not measured: {found['not measured']}"
        else:
            shown = "{median:.4g} ({least:.4g}–{most:.4g})".format(**found)
            yield f"  {name:{width}} {shown}"


# -- the scripts -----------------------------------------------------------------


@dataclass(frozen=True)
class Plan:
    """What a run measures, and how often."""

    sizes: dict[str, Size]  # name in the rows: sizes
    repeats: int | None = None  # rounds, in place of each study's own number
    quick: bool = False  # the contenders of the quick floors only
    smoke: bool = False  # the least of everything: does it run?

    def rounds(self, usual: int) -> int:
        return self.repeats or (2 if self.smoke else usual)


# name: what measures it; it gives what a file says in full, and its rows
Studies = dict[str, Callable[[Plan], tuple[dict, dict]]]


def measure(plan: Plan, studies: Studies) -> dict:
    """What the studies find, all of their rows, and how long each took."""
    found, rows, loads, seconds = {}, {}, [load()], {}
    for name, study in studies.items():
        began = time.perf_counter()
        found[name], more = study(plan)
        rows |= more
        loads.append(load())
        seconds[name] = round(time.perf_counter() - began)
    took = {"load": loads, "machine": machine(loads), "seconds_a_study": seconds}
    return {"missing": missing(), "took": took, "rows": rows, "studies": found}


def main(script: str, doc: str, studies: Studies, arguments: list[str] | None = None) -> dict:
    """train.py and decode.py from the command line; what was stored."""
    arguments = sys.argv[1:] if arguments is None else arguments
    out = RESULTS / f"{script}.json"
    parser = ArgumentParser(description=doc.split("\n")[0])
    sizes = [*SIZES]
    parser.add_argument("--sizes", nargs="+", choices=sizes, default=sizes)
    parser.add_argument("--studies", nargs="+", choices=[*studies], default=[*studies])
    parser.add_argument("--repeats", type=int, help="rounds, instead of each study's own number")
    parser.add_argument("--smoke", action="store_true", help="minute sizes; stored with --out only")
    parser.add_argument("--out", type=Path, help=f"result file ({out.relative_to(ROOT)})")
    options = parser.parse_args(arguments)
    if options.repeats is not None and options.repeats < 1:
        parser.error(f"--repeats must be at least 1, not {options.repeats}")
    known = SMOKE if options.smoke else SIZES
    chosen = {name: size for name, size in known.items() if name in options.sizes}
    plan = Plan(chosen, options.repeats, smoke=options.smoke)
    found = measure(plan, {name: studies[name] for name in options.studies})
    print("rows:", *lines_of(found["rows"]), sep="\n")
    for peer, why in found["missing"].items():
        print(f"{peer} {why}")
    results = {"about": about(script, arguments), **found}
    if options.out or not options.smoke:
        store(options.out or out, results)
    return results
