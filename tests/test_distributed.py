"""Two processes train one model as one process does, and survive a death."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import distributed

from transformer18.batching import make_batch
from transformer18.checkpoint import Checkpoints, read_checkpoint
from transformer18.devices import Team
from transformer18.runs import read_json, read_metrics
from transformer18.training import Recipe, updates

pytestmark = pytest.mark.skipif(
    not distributed.is_available(), reason="this torch has no torch.distributed"
)
OPTIONS = [
    "--data", "p.tsv", "--dev", "d.tsv", "--vocab-size", "270", "--accumulate", "2",
    "--max-tokens", "60", "--warmup", "8", "--peak", "0.005", "--threads", "1",
]  # fmt: skip


def train(processes: int, *options, launcher=()) -> subprocess.Popen:
    command = [sys.executable, "-m"]
    if processes > 1:
        command += ["torch.distributed.run", "--standalone", "--nproc-per-node",
                    str(processes), *launcher, "-m"]  # fmt: skip
    command += ["transformer18", "train", *OPTIONS, *options]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    )


def finish(process) -> str:
    output, _ = process.communicate(timeout=200)
    assert process.returncode == 0, output
    return output


def test_two_processes_train_as_one(folder):
    """The same losses, the same global batch, without dropout (1e-5)."""
    options = ["--steps", "50", "--eval-every", "1", "--dropout", "0"]
    finish(train(1, *options, "--out", "one"))
    output = finish(train(2, *options, "--out", "two"))
    assert output.count("the run is in two") == 1  # only one of them speaks
    one, two = read_metrics("one"), read_metrics("two")
    assert len(one) == len(two) == 50
    for name in ("nll", "metric"):
        gaps = [abs(a[name] - b[name]) for a, b in zip(one, two, strict=True)]
        assert max(gaps) < 1e-5, name
    for name in ("step", "epoch", "tokens", "learning_rate"):
        assert [r[name] for r in one] == [r[name] for r in two]
    assert one[-1]["nll"] < one[0]["nll"] - 1  # something was learnt
    assert read_json("two/run.json")["processes"] == 2
    weights = [read_checkpoint(f"{run}/model.safetensors")[0] for run in ("one", "two")]
    for name, tensor in weights[0].items():
        assert (tensor - weights[1][name]).abs().max() < 1e-3, name


def workers_of(process) -> list[int]:
    """The process numbers of torchrun's workers."""
    path = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    return [int(number) for number in path.read_text().split()]


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc")
def test_a_killed_worker_is_restarted(folder):
    """torchrun starts both again; they go on from the last checkpoint."""
    options = ["--steps", "40", "--eval-every", "4"]
    finish(train(2, *options, "--out", "straight"))
    killed = train(2, *options, "--out", "killed", "--resume",
                   launcher=["--max-restarts", "2"])  # fmt: skip
    checkpoint = Checkpoints("killed/checkpoints").state(8)
    while not checkpoint.exists():
        assert killed.poll() is None, killed.stdout.read()
        time.sleep(0.02)
    os.kill(workers_of(killed)[1], signal.SIGKILL)
    output = finish(killed)
    assert re.search("exitcode: -9|Signal 9|SIGKILL", output), output
    runs = []
    for run in ("straight", "killed"):
        kept = Checkpoints(Path(run) / "checkpoints")
        records = [{k: v for k, v in r.items() if k != "seconds"} for r in read_metrics(run)]
        runs.append((read_checkpoint(kept.weights(40))[0], records))
    (straight, records), (resumed, again) = runs
    assert records == again
    assert all(torch.equal(straight[name], resumed[name]) for name in straight)


def test_a_sentence_longer_than_any_before(folder):
    """On one process the table of positions grows, on the other not yet."""
    long = " ".join(["a"] * 300)
    with open("p.tsv", "a") as file:
        file.write(f"\n{long}\t{long}")
    output = finish(train(2, "--steps", "12", "--eval-every", "6", "--max-tokens", "700",
                          "--out", "long"))  # fmt: skip
    assert "dev: loss" in output


def test_batches_that_cannot_be_shared():
    batches = [make_batch([([5], [6])])] * 4
    with pytest.raises(ValueError, match="2 processes cannot share 3 batches"):
        next(updates(lambda epoch: batches, Recipe(accumulate=3), Team(0, 2)))


def test_each_batch_goes_to_one_process():
    batches = [make_batch([([5 + i], [5 + i])]) for i in range(7)]
    recipe, seen = Recipe(accumulate=2), []
    for rank in range(2):
        stream = updates(lambda epoch: batches, recipe, Team(rank, 2))
        own = [next(stream) for _ in range(7)]
        assert [u.epoch for u in own] == [0, 0, 0, 1, 1, 1, 1]
        seen.append([int(u.batches[0].labels[0, 0]) - 5 for u in own])
    both = [i for pair in zip(*seen, strict=True) for i in pair]
    assert both == [*range(7), *range(7)]
