#!/usr/bin/env python3
"""Keep what a finished run shows: a file for the book (finale).

    python benchmarks/record.py runs/NAME --name NAME --beam 5 --tokenize none \\
        --test test_2016 test.en test.de --test test_2017 other.en other.de

The file benchmarks/results/NAME.json holds how the run was made (command,
configuration, recipe, seed, versions, hardware, minutes), every record of its
training, and for each test set BLEU and chrF with signatures, by beam search
and greedily, the time it took, and some of the translations with their line
numbers: with source and reference too, where --sentences says that these may
be published.
"""

import argparse
import shlex
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

import torch

from transformer18.corpus import read_corpus
from transformer18.evaluation import scores
from transformer18.runs import read_json, read_metrics, write_json
from transformer18.translator import Translator

RESULTS = ROOT / "benchmarks" / "results"
KEPT = ("step", "epoch", "seconds", "tokens", "nll", "metric")


def judge_test(translator, files, options) -> dict:
    """Scores, seconds and samples of one test set."""
    pairs = read_corpus(*files).pairs
    sources, references = zip(*pairs, strict=True)
    found = {"sentences": len(pairs)}
    for name, beam in (("beam", options.beam), ("greedy", 1)):
        began = time.perf_counter()
        hypotheses = translator.translate(sources, beam=beam, alpha=options.alpha)
        seconds = round(time.perf_counter() - began, 1)
        found[name] = {
            "beam": beam, "alpha": options.alpha, "seconds": seconds,
            **scores(hypotheses, references, tokenize=options.tokenize),
        }  # fmt: skip
        if name == "beam":
            found["plain"] = scores(hypotheses, references)
            step = max(1, len(pairs) // options.samples)
            found["samples"] = [
                {"line": i + 1, "translation": hypotheses[i]}
                | ({"source": sources[i], "reference": references[i]} if options.sentences else {})
                for i in range(0, len(pairs), step)
            ][: options.samples]
    return found


def record(options) -> dict:
    """All that is kept of a run."""
    story = read_json(options.run / "run.json")
    if "best" not in story:
        sys.exit(f"{options.run} has not come to its end: resume it first")
    records = read_metrics(options.run)
    translator = Translator.load(options.run)
    story.pop("settings", None)
    return {
        "name": options.name,
        "recorded": datetime.now(UTC).isoformat(timespec="seconds"),
        "recorded_by": shlex.join(["python", "benchmarks/record.py", *sys.argv[1:]]),
        **story,
        "parameters": sum(p.numel() for p in translator.model.parameters()),
        "minutes": round(records[-1]["seconds"] / 60, 1),
        "metrics": [{k: round(r[k], 4) for k in KEPT} for r in records],
        "tests": {
            name: judge_test(translator, files, options) for name, *files in options.test
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("run", type=Path, help="the folder of a finished run")
    parser.add_argument("--name", required=True, help="of the file in benchmarks/results")
    parser.add_argument("--test", nargs="+", action="append", required=True,
                        metavar="NAME FILE [FILE]")  # fmt: skip
    parser.add_argument("--beam", type=int, default=4)
    parser.add_argument("--alpha", type=float, default=0.6)
    parser.add_argument("--tokenize", default="13a", help="of BLEU, as published numbers have it")
    parser.add_argument("--samples", type=int, default=20)
    parser.add_argument("--sentences", action="store_true",
                        help="keep source and reference of the samples: their licence allows it")  # fmt: skip
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    for name, *files in options.test:
        if not 1 <= len(files) <= 2:
            parser.error(f"--test {name}: give one or two files")
    kept = record(options)
    options.out.mkdir(parents=True, exist_ok=True)
    write_json(options.out / f"{options.name}.json", kept)
    for name, test in kept["tests"].items():
        for how in ("beam", "greedy"):
            print(f"{name}, {how}: BLEU {test[how]['bleu']:.2f} {test[how]['bleu_signature']}, "
                  f"chrF {test[how]['chrf']:.2f}")  # fmt: skip


if __name__ == "__main__":
    main()
