#!/usr/bin/env python3
"""What a recurrence can do, and what it takes (chapter 2).

    python benchmarks/recurrence.py            all runs that are not there yet
    python benchmarks/recurrence.py --list     name them, run nothing
    python benchmarks/recurrence.py --out other.json

Seven studies; those that train have three seeds:

    clauses  the GRU baseline and the Transformer `mini`, of the same size,
             on mini German with subordinate clauses, both with and without
             label smoothing; and the GRU with its attention switched off
    joined   both on one to four sentences in a row, judged on one to six;
             and what is left of the first word in the GRU's encoder
    single   the GRU on the sentences of `joined`, one at a time; what is
             left of the first word in the same long texts
    first    steps until a layer has learnt to name the first of S tokens:
             GRU and LSTM as they come, both with gates that keep 95 % at
             first, and self-attention
    layer    what a GRU layer and a self-attention layer of the same width
             take, forward and backward, by length and width, for one
             sequence
    batch    the same for 32 sequences at once
    write    what one more token takes after so many

A seed settles the sentences, the initial weights, the order of batches and
dropout. What is timed takes one turn per round, in an order that moves on by
one from round to round; kept are CPU seconds of one thread, the median of the
rounds, the lowest and the highest, and the load of the machine. Results go to
benchmarks/results/recurrence.json, which is written after every run, all of
it or none of it; started again, the script goes on with what is missing. All
runs take about fifteen minutes on one core. The load is what the machine has
to do besides: time where nothing else runs. To time anew, remove the runs
`layer/`, `batch/` and `write/` from the file, or give --out another one.
"""

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks import ablation
from benchmarks.ablation import FACTORS, GRU_WIDTH, MAX_TOKENS, SEEDS
from benchmarks.attention_times import cpu_seconds
from benchmarks.measuring import load
from transformer18.ablation import learning_curve
from transformer18.build import make_transformer
from transformer18.config import TransformerConfig, count_parameters
from transformer18.masking import KeyValueCache
from transformer18.mini_german import split
from transformer18.multi_head import MultiHeadAttention
from transformer18.rnn import GRUDecoder, GRUSeq2Seq
from transformer18.runs import MINI_RECIPE, Task, judge, mini_german_task
from transformer18.vocabulary import Vocabulary

OUT = ROOT / "benchmarks" / "results" / "recurrence.json"
STEPS = {"clauses": 400, "joined": 1000, "single": 1000}  # updates, by study
EVAL_EVERY = 100
LEARNT, JUDGED = (1, 2, 3, 4), (1, 2, 3, 4, 5, 6)  # sentences in a row
N_TRAIN, N_DEV = 12_000, 100  # texts in all, and texts of each kind
FADING = (2, 4, 8, 16, 24, 32, 48)  # words of the texts that are read
BLIND, PLAIN = "GRU, no attention", ", no smoothing"
MODELS = {
    "clauses": ("GRU", "Transformer", BLIND, "GRU" + PLAIN, "Transformer" + PLAIN),
    "joined": ("GRU", "Transformer"),
    "single": ("GRU",),
}
KINDS = ("GRU", "GRU, gate 3", "LSTM", "LSTM, gate 3", "attention")
GATE = 3.0  # keeps 95 % of the state at every step, at first
DISTANCES, LIMIT = (8, 16, 32, 64), 500  # tokens; steps at most
LENGTHS = tuple(2**n for n in range(3, 12))  # 8 … 2048
SOME = (8, 64, 512, 2048, 8192)  # at the smaller width
BATCH, BATCHED = 32, (8, 64)  # sequences at once, and their lengths
NARROW, WIDE, HEADS = 64, 256, 4
ROUNDS = 7  # two for more than 2,048 tokens; one more round warms up


@dataclass(frozen=True)
class Run:
    """One training, or one comparison of times."""

    study: str
    what: str  # the model, or what is varied
    size: int  # seed; tokens for what is timed
    length: int = 0  # tokens of the study `first`

    @property
    def name(self) -> str:
        tail = f"/{self.length}" if self.length else ""
        return f"{self.study}/{self.what}/{self.size}{tail}"


def all_runs() -> Iterator[Run]:
    """Every run, seed by seed, so that a file cut short is of use."""
    for seed in SEEDS:
        for study, models in MODELS.items():
            for model in models:
                yield Run(study, model, seed)
        for S in DISTANCES:
            for kind in KINDS:
                yield Run("first", kind, seed, S)
    for n in LENGTHS:
        yield Run("layer", f"width {WIDE}", n)
        yield Run("write", f"width {WIDE}", n)
    for n in SOME:
        yield Run("layer", f"width {NARROW}", n)
    for width in (NARROW, WIDE):
        for n in BATCHED:
            yield Run("batch", f"width {width}", n)


