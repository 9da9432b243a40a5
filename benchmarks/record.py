#!/usr/bin/env python3
"""Keep what a finished run shows: a file for the book (finale).

    python benchmarks/record.py runs/NAME --name NAME --beam 5 --tokenize none \\
        --test test_2016 test.en test.de --test test_2017 other.en other.de

The file benchmarks/results/NAME.json holds how the run was made (command,
configuration, recipe, seed, versions, hardware, minutes), every record of its
training, and for each test set BLEU and chrF with signatures, by beam search and
greedily, with the interval that a bootstrap gives, by length of the source, the
time it took, and some of the translations by line number. The sentences of
the test set are not kept: they are not ours.
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
from sacrebleu import BLEU

from transformer18.config import count_parameters
from transformer18.corpus import read_corpus
from transformer18.evaluation import scores
from transformer18.runs import read_json, read_metrics, write_json
from transformer18.translator import Translator

RESULTS = ROOT / "benchmarks" / "results"
KEPT = ("step", "epoch", "seconds", "tokens", "nll", "metric")
LENGTHS = (1, 5, 10, 15, 20)  # words of a source, from … on


def by_length(sources, hypotheses, references, tokenize: str) -> list[dict]:
    """Scores of the sentences of like length, where there are 50 or more."""
    found = []
    for least, below in zip(LENGTHS, (*LENGTHS[1:], 10**9), strict=True):
        rows = [i for i, s in enumerate(sources) if least <= len(s.split()) < below]
        if len(rows) < 50:
            continue
        some = [[side[i] for i in rows] for side in (hypotheses, references)]
        score = scores(*some, tokenize=tokenize)
        found.append({
            "words": least, "sentences": len(rows),
            "bleu": score["bleu"], "exact_match": score["exact_match"],
        })  # fmt: skip
    return found


def judge_test(translator, files, options) -> dict:
    """Scores, seconds and samples of one test set."""
    pairs = read_corpus(*files).pairs
    sources, references = zip(*pairs, strict=True)
    found = {"sentences": len(pairs)}
    searches = {"beam": (options.beam, options.alpha), "greedy": (1, 0.0)}
    searches |= {f"alpha {alpha}": (options.beam, alpha) for alpha in options.also_alpha}
    for name, (beam, alpha) in searches.items():
        began = time.perf_counter()
        hypotheses = translator.translate(sources, beam=beam, alpha=alpha)
        seconds = round(time.perf_counter() - began, 1)
        found[name] = {
            "beam": beam, "alpha": alpha, "seconds": seconds,
            **scores(hypotheses, references, tokenize=options.tokenize),
        }  # fmt: skip
        if name == "beam":
            bleu = BLEU(tokenize=options.tokenize, force=True)
            told = bleu.corpus_score(hypotheses, [references], n_bootstrap=1000)
            found["beam"]["bleu_in_full"] = str(told)
            found["plain"] = scores(hypotheses, references)
            texts = sources, hypotheses, references
            found["by_length"] = by_length(*texts, options.tokenize)
            step = max(1, len(pairs) // options.samples)
            found["samples"] = [
                {"line": i + 1, "translation": hypotheses[i]}
                for i in range(0, len(pairs), step)
            ][: options.samples]
    return found


def command_of(settings: dict) -> str:
    """The command that begins a run with these options, and where it is kept."""
    parts = ["transformer18", "train"]
    for name, value in settings.items():
        option = "--" + name.replace("_", "-")
        for one in value if isinstance(value, list) else [value]:
            parts += [option] if one is True else [option, str(one)]
    return shlex.join(parts)


def record(options) -> dict:
    """All that is kept of a run."""
    story = read_json(options.run / "run.json")
    if "best" not in story:
        sys.exit(f"{options.run} has not come to its end: resume it first")
    records = read_metrics(options.run)
    translator = Translator.load(options.run)
    if settings := story.pop("settings", None):  # else not begun by the command
        story["command"] = command_of(settings)
    return {
        "name": options.name,
        "recorded": datetime.now(UTC).isoformat(timespec="seconds"),
        "recorded_by": shlex.join(["python", "benchmarks/record.py", *sys.argv[1:]]),
        **story,
        "parameters": count_parameters(translator.model),
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
    parser.add_argument("--also-alpha", type=float, action="append", default=[],
                        help="scored as well, for comparison")
    parser.add_argument("--tokenize", default="13a", help="of BLEU, as published numbers have it")
    parser.add_argument("--samples", type=int, default=20)
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
