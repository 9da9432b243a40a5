import json
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import torch

from transformer18.batching import make_batch, token_batches
from transformer18.build import make_transformer
from transformer18.checkpoint import load_weights, save_checkpoint
from transformer18.config import TransformerConfig
from transformer18.decoder import exact_match
from transformer18.incremental import greedy_search
from transformer18.mini_german import split
from transformer18.tokenizer import (
    Tokenizer,
    load_tokenizer,
    save_tokenizer,
)
from transformer18.training import Recipe, fit, mean_loss
from transformer18.vocabulary import (
    Vocabulary,
    load_vocabulary,
    save_vocabulary,
    write_atomically,
)

Text = Sequence[tuple[str, str]]


# ---
@dataclass(frozen=True)
class Task:
    """What a model is to learn: sentence pairs and their tokenizer.

    metric  how it is judged on dev: "exact match" of translations, or
            "negative loss" per token, quicker for long sentences
    """

    train: Text
    dev: Text
    tokenizer: Vocabulary | Tokenizer
    metric: str = "exact match"

    def ids(self, pairs: Text) -> list[tuple[list[int], list[int]]]:
        encode = self.tokenizer.encode
        return [(encode(src), encode(tgt)) for src, tgt in pairs]


# ---
def translate_all(
    model, tokenizer, sentences: Sequence[str], batch_size: int = 256
) -> list[str]:
    """Greedy translations of sentences, in their order.

    Sentences of like length go together, so that little is padding.
    """
    device = next(model.parameters()).device
    ids = [tokenizer.encode(sentence) for sentence in sentences]
    order = sorted(range(len(ids)), key=lambda i: len(ids[i]))
    found = {}
    for first in range(0, len(order), batch_size):
        rows = order[first : first + batch_size]
        src_ids = make_batch([(ids[i], []) for i in rows]).src_ids
        tgt_ids = greedy_search(model, src_ids.to(device))
        for i, row in zip(rows, tgt_ids.tolist(), strict=True):
            found[i] = tokenizer.decode(row)
    return [found[i] for i in range(len(ids))]


# ---
def judge(
    model, task: Task, pairs: Text, max_tokens: int = 4096
) -> float:
    """The task's metric on sentence pairs; larger is better."""
    if task.metric == "negative loss":
        ids = task.ids(pairs)
        batches = token_batches(ids, max_tokens=max_tokens, seed=0)
        device = next(model.parameters()).device
        return -mean_loss(model, (batch.to(device) for batch in batches))
    sources, targets = zip(*pairs, strict=True)
    return exact_match(
        translate_all(model, task.tokenizer, sources), list(targets)
    )


# ---
MINI_RECIPE = Recipe(
    steps=1200, warmup=200, factor=0.5, clip=1.0, eval_every=100,
    stop_at=0.998,
)
MINI_TOKENS = 1024  # source tokens a batch, and target tokens


def mini_german_task(seed: int = 0, clauses: bool = False):
    """The book's running task and its 1,000 test pairs.

    12,000 pairs to learn from, 500 for dev, none of them in the test.
    """
    train, dev, test = split(12_000, 500, 1000, seed, clauses=clauses)
    words = Vocabulary.build(text for pair in train for text in pair)
    return Task(train, dev, words), test


# ---
def describe_run(config, recipe: Recipe, seed: int, **more) -> dict:
    """What someone needs to do the run again."""
    return {
        "config": asdict(config),
        "recipe": asdict(recipe),
        "seed": seed,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "torch": torch.__version__,
        "python": platform.python_version(),
        **more,
    }


# ---
def write_json(path: Path, content: dict) -> None:
    text = json.dumps(content, indent=2, ensure_ascii=False)
    write_atomically(path, (text + "\n").encode())


def save_words(tokenizer: Vocabulary | Tokenizer, folder: Path) -> None:
    """Store the tokenizer of a run; `load_words` finds it by its name."""
    if isinstance(tokenizer, Vocabulary):
        save_vocabulary(tokenizer, folder / "vocabulary.json")
    else:
        save_tokenizer(tokenizer, folder / "tokenizer.model")


def load_words(folder: str | Path) -> Vocabulary | Tokenizer:
    """The tokenizer of a run. Raises FileNotFoundError, ValueError."""
    pieces = Path(folder) / "tokenizer.model"
    if pieces.is_file():
        return load_tokenizer(pieces)
    return load_vocabulary(Path(folder) / "vocabulary.json")


# ---
class Keeper:
    """Stores a run as it goes: every record, and the best model."""

    def __init__(self, folder: Path, metric: str):
        self.folder, self.metric = folder, metric

    def __call__(self, model, record: dict) -> None:
        with open(self.folder / "metrics.jsonl", "a") as file:
            file.write(json.dumps(record) + "\n")
        if record["best"]:
            path = self.folder / "model.safetensors"
            save_checkpoint(model, path, **record, judged_by=self.metric)


# ---
def train_run(
    folder: str | Path, task: Task, config: TransformerConfig,
    recipe: Recipe, *, seed: int = 0, max_tokens: int = 4096,
    device="cpu", progress: bool = True, command: str = "",
):
    """Train a model on a task, store the run, return the best model.

    The folder gets `run.json` (how to do it again), the tokenizer,
    `metrics.jsonl` (a line per evaluation) and `model.safetensors`, the
    best model on dev so far. Raises ValueError if it holds a run already.
    """
    folder = Path(folder)
    if (folder / "run.json").exists():
        raise ValueError(f"{folder} already holds a run: give another")
    run = describe_run(
        config, recipe, seed, max_tokens=max_tokens, command=command
    )
    pairs = task.ids(task.train)

    def batches(epoch):
        return token_batches(
            pairs, max_tokens=max_tokens, seed=seed, epoch=epoch
        )

    next(batches(0), None)  # bad data shows before anything is written
    write_json(folder / "run.json", run)
    save_words(task.tokenizer, folder)
    torch.manual_seed(seed)
    model = make_transformer(config).to(device)
    fit(
        model, batches, recipe,
        evaluate=lambda model: judge(model, task, task.dev),
        on_record=Keeper(folder, task.metric),
        progress=progress,
    )
    notes = load_weights(model, folder / "model.safetensors")
    write_json(folder / "run.json", {**run, "best": notes})
    return model
