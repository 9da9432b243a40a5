#!/usr/bin/env python3
"""What a decoder does after its own first mistake (chapter 5).

    python benchmarks/exposure.py            all runs that are not there yet
    python benchmarks/exposure.py --list     name them, run nothing
    python benchmarks/exposure.py --out other.json

The model `mini` on mini German with subordinate clauses, three seeds each,
with three kinds of input to the decoder in training:

    right      the right beginning only (teacher forcing)
    noise      one word in ten replaced by another one
    own words  more and more of them replaced by what the model would have
               said there itself (scheduled sampling)

Each model is looked at after 250, 500 and 1000 steps, on 500 unseen
sentences: what it says given the right beginning, and given its own. The
last two are made by cells of chapter 5 (tag `experiment`; `own words` by the
solution of its exercise 5.4), run from there.

A seed settles the sentences, the initial weights, the order of batches,
dropout and noise. Results go to benchmarks/results/exposure.json, which is
written after every run, all of it or none of it; started again, the script
goes on with what is missing. All runs take about six minutes on one core.
"""

import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

import torch
from torch import Tensor

from benchmarks import ablation
from benchmarks.ablation import MAX_TOKENS, SEEDS
from transformer18.ablation import learning_curve
from transformer18.batching import Batch, make_batch
from transformer18.build import book_parts
from transformer18.config import TransformerConfig
from transformer18.decoder import shift_right
from transformer18.incremental import greedy_search
from transformer18.runs import MINI_RECIPE, Task, mini_german_task
from transformer18.transformer import Transformer
from transformer18.vocabulary import END, PAD, UNKNOWN

OUT = ROOT / "benchmarks" / "results" / "exposure.json"
LOOKS = (250, 500, 1000)  # steps
EVERY = 250
N_DEV = 500  # sentences that a model is judged by
PLACES = 20  # positions of the target that are counted one by one
AFTER = 8  # positions after a mistake that are counted one by one
SAMPLES = 5  # sentences with a mistake that are kept word by word


@cache
def chapter() -> dict:
    """What the cells of chapter 5 tagged `experiment` define."""
    names = {"Transformer": Transformer, "UNKNOWN": UNKNOWN, "shift_right": shift_right}
    return ablation.experiment("05_decoder", torch=torch, **names)


@dataclass(frozen=True)
class Run:
    """One training: the decoder's input, and the seed."""

    way: str
    seed: int

    @property
    def name(self) -> str:
        return f"{self.way}/{self.seed}"


def all_runs() -> Iterator[Run]:
    """Every run, seed by seed, so that a file cut short is of use."""
    for seed in SEEDS:
        for way in ("right", "noise", "own words"):
            yield Run(way, seed)


def model_of(way: str) -> type[Transformer]:
    """The class whose training has this input."""
    if way == "right":
        return Transformer
    return chapter()[{"noise": "Noisy", "own words": "Scheduled"}[way]]


@torch.no_grad()
def says(model, batch: Batch, tgt_ids: Tensor) -> Tensor:
    """The likeliest next token at each place, given these inputs (B, T)."""
    return model(batch.src_ids, tgt_ids).argmax(dim=-1)


def own_words(model, batch: Batch) -> Tensor:
    """What it writes by itself, cut or filled up to the labels' width."""
    T = batch.labels.size(1)
    own = greedy_search(model, batch.src_ids, max_length=T)
    return torch.nn.functional.pad(own, (0, T - own.size(1)), value=PAD)


