#!/usr/bin/env python3
"""Does the input keep up with the training?

    python benchmarks/pipeline.py train.en train.de    (or one TSV; .gz too)

Three rates on one corpus, in one run on a quiet machine: sentences a second
through the tokenizer, raw text to ids; target tokens a second through planning,
padding and prefetching alone; and target tokens a second of training `tiny` in
bfloat16 on all cores. Results go to benchmarks/results/pipeline.json.
"""

import argparse
import os
import platform
import shlex
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

import torch

from transformer18.batching import PackedPairs, prefetch, token_batches
from transformer18.build import make_transformer
from transformer18.config import TransformerConfig
from transformer18.corpus import read_corpus
from transformer18.runs import write_json
from transformer18.tokenizer import train_tokenizer
from transformer18.training import Recipe, Updater

OUT = ROOT / "benchmarks" / "results" / "pipeline.json"
MAX_TOKENS = 4096


def encoding(tokenizer, sentences) -> float:
    """Sentences a second, one at a time."""
    began = time.perf_counter()
    for sentence in sentences:
        tokenizer.encode(sentence)
    return len(sentences) / (time.perf_counter() - began)


def feeding(pairs: PackedPairs, epoch: int) -> float:
    """Target tokens a second of an epoch that nobody learns from."""
    began, tokens = time.perf_counter(), 0
    batches = token_batches(pairs, max_tokens=MAX_TOKENS, seed=0, epoch=epoch)
    for batch in prefetch(batches):
        tokens += batch.n_tokens
    return tokens / (time.perf_counter() - began)


def training(updater: Updater, batches, first: int) -> float:
    """Target tokens a second of some updates."""
    began, tokens = time.perf_counter(), 0
    for step, batch in enumerate(batches, start=first):
        updater(step, [batch])
        tokens += batch.n_tokens
    return tokens / (time.perf_counter() - began)


def measure(files, rounds: int, updates: int) -> dict:
    """Medians of a few rounds, in which the three take turns."""
    pairs = read_corpus(*files).pairs
    text = [side for pair in pairs for side in pair]
    tokenizer = train_tokenizer(text, min(10_000, 300 + len(text) // 4), exact=False)
    encode = tokenizer.encode
    packed = PackedPairs((encode(source), encode(target)) for source, target in pairs)
    batches = token_batches(packed, max_tokens=MAX_TOKENS, seed=0)
    labels = sum(batch.labels.numel() for batch in batches)
    sources = sum(batch.src_ids.numel() for batch in batches)
    torch.manual_seed(0)
    model = make_transformer(TransformerConfig.preset("tiny", len(tokenizer)))
    updater = Updater(model, Recipe(precision="bfloat16"))
    training(updater, batches[:2], 1)  # warms up
    found = {"sentences": [], "input": [], "training": []}
    for turn in range(rounds):
        found["sentences"].append(encoding(tokenizer, text[:20_000]))
        found["input"].append(feeding(packed, turn))
        first = 2 + turn * updates
        found["training"].append(training(updater, batches[first : first + updates], first))
    rates = {name: round(median(values)) for name, values in found.items()}
    return {
        "pairs": len(pairs),
        "vocabulary": len(tokenizer),
        "sentences_encoded_a_second": rates["sentences"],
        "input_tokens_a_second": rates["input"],
        "training_tokens_a_second": rates["training"],
        "input_over_training": round(rates["input"] / rates["training"], 1),
        "padding": {
            "source": round(1 - int(packed.src.lengths.sum()) / sources, 4),
            "target": round(1 - int(packed.tgt.lengths.sum()) / labels, 4),
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("files", nargs="+", help="sentence pairs: two files, or one TSV")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--updates", type=int, default=10, help="of training, a round")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    if len(options.files) > 2:
        parser.error("give one or two files")
    about = {
        "command": shlex.join(["python", "benchmarks/pipeline.py", *sys.argv[1:]]),
        "date": datetime.now(UTC).date().isoformat(),
        "hardware": f"{os.cpu_count()} CPU cores, {torch.get_num_threads()} threads, no GPU",
        "load": round(os.getloadavg()[0], 2),
        "python": platform.python_version(), "torch": torch.__version__,
        "max_tokens": MAX_TOKENS,
    }  # fmt: skip
    found = {"about": about, **measure(options.files, options.rounds, options.updates)}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    write_json(options.out, found)
    for name, value in found.items():
        print(f"{name}: {value}")


if __name__ == "__main__":
    main()
