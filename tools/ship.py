#!/usr/bin/env python3
"""Put a finished run into the package, its weights in 16 bits.

    python tools/ship.py runs/NAME tiny

The folder `src/transformer18/pretrained/tiny` gets the weights, the tokenizer,
and the files that say how they came about, `run.json` and `metrics.jsonl`. Its
model card, `README.md`, is written by hand; a test compares its numbers with
those that `benchmarks/record.py` has measured on the folder.
"""

import argparse
import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

from transformer18.checkpoint import save_checkpoint
from transformer18.runs import read_json, save_words, write_json
from transformer18.translator import PRETRAINED, Translator


def ship(run: Path, folder: Path) -> None:
    """Write what a translator needs, and how it was made."""
    story = read_json(run / "run.json")
    if "best" not in story:
        sys.exit(f"{run} has not come to its end: resume it first")
    translator = Translator.load(run)
    folder.mkdir(parents=True, exist_ok=True)
    notes = translator.notes
    save_checkpoint(translator.model.half(), folder / "model.safetensors", **notes)
    save_words(translator.tokenizer, folder)
    write_json(folder / "run.json", story)
    shutil.copyfile(run / "metrics.jsonl", folder / "metrics.jsonl")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("run", type=Path, help="the folder of a finished run")
    parser.add_argument("name", help="of the folder in src/transformer18/pretrained")
    parser.add_argument("--into", type=Path, default=PRETRAINED)
    options = parser.parse_args()
    ship(options.run, options.into / options.name)


if __name__ == "__main__":
    main()