@cache
def joined_task(seed: int, n_train: int = N_TRAIN) -> tuple[Task, dict]:
    """Texts of one to four sentences; for dev, by number of sentences.

    Every sentence stands in one text only.
    """
    n = n_train * sum(LEARNT) // len(LEARNT)
    sentences, held_out, _ = split(n, N_DEV * sum(JUDGED), 0, seed)

    def texts(pairs, counts):
        pairs = iter(pairs)
        for k in counts:
            some = [next(pairs) for _ in range(k)]
            yield tuple(" , ".join(side) for side in zip(*some, strict=True))

    train = list(texts(sentences, LEARNT * (n_train // len(LEARNT))))
    counts = [k for k in JUDGED for _ in range(N_DEV)]
    dev = {k: [] for k in JUDGED}
    for k, text in zip(counts, texts(held_out, counts), strict=True):
        dev[k].append(text)
    words = Vocabulary.build(text for pair in train for text in pair)
    mixed = [text for k in LEARNT for text in dev[k][: N_DEV // 2]]
    return Task(train, mixed, words), dev


class Blind(GRUDecoder):
    """Knows of the source its first state, and nothing else."""

    def forward(self, x, memory, mask, state):
        return super().forward(x, 0 * memory, mask, state)


def make_model(kind: str, vocab_size: int) -> nn.Module:
    """GRU baseline or Transformer, of about the same size."""
    if kind.startswith("GRU"):
        model = GRUSeq2Seq(vocab_size, d_model=GRU_WIDTH)
        if kind == BLIND:
            model.decoder = Blind(GRU_WIDTH)
        return model
    return make_transformer(TransformerConfig.preset("mini", vocab_size))


def exact(model: nn.Module, task: Task, pairs: list) -> float:
    """Share of texts that are translated without a fault."""
    if isinstance(model, GRUSeq2Seq):
        return ablation.gru_exact(model, replace(task, dev=pairs))
    return judge(model, task, pairs)


def slopes(gru: nn.GRU, x: torch.Tensor) -> torch.Tensor:
    """|∂ last state / ∂ xⱼ| for x (S, D): (S,). One backward pass."""
    D = gru.hidden_size
    leaf = x.detach().expand(D, *x.shape).clone().requires_grad_()
    last = gru(leaf)[0][:, -1]  # (D, D): the same row D times
    (slope,) = torch.autograd.grad(last.diagonal().sum(), leaf)
    return slope.square().sum(dim=(0, 2)).sqrt()


def left_of_first(model: GRUSeq2Seq, texts: list[list[int]]) -> list[float]:
    """First word against last, in the forward encoder; median of texts."""
    found = []
    for n in FADING:
        ratios = []
        for ids in texts:
            x = model.src_embedding(torch.tensor(ids[:n]))
            row = slopes(model.encoder.ahead, x)
            ratios.append((row[0] / row[-1]).item())
        found.append(median(ratios))
    return found


def train_translator(run: Run, steps: int | None = None) -> dict:
    seed = run.size
    if run.study == "clauses":
        task, _ = mini_german_task(seed, clauses=True)
        task = replace(task, dev=task.dev[: ablation.N_DEV])
        by_number = {1: task.dev}
    else:
        task, by_number = joined_task(seed)
    if run.study == "single":
        commas = [[side.split(" , ") for side in pair] for pair in task.train]
        alone = [pair for sides in commas for pair in zip(*sides, strict=True)]
        task = replace(task, train=alone)
    torch.manual_seed(seed)
    model, found = make_model(run.what, len(task.tokenizer)), {}
    if run.study != "clauses":
        some = [ids for ids, _ in task.ids(by_number[6]) if len(ids) >= max(FADING)][:20]
    if run.study != "clauses" and run.what == "GRU":
        found["left_before"] = left_of_first(model.eval(), some)
    recipe = replace(
        MINI_RECIPE, steps=steps or STEPS[run.study], eval_every=EVAL_EVERY, stop_at=2.0,
        factor=FACTORS["GRU" if run.what.startswith("GRU") else "Transformer"],
        smoothing=0.0 if run.what.endswith(PLAIN) else MINI_RECIPE.smoothing,
    )  # fmt: skip
    began = time.process_time()
    by_loss = replace(task, metric="negative loss")
    history = learning_curve(  # exact match, which is slow, in the end only
        model, task, recipe, seed=seed, max_tokens=MAX_TOKENS,
        evaluate=lambda model: judge(model, by_loss, task.dev),
    )  # fmt: skip
    found["cpu_seconds"] = round(time.process_time() - began, 1)
    found |= {"parameters": count_parameters(model)}
    found["dev_loss"] = [round(record["dev_loss"], 4) for record in history]
    found["judged"] = [
        {
            "sentences": k,
            "words": round(sum(len(s.split()) for s, _ in texts) / len(texts), 1),
            "loss": round(-judge(model, by_loss, texts), 4),
            "exact": round(exact(model, task, texts), 4),
        }
        for k, texts in by_number.items()
    ]
    if "left_before" in found:
        found |= {"left_after": left_of_first(model.eval(), some), "texts": len(some)}
    return found


class Reader(nn.Module):
    """A recurrence; its gates may begin by keeping nearly everything."""

    def __init__(self, kind: str, D: int):
        super().__init__()
        self.rnn = (nn.GRU if kind.startswith("GRU") else nn.LSTM)(D, D, batch_first=True)
        if "gate" in kind:  # the second block of rows: update, or forget
            with torch.no_grad():
                bias, _ = self.rnn.bias_ih_l0, self.rnn.bias_hh_l0.zero_()
                bias[D : 2 * D] = GATE

    def forward(self, x):
        return self.rnn(x)[0]


class Looker(nn.MultiheadAttention):
    def forward(self, x):
        return super().forward(x, x, x, need_weights=False)[0]


def make_layer(kind: str, D: int) -> nn.Module:
    """(B, S, D) -> (B, S, D)."""
    if kind == "attention":
        return Looker(D, HEADS, bias=False, batch_first=True)
    return Reader(kind, D)


def draw(n: int, S: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Sequences (n, S): one of 8 signals first, then noise."""
    ids = torch.randint(8, 16, (n, S))
    ids[:, 0] = torch.randint(0, 8, (n,))
    return ids, ids[:, 0]


def learn_first(run: Run, D: int = 32, limit: int = LIMIT) -> dict:
    """Steps until 99 % are right; `limit` where they never are."""
    torch.manual_seed(run.size)
    model = nn.Sequential(nn.Embedding(16, D), make_layer(run.what, D), nn.Linear(D, 8))
    adam = torch.optim.Adam(model.parameters(), lr=0.01)
    began, right = time.process_time(), 0.0
    for step in range(1, limit + 1):
        ids, signal = draw(64, run.length)
        F.cross_entropy(model(ids)[:, -1], signal).backward()
        adam.step()
        adam.zero_grad()
        if step % 25 == 0:
            with torch.no_grad():
                ids, signal = draw(256, run.length)
                right = (model(ids)[:, -1].argmax(1) == signal).float().mean().item()
            if right >= 0.99:
                break
    return {
        "steps": step,
        "right": round(right, 4),
        "cpu_seconds": round(time.process_time() - began, 1),
    }


def layer_turns(n: int, D: int, B: int = 1) -> dict[str, Callable]:
    """Sequences of n vectors through a layer and back."""
    torch.manual_seed(0)
    x = torch.randn(B, n, D, requires_grad=True)
    layers = {name: make_layer(name, D) for name in ("GRU", "attention")}
    return {name: lambda layer=layer: layer(x).sum().backward() for name, layer in layers.items()}


def write_turns(n: int, D: int) -> dict[str, Callable]:
    """The next vector after n of them, each way with what it has kept."""
    torch.manual_seed(0)
    gru, attention = nn.GRU(D, D, batch_first=True), MultiHeadAttention(D, HEADS)
    x, state = torch.randn(1, 1, D), torch.zeros(1, 1, D)
    store = KeyValueCache(n + 1)
    past = torch.randn(1, n, D)
    with torch.no_grad():
        attention(past, past, past, cache=store)

    @torch.no_grad()
    def step():
        gru(x, state)

    @torch.no_grad()
    def look():
        store.length = n  # so that every turn writes the same token
        attention(x, x, x, cache=store)

    return {"GRU": step, "attention": look}


def measure_time(run: Run) -> dict:
    began, before = time.process_time(), load()
    width = int(run.what.removeprefix("width "))
    if run.study == "layer":
        turns, repeats = layer_turns(run.size, width), max(1, 256 // run.size)
    elif run.study == "batch":
        turns, repeats = layer_turns(run.size, width, BATCH), max(1, 64 // run.size)
    else:
        turns, repeats = write_turns(run.size, width), 20
    rounds = 2 if run.size > LENGTHS[-1] else ROUNDS
    return {
        "seconds": cpu_seconds(turns, rounds, repeats),
        "load": [before, load()],
        "cpu_seconds": round(time.process_time() - began, 1),
    }


def train(run: Run) -> dict:
    """What is kept of one run."""
    do = dict.fromkeys(MODELS, train_translator) | {"first": learn_first}
    return asdict(run) | do.get(run.study, measure_time)(run)


def told(found: dict) -> str:
    """How a run ended, in words."""
    if "seconds" in found:
        ms = {name: f"{1000 * times[0]:.3f} ms" for name, times in found["seconds"].items()}
        return ", ".join(f"{name} {time}" for name, time in ms.items())
    if "steps" in found:
        return f"{found['right']:.2f} right after {found['steps']} steps"
    return ", ".join(f"{one['sentences']}: {one['exact']:.2f}" for one in found["judged"])


def about() -> dict:
    """What someone needs to make the file again."""
    return ablation.about(
        "recurrence", steps=STEPS, eval_every=EVAL_EVERY,
        factors={who: FACTORS[who] for who in MODELS["joined"]},
        gru_width=GRU_WIDTH, n_train=N_TRAIN, n_dev=N_DEV, fading=FADING, limit=LIMIT,
        gate=GATE, heads=HEADS, rounds=ROUNDS, batch=BATCH,
    )  # fmt: skip


def main() -> None:
    ablation.run_all(__doc__, OUT, about, all_runs(), train, told=told)


if __name__ == "__main__":
    main()
