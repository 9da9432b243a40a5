import sys
from dataclasses import replace
from datetime import datetime
from importlib.resources import files
from pathlib import Path

import click
import torch

from transformer18.config import PRESETS, TransformerConfig
from transformer18.corpus import read_corpus, read_lines
from transformer18.evaluation import scores
from transformer18.runs import (
    MINI_RECIPE,
    MINI_TOKENS,
    Task,
    judge,
    mini_german_task,
    train_run,
)
from transformer18.tokenizer import train_tokenizer
from transformer18.training import Recipe
from transformer18.translator import Translator

RUNS = Path("runs")
SHIPPED = Path(str(files("transformer18") / "pretrained" / "mini"))


# ---
class OneLineErrors(click.Group):
    """Bad input ends in one line and exit code 1, without a traceback."""

    def invoke(self, ctx):
        try:
            return super().invoke(ctx)
        except (ValueError, OSError, FloatingPointError) as error:
            raise click.ClickException(str(error)) from error


@click.group(cls=OneLineErrors)
def main():
    """Train the Transformer of this book, and translate with it."""


# ---
def newest_run() -> Path:
    """The newest own run that has a model, else the shipped one."""
    own = [path.parent for path in RUNS.glob("*/model.safetensors")]
    if own:
        return max(own, key=lambda run: run.stat().st_mtime)
    return SHIPPED


def load(run: str | None) -> Translator:
    folder = Path(run) if run else newest_run()
    click.echo(f"model: {folder}", err=True)
    return Translator.load(folder)


def device() -> str:
    """The fastest device that is there."""
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


model_option = click.option(
    "--model", "run", metavar="FOLDER",
    help="Folder of a run; else the newest in runs/, or the shipped one.",
)
data_option = click.option(
    "--data", multiple=True, metavar="FILE",
    help="Sentence pairs: one file (source TAB target) or, given twice, "
    "one file for each language. Plain or .gz. Else mini German.",
)


# ---
def read_pairs(files):
    """A corpus from the files after --data or --dev."""
    if len(files) > 2:
        raise ValueError(
            f"{len(files)} files of sentence pairs: give one with both "
            "languages, or one for each"
        )
    return read_corpus(*files)


# ---
@main.command()
@click.argument("text", nargs=-1)
@click.option("--file", metavar="FILE", help="Translate each line of it.")
@model_option
def translate(text, file, run):
    """Translate TEXT, the lines of a file, or of standard input."""
    if text:
        sentences = [" ".join(text)]
    elif file:
        sentences = list(read_lines(file))
    else:
        sentences = sys.stdin.read().splitlines()
    if not sentences:
        raise ValueError("nothing to translate: give some text")
    for line in load(run).translate(sentences):
        click.echo(line)


# ---
@main.command()
@data_option
@model_option
def evaluate(data, run):
    """Score a model on sentence pairs it has not seen."""
    pairs = read_pairs(data).pairs if data else mini_german_task()[1]
    sources, targets = zip(*pairs, strict=True)
    hypotheses = load(run).translate(sources)
    click.echo(f"sentences: {len(pairs)}")
    for name, value in scores(hypotheses, targets).items():
        told = f"{value:.4g}" if isinstance(value, float) else value
        click.echo(f"{name}: {told}")


# ---
def text_task(data, dev, vocab_size) -> Task:
    """Any parallel text as a task, with byte-pair encoding.

    Without dev pairs every hundredth pair, at most 1,000, is held out.
    """
    corpus = read_pairs(data)
    if corpus.dropped:
        click.echo(f"dropped {corpus.dropped} pairs, one side empty")
    pairs = corpus.pairs
    if dev:
        held_out = read_pairs(dev).pairs
    else:
        step = max(100, len(pairs) // 1000)
        held_out = pairs[::step]
        pairs = [pair for i, pair in enumerate(pairs) if i % step]
    if not pairs:
        raise ValueError(
            "no pairs left to train on: give more, or dev pairs (--dev)"
        )
    text = (sentence for pair in pairs for sentence in pair)
    tokenizer = train_tokenizer(text, vocab_size)
    return Task(pairs, held_out, tokenizer, metric="negative loss")


# ---
@main.command()
@data_option
@click.option("--dev", multiple=True, metavar="FILE", help="Dev pairs.")
@click.option("--out", metavar="FOLDER", help="Where the run goes.")
@click.option("--preset", type=click.Choice([*PRESETS]), default="mini")
@click.option("--vocab-size", default=8000, show_default=True)
@click.option("--steps", type=click.IntRange(1), help="Updates at most.")
@click.option("--warmup", type=click.IntRange(1), default=1000)
@click.option("--max-tokens", type=click.IntRange(1), default=4096)
@click.option("--seed", default=0, show_default=True)
def train(data, dev, out, preset, vocab_size, steps, warmup, max_tokens,
          seed):
    """Train a model: on mini German, or on your own text (--data)."""
    out = out or RUNS / datetime.now().strftime("%Y-%m-%d-%H%M%S")
    if data:
        task, test = text_task(data, dev, vocab_size), None
        recipe = Recipe(steps=10_000, warmup=warmup, clip=1.0)
    else:
        task, test = mini_german_task(seed)
        recipe, max_tokens = MINI_RECIPE, MINI_TOKENS
    if steps:
        recipe = replace(recipe, steps=steps)
    config = TransformerConfig.preset(preset, len(task.tokenizer))
    click.echo(f"{len(task.train)} pairs, {len(task.tokenizer)} tokens")
    model = train_run(
        out, task, config, recipe, seed=seed, max_tokens=max_tokens,
        device=device(), command=" ".join(["transformer18", *sys.argv[1:]])
    )
    click.echo(f"best on dev, {task.metric}: "
               f"{judge(model, task, task.dev):.4f}")
    if test:
        click.echo(f"{len(test)} unseen sentences, {task.metric}: "
                   f"{judge(model, task, test):.4f}")
    click.echo(f"the run is in {out}")

