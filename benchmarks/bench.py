#!/usr/bin/env python3
"""The speed of the package against its floors, in one table.

    python benchmarks/bench.py            the quick rows, under five minutes
    python benchmarks/bench.py --full     all rows, under forty minutes
    python benchmarks/bench.py --smoke    all of it in minute sizes: does it run?

Every row is a quotient, nearly all of them of the package's speed and that of
what its user would pick instead; see train.py and decode.py, which measure
them, for what is compared and how. A row is reached when its median is. A row
whose peer is not installed, or which the processor cannot show, says so and
does not count as reached.

--full stores all it finds in benchmarks/results/bench.json, behind the full
run before it: a row counts when it is reached twice in a row. The exit status
is 1 if a row that was measured is not reached.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

from benchmarks import decode, train
from benchmarks.measuring import RESULTS, ROOT, Plan, about, lines_of, measure, store
from benchmarks.peers import CT2, MARIAN, NN, SIZES, SMOKE

OUT = RESULTS / "bench.json"


@dataclass(frozen=True)
class Floor:
    """What a row must be at least, or at most, and what it should be."""

    row: str
    what: str
    floor: float
    aim: float | None
    at_most: bool = False
    quick: bool = False  # also among the quick rows

    def good(self, value: float, wanted: float) -> bool:
        return value <= wanted if self.at_most else value >= wanted

    def verdict(self, found: dict | None) -> str:
        """aim, floor, no, or not measured: what was reached."""
        if found is None or "not measured" in found:
            return "not measured"
        if self.aim is not None and self.good(found["median"], self.aim):
            return "aim"
        return "floor" if self.good(found["median"], self.floor) else "no"


def faster(row: str, what: str, than: str, floor: float, aim: float, quick=False) -> Floor:
    return Floor(row, f"{what}, times as fast as {than}", floor, aim, quick=quick)


def at_most(row: str, what: str, floor: float, aim: float) -> Floor:
    return Floor(row, what, floor, aim, at_most=True)


FLOORS = [
    faster(f"train/tiny/{NN}", "training tiny", "nn.Transformer", 1.45, 1.75, quick=True),
    faster(f"train/base/{NN}", "training base", "nn.Transformer", 1.15, 1.3, quick=True),
    faster("train/base/bfloat16", "training base in bf16", "nn.Transformer in fp32", 1.75, 2.0),
    at_most("memory/tiny", "peak memory, training tiny, over nn.Transformer's", 0.45, 0.35),
    at_most("memory/base", "peak memory, training base, over nn.Transformer's", 0.75, 0.65),
    faster(f"train/tiny/{MARIAN}", "training tiny", "Marian", 1.25, 1.5),
    faster(f"train/base/{MARIAN}", "training base", "Marian", 1.05, 1.2),
    faster("useful/random batches", "news lengths", "nn in random batches", 3.8, 5.0),
    faster("useful/length buckets", "news lengths", "nn in the same batches", 1.35, 1.6),
    faster(f"greedy/tiny/1/{CT2}", "greedy tiny, 1 sentence", CT2, 0.35, 0.6, quick=True),
    faster(f"greedy/tiny/32/{CT2}", "greedy tiny, 32 sentences", CT2, 0.88, 1.2, quick=True),
    faster(f"greedy/base/1/{CT2}", "greedy base, 1 sentence", CT2, 1.15, 1.5),
    faster(f"greedy/base/32/{CT2}", "greedy base, 32 sentences", CT2, 1.05, 1.3),
    faster(f"beam 4/tiny/16/{CT2}", "beam 4, tiny, 16 sentences", CT2, 0.55, 0.8),
    faster(f"beam 4/base/16/{CT2}", "beam 4, base, 16 sentences", CT2, 0.8, 1.0),
    faster(f"int8/base/1/{CT2}", "int8, base, 1 sentence", f"{CT2} int8", 1.3, 2.0),
    faster(f"int8/base/32/{CT2}", "int8, base, 32 sentences", f"{CT2} int8", 0.9, 1.2),
    faster(f"greedy/tiny/1/{MARIAN}", "greedy tiny, 1 sentence", "Marian", 4.0, 6.0),
    faster(f"greedy/tiny/32/{MARIAN}", "greedy tiny, 32 sentences", "Marian", 1.8, 2.5),
    faster(f"greedy/base/1/{MARIAN}", "greedy base, 1 sentence", "Marian", 1.5, 2.0),
    faster(f"greedy/base/32/{MARIAN}", "greedy base, 32 sentences", "Marian", 1.4, 2.0),
    faster("mix/tiny", "news lengths, tiny, 32 at a time", "one by one", 3.5, 5.0),
    faster("mix/base", "news lengths, base, 32 at a time", "one by one", 2.5, 3.5),
    Floor("matmul share/base", "training base, share of the fp32 matmul rate", 0.75, 0.85),
    at_most("length/tiny/1", "tiny, time of a token at length 512 over at 32", 1.5, 1.2),
    at_most("length/base/1", "base, time of a token at length 512 over at 32", 1.5, 1.2),
    Floor("attention/memory", "attention, n = 8192, memory, naive over fused", 100, None),
    Floor("attention/time", "attention, n = 8192, time, naive over fused", 5, None),
    at_most("padding/longer side", "padding of the longer side, sorted batches", 0.07, 0.05),
]


# -- the table -------------------------------------------------------------------

SHOWN = {"aim": "yes, the aim too", "floor": "yes", "no": "NO", "not measured": "not measured"}


def table(floors: Sequence[Floor], rows: dict[str, dict]) -> Iterator[str]:
    """Floors as text, one a line."""
    yield f"{'':62}{'floor':>7}{'aim':>7}   {'measured (range)':24} reached"
    for one in floors:
        found, sign = rows.get(one.row), "≤" if one.at_most else "≥"
        aim = "–" if one.aim is None else format(one.aim, "g")
        limits = f"{sign + format(one.floor, 'g'):>7}{aim:>7}"
        reached, measured = SHOWN[one.verdict(found)], ""
        if reached == SHOWN["not measured"]:
            why = found["not measured"] if found else "no study measured it"
            reached += f": {why}"
        else:
            measured = "{median:.3g} ({least:.3g}–{most:.3g})".format(**found)
        yield f"{one.what:62}{limits}   {measured:24} {reached}"


def verdicts(floors: Sequence[Floor], rows: dict[str, dict]) -> list[dict]:
    """The same for the file."""
    return [
        {
            "row": one.row, "what": one.what, "at most" if one.at_most else "at least": one.floor,
            "aim": one.aim, "reached": one.verdict(rows.get(one.row)),
        }
        for one in floors
    ]  # fmt: skip


def twice(runs: Sequence[dict]) -> list[str]:
    """Rows that the last two runs both reached."""
    if len(runs) < 2:
        return []
    reached = [
        {one["row"] for one in run["floors"] if one["reached"] in ("floor", "aim")}
        for run in runs[-2:]
    ]
    return [one["row"] for one in runs[-1]["floors"] if one["row"] in reached[0] & reached[1]]


# -- runs ------------------------------------------------------------------------


def run(quick: bool, smoke: bool, repeats: int | None = None) -> dict:
    """Measure; all that a file says about it but where it comes from."""
    began = time.perf_counter()
    sizes = SMOKE if smoke else SIZES
    parts = {}
    if quick:
        tiny = {"tiny": sizes["tiny"]}
        plan = Plan(sizes, repeats, quick=True, smoke=smoke)
        parts["train"] = measure(plan, {"steps": train.STUDIES["steps"]})
        plan = Plan(tiny, repeats, quick=True, smoke=smoke)
        parts["decode"] = measure(plan, {"fixed": decode.STUDIES["fixed"]})
    else:
        plan = Plan(sizes, repeats, smoke=smoke)
        parts["train"] = measure(plan, train.STUDIES)
        parts["decode"] = measure(plan, decode.STUDIES)
    rows = {name: found for part in parts.values() for name, found in part["rows"].items()}
    floors = [one for one in FLOORS if one.quick or not quick]
    return {
        "minutes": round((time.perf_counter() - began) / 60, 1),
        "missing": parts["train"]["missing"],
        "floors": verdicts(floors, rows),
        "rows": rows,
        "took": {name: part["took"] for name, part in parts.items()},
        "studies": {name: part["studies"] for name, part in parts.items()},
    }


def earlier(path: Path) -> list[dict]:
    """The runs in a result file; none if there is no file."""
    return json.loads(path.read_text(encoding="utf-8"))["runs"] if path.exists() else []


def report(found: dict, quick: bool) -> None:
    """Print what was measured."""
    floors = [one for one in FLOORS if one.quick or not quick]
    print(*table(floors, found["rows"]), sep="\n")
    known = {one.row for one in floors}
    rest = {name: one for name, one in found["rows"].items() if name not in known}
    if rest:
        print("measured too, without a floor:", *lines_of(rest), sep="\n")
    for peer, why in found["missing"].items():
        print(f"{peer} {why}")
    print(f"{found['minutes']} minutes")


def main(arguments: list[str] | None = None) -> int:
    """The exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--full", action="store_true", help="all rows; stores them")
    parser.add_argument("--smoke", action="store_true", help="minute sizes; stored with --out only")
    parser.add_argument("--repeats", type=int, help="rounds, instead of each study's own number")
    parser.add_argument("--out", type=Path, help=f"result file ({OUT.relative_to(ROOT)})")
    options = parser.parse_args(arguments)
    if options.repeats is not None and options.repeats < 1:
        parser.error(f"--repeats must be at least 1, not {options.repeats}")
    quick = not (options.full or options.smoke)
    out = options.out or (OUT if options.full and not options.smoke else None)
    before = earlier(out) if out else []
    found = run(quick, options.smoke, options.repeats)
    report(found, quick)
    if out:
        runs = [*before[-1:], {"about": about("bench", arguments), **found}]
        store(out, {"runs": runs})
        if len(runs) > 1:
            print(f"reached twice in a row: {len(twice(runs))} of {len(FLOORS)} rows")
    missed = [one for one in found["floors"] if one["reached"] == "no"]
    if options.smoke:
        print("--smoke: sizes as small as these say nothing about speed")
        return 0
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
