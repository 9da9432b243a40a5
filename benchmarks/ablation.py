#!/usr/bin/env python3
"""What each part of the Transformer is worth (chapter 18).

    python benchmarks/ablation.py            all runs that are not there yet
    python benchmarks/ablation.py --list     name them, run nothing
    python benchmarks/ablation.py --only depth --out other.json

Five studies, three seeds each:

    plain    every ablation on mini German
    clauses  every ablation on mini German with subordinate clauses
    depth    the norms with six blocks on each side, and no residual
    large    the same norms, attention's initial weights Xavier's for each
             matrix by itself: larger by 1.4 (Q, K, V) and 1.7 (output)
    data     Transformer and GRU on more and more sentence pairs; the GRU as
             chapter 2 has it, and with the Transformer's one token table

A seed settles the sentences, the initial weights, the order of batches and
dropout. Results go to benchmarks/results/ablation.json, which is written
after every run, all of it or none of it; started again, the script goes on
with what is missing. All runs take about an hour on one core.
"""

import argparse
import hashlib
import json
import os
import platform
import shlex
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

import torch

from transformer18.ablation import ablations, learning_curve
from transformer18.batching import make_batch
from transformer18.build import make_transformer
from transformer18.config import TransformerConfig, count_parameters
from transformer18.decoder import exact_match, greedy
from transformer18.multi_head import MultiHeadAttention
from transformer18.rnn import GRUSeq2Seq
from transformer18.runs import MINI_RECIPE, Task, mini_german_task
from transformer18.training import Recipe
from transformer18.vocabulary import write_atomically

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "benchmarks" / "results" / "ablation.json"
SEEDS = (0, 1, 2)
MAX_TOKENS = 512  # source tokens a batch, and target tokens
N_DEV = 200  # sentences that a model is judged by
SIZES = (125, 250, 500, 1000, 2000, 4000, 8000, 12_000)  # pairs, in `data`
# Times the paper's learning rate: for each the best of 0.3, 0.6 and 1.2,
# tried on seed 0 with 2,000 pairs and 500 steps.
FACTORS = {"Transformer": 0.6, "GRU": 0.6, "GRU, tied": 0.6}
GRU_WIDTH = 76  # gives about the number of parameters of `mini`
GRU_WIDTHS = {"GRU": GRU_WIDTH, "GRU, tied": 80}
KEPT = ("step", "nll", "dev_loss", "metric")  # of every record


@dataclass(frozen=True)
class Run:
    """One training: which study, which model, on which task, how long."""

    study: str
    model: str  # what is taken out, or the kind of the whole model
    seed: int
    steps: int
    eval_every: int
    clauses: bool = False
    n_layers: int = 2
    n_train: int = 12_000
    factor: float = MINI_RECIPE.factor
    stop_at: float = 2.0  # exact match; this one is never reached

    @property
    def name(self) -> str:
        return f"{self.study}/{self.model}/{self.n_train}/{self.seed}"


def all_runs() -> Iterator[Run]:
    """Every run, seed by seed, so that a file cut short is of use."""
    for seed in SEEDS:
        for model in ablations():
            yield Run("plain", model, seed, 600, 50, stop_at=0.9)
        for model in ablations():
            yield Run("clauses", model, seed, 1500, 100, clauses=True)
        for model in ("nothing", "pre-norm", "norm", "norm and feed-forward", "residual"):
            yield Run("depth", model, seed, 200, 50, n_layers=6)
        for model in ("nothing", "pre-norm", "norm"):
            yield Run("large", model, seed, 200, 50, n_layers=6)
        for n_train in SIZES:
            for model, factor in FACTORS.items():
                yield Run(
                    "data", model, seed, 1000, 100,
                    n_train=n_train, factor=factor, stop_at=0.99,
                )


@cache
def task_of(seed: int, clauses: bool) -> Task:
    task, _ = mini_german_task(seed, clauses)
    return replace(task, dev=task.dev[:N_DEV])


def fingerprint() -> str:
    """Changes when the sentences do."""
    known = json.dumps(task_of(0, True).train[:1000])
    return hashlib.sha256(known.encode()).hexdigest()[:12]


def same_task(about: dict) -> bool:
    """Were results made from these sentences, learnt in this way?"""
    same_recipe = Recipe(**about["recipe"]) == MINI_RECIPE
    return same_recipe and about["task"] == fingerprint()


def experiment(notebook: str, **names) -> dict:
    """What the cells of a chapter tagged `experiment` define, run with these
    names at hand; of the solution of an exercise, its Python."""
    path = ROOT / "book" / f"{notebook}.ipynb"
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        if "experiment" in cell["metadata"].get("tags", []):
            source = "".join(cell["source"])
            if cell["cell_type"] == "markdown":
                source = source.split("```python\n")[1].split("```")[0]
            exec(compile(source, str(path), "exec"), names)
    return names


def gru_exact(model: GRUSeq2Seq, task: Task) -> float:
    """`judge` for a model that is no Transformer."""
    model.eval()
    sources, targets = zip(*task.dev, strict=True)
    encode, decode = task.tokenizer.encode, task.tokenizer.decode
    src_ids = make_batch([(encode(source), []) for source in sources]).src_ids
    with torch.no_grad():
        rows = greedy(
            model.next_token(src_ids), len(src_ids), src_ids.size(1) + 50
        )
    return exact_match([decode(row) for row in rows.tolist()], list(targets))