def distance(a: list[int], b: list[int]) -> int:
    """Fewest words to insert, leave out or replace (Levenshtein)."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, start=1):
        last, row[0] = row[0], i
        for j, y in enumerate(b, start=1):
            last, row[j] = row[j], min(last + (x != y), row[j] + 1, row[j - 1] + 1)
    return row[-1]


def words_of(row: Tensor) -> list[int]:
    """Ids up to `end`, that not included."""
    ids = row.tolist()
    return ids[: ids.index(END)] if END in ids else [i for i in ids if i != PAD]


def first_wrong(own: Tensor, labels: Tensor) -> Tensor:
    """The place of the first mistake of each sentence; T if there is none."""
    wrong = (own != labels) & (labels != PAD)
    places = torch.arange(labels.size(1)).expand_as(labels)
    return places.where(wrong, labels.size(1)).min(dim=1).values


def planted(model, batch: Batch, kind: str) -> dict:
    """One word of each beginning replaced by a wrong one, the rest right:
    right tokens at 1, 2, … places after it, with and without."""
    labels, clean = batch.labels, batch.tgt_ids
    generator = torch.Generator().manual_seed(0)
    lengths = (labels != PAD).sum(dim=1) - 1  # words
    at = (torch.rand(len(labels), generator=generator) * lengths).long()
    rows = torch.arange(len(labels))
    if kind == "likeliest":  # of the wrong ones, in the model's eyes
        with torch.no_grad():
            logits = model(batch.src_ids, clean)[rows, at]
        logits[:, : UNKNOWN + 1] = -torch.inf
        word = logits.scatter(1, labels[rows, at][:, None], -torch.inf).argmax(dim=-1)
    else:  # any other word of these sentences
        pool = labels[labels > UNKNOWN].unique()
        word = pool[torch.randint(len(pool), (len(labels),), generator=generator)]
        same = word == labels[rows, at]
        word[same] = pool[(torch.searchsorted(pool, word[same]) + 1) % len(pool)]
    changed = labels.clone()
    changed[rows, at] = word
    hits = {
        name: says(model, batch, ids) == labels
        for name, ids in (("without", clean), ("with", shift_right(changed)))
    }
    found: dict[str, list[int]] = {"n": [], "without": [], "with": []}
    for k in range(1, AFTER + 1):
        there = at + k < lengths + 1  # `end` counts
        i, j = rows[there], (at + k)[there]
        found["n"].append(int(there.sum()))
        for name, hit in hits.items():
            found[name].append(int(hit[i, j].sum()))
    return found


def look(model, task: Task) -> dict:
    """All that is counted of a model as it is now."""
    model.eval()
    batch = make_batch(task.ids(task.dev))
    labels = batch.labels
    real = labels != PAD
    right, own = says(model, batch, batch.tgt_ids), own_words(model, batch)
    first = first_wrong(own, labels)
    wrong = first < labels.size(1)
    assert torch.equal(first, first_wrong(right, labels))  # the same till then
    hits = {"right": (right == labels) & real, "own": (own == labels) & real}
    places = torch.arange(labels.size(1))
    after: dict[str, list[int]] = {"n": [], "right": [], "own": []}
    for k in range(1, AFTER + 1):
        there = (places == first[:, None] + k) & real
        after["n"].append(int(there.sum()))
        for name in hits:
            after[name].append(int(hits[name][there].sum()))
    rest = (places > first[:, None]) & real
    errors = [distance(words_of(a), words_of(b)) for a, b in zip(own, labels, strict=True)]
    return {
        "exact": round(1 - float(wrong.float().mean()), 4),
        "by_place": {
            "n": real.sum(dim=0)[:PLACES].tolist(),
            **{name: hit.sum(dim=0)[:PLACES].tolist() for name, hit in hits.items()},
        },
        # Places reached without a mistake, and how many went wrong.
        "before": {"n": int(((places <= first[:, None]) & real).sum()), "wrong": int(wrong.sum())},
        "rest": {"n": int(rest.sum()), **{k: int(hit[rest].sum()) for k, hit in hits.items()}},
        "after": after,
        # Of wrong sentences: words to mend, and wrong tokens on the right beginning.
        "mend": sum(errors),
        "wrong_on_right": int((real & ~hits["right"])[wrong].sum()),
        "planted": {kind: planted(model, batch, kind) for kind in ("likeliest", "any")},
    }


def samples(model, task: Task) -> list[dict]:
    """The first sentences that it gets wrong, word by word."""
    model.eval()
    batch = make_batch(task.ids(task.dev))
    right, own = says(model, batch, batch.tgt_ids), own_words(model, batch)
    words, kept = task.tokenizer.words, []
    for row in (first_wrong(own, batch.labels) < own.size(1)).nonzero().flatten().tolist():
        n = int((batch.labels[row] != PAD).sum())
        told = {
            name: [words[i] for i in ids[row].tolist()][:n]
            for name, ids in (("label", batch.labels), ("right", right))
        }
        mine = own[row].tolist()
        end = mine.index(END) + 1 if END in mine else len(mine)
        told |= {"source": task.dev[row][0], "own": [words[i] for i in mine[:end]]}
        kept.append(told)
    return kept[:SAMPLES]


def train(run: Run, looks=LOOKS, every: int = EVERY) -> dict:
    """What is kept of one run."""
    task, _ = mini_german_task(run.seed, clauses=True)
    task = replace(task, dev=task.dev[:N_DEV])
    recipe = replace(MINI_RECIPE, steps=looks[-1], eval_every=every, stop_at=2.0)
    config = TransformerConfig.preset("mini", len(task.tokenizer))
    torch.manual_seed(run.seed)
    model = model_of(run.way)(config, book_parts())
    found: dict = {"looks": {}, "samples": {}}
    steps = iter(range(every, looks[-1] + 1, every))

    def evaluate(model):
        step = next(steps)
        if step in looks:
            found["looks"][step] = look(model, task)
            if run.way == "right":
                found["samples"][step] = samples(model, task)
        return found["looks"].get(step, {"exact": 0.0})["exact"]

    began = time.process_time()
    history = learning_curve(
        model, task, recipe, seed=run.seed, max_tokens=MAX_TOKENS, evaluate=evaluate
    )
    for record in history:
        if record["step"] in looks:
            found["looks"][record["step"]]["dev_loss"] = round(record["dev_loss"], 4)
    return {
        **asdict(run),
        "cpu_seconds": round(time.process_time() - began, 1),
        **found,
    }


def told(found: dict) -> str:
    """How a run ended, in words."""
    last = list(found["looks"].values())[-1]
    return f"exact {last['exact']:.3f}, dev loss {last['dev_loss']:.3f}"


def about() -> dict:
    """What someone needs to make the file again."""
    changed = {"eval_every": EVERY, "stop_at": 2.0}  # in the recipe
    return ablation.about("exposure", looks=list(LOOKS), n_dev=N_DEV, changed=changed)


def main() -> None:
    ablation.run_all(__doc__, OUT, about, all_runs(), train, told)


if __name__ == "__main__":
    main()