def tie(model: GRUSeq2Seq) -> None:
    """One token table, begun at 1 / sqrt(D), as the Transformer has it."""
    torch.nn.init.normal_(model.src_embedding.weight, std=model.config.d_model**-0.5)
    model.output.weight = model.src_embedding.weight


def enlarge(model: torch.nn.Module) -> None:
    """Begin attention with Xavier's weights, matrix by matrix."""
    for part in model.modules():
        if isinstance(part, MultiHeadAttention):
            for matrix in (*part.projections.weight, part.output.weight):
                torch.nn.init.xavier_uniform_(matrix)


def train(run: Run) -> dict:
    """What is kept of one run."""
    task = task_of(run.seed, run.clauses)
    task = replace(task, train=task.train[: run.n_train])
    vocab_size, evaluate = len(task.tokenizer), None
    torch.manual_seed(run.seed)
    if run.model in GRU_WIDTHS:
        model = GRUSeq2Seq(vocab_size, d_model=GRU_WIDTHS[run.model])
        if run.model == "GRU, tied":
            tie(model)

        def evaluate(model):
            return gru_exact(model, task)
    else:
        config = TransformerConfig.preset(
            "mini", vocab_size, n_layers=run.n_layers, norm_first=run.model == "pre-norm"
        )
        whole = run.model in ("Transformer", "pre-norm")
        model = make_transformer(config, None if whole else ablations()[run.model])
    if run.study == "large":
        enlarge(model)
    recipe = replace(
        MINI_RECIPE, steps=run.steps, eval_every=run.eval_every,
        stop_at=run.stop_at, factor=run.factor,
    )
    began = time.process_time()
    history = learning_curve(
        model, task, recipe, seed=run.seed, max_tokens=MAX_TOKENS, evaluate=evaluate
    )
    return {
        **asdict(run),
        "parameters": count_parameters(model),
        "cpu_seconds": round(time.process_time() - began, 1),
        "history": kept(history),
    }


def write(path: Path, results: dict) -> None:
    """All of it or none of it, a run a line."""
    head = json.dumps(results["about"], indent=1)
    lines = [f"{json.dumps(name)}: {json.dumps(run)}" for name, run in results["runs"].items()]
    runs = ",\n".join(lines)
    text = f'{{"about": {head},\n"runs": {{\n{runs}\n}}}}\n'
    write_atomically(path, text.encode())


def kept(history: list[dict]) -> list[dict]:
    """The records of a learning curve as they are stored."""
    return [{name: round(record[name], 4) for name in KEPT} for record in history]


def about(script: str = "ablation", **more) -> dict:
    """What someone needs to make the file again."""
    return {
        "command": shlex.join(["python", f"benchmarks/{script}.py"]),
        "date": datetime.now(UTC).date().isoformat(),
        "hardware": f"{os.cpu_count()} CPU cores, one thread, no GPU",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "seeds": list(SEEDS),
        "task": fingerprint(),
        "max_tokens": MAX_TOKENS,
        "n_dev": N_DEV,
        "recipe": asdict(MINI_RECIPE),
        **more,
    }


def load(path: Path, about=about, same=same_task) -> dict:
    """The results so far. Exits where they are of another task."""
    if not path.exists():
        return {"about": about(), "runs": {}}
    results = json.loads(path.read_text(encoding="utf-8"))
    if not same(results["about"]):
        sys.exit(f"{path} was made with other sentences or another recipe: remove it")
    return results


def told(found: dict) -> str:
    """How a run ended, in words."""
    last = found["history"][-1]
    return f"dev loss {last['dev_loss']:.3f}, exact {last['metric']:.3f} at step {last['step']}"


def check_settings(run, stored: dict) -> None:
    """Exit where a stored run of this name was made with other settings."""
    for name, value in asdict(run).items():
        if stored.get(name, value) != value:
            sys.exit(
                f"the stored {run.name} was made with {name} {stored[name]!r}, not "
                f"{value!r}: remove it from the file to train it again"
            )


def do_missing(runs, train, results: dict, options, told=told) -> None:
    """Train what the results lack; write them after every run."""
    runs = list(runs)
    for run in runs:
        check_settings(run, results["runs"].get(run.name, {}))
    missing = [run for run in runs if run.name not in results["runs"]]
    if options.list:
        print(*(run.name for run in missing), sep="\n")
        return
    options.out.parent.mkdir(parents=True, exist_ok=True)
    for number, run in enumerate(missing, start=1):
        found = train(run)
        results["runs"][run.name] = found
        results["about"] |= {"date": datetime.now(UTC).date().isoformat()}
        write(options.out, results)
        print(
            f"{number}/{len(missing)} {run.name}: {told(found)}, {found['cpu_seconds']:.0f} s",
            flush=True,
        )


def run_all(doc: str, out: Path, about, runs, train, told=told, same=same_task) -> None:
    """The command line of a study like this one: --out and --list."""
    parser = argparse.ArgumentParser(description=doc.split("\n")[0])
    parser.add_argument("--out", type=Path, default=out, help="the result file")
    parser.add_argument("--list", action="store_true", help="run nothing")
    options = parser.parse_args()
    torch.set_num_threads(1)
    do_missing(runs, train, load(options.out, about, same), options, told)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=OUT, help="the result file")
    studies = list(dict.fromkeys(run.study for run in all_runs()))
    parser.add_argument("--only", choices=studies, help="one study")
    parser.add_argument("--list", action="store_true", help="run nothing")
    options = parser.parse_args()
    torch.set_num_threads(1)
    runs = [run for run in all_runs() if options.only in (None, run.study)]
    do_missing(runs, train, load(options.out), options)


if __name__ == "__main__":
    main()
