"""A run that was stopped, however roughly, ends as if it never had been."""

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from transformer18 import cli
from transformer18.build import make_transformer
from transformer18.checkpoint import Checkpoints, read_checkpoint, save_checkpoint
from transformer18.config import TransformerConfig
from transformer18.runs import FIRST, Keeper, read_metrics
from transformer18.tokenizer import train_tokenizer

STEPS, EVERY = 24, 4
OPTIONS = [
    "--data", "p.tsv", "--dev", "d.tsv", "--vocab-size", "270", "--steps", str(STEPS),
    "--eval-every", str(EVERY), "--average", "3", "--accumulate", "2",
    "--max-tokens", "60", "--warmup", "8", "--peak", "0.005",
]  # fmt: skip


def train(*options) -> subprocess.Popen:
    """The command in a process of its own."""
    command = [sys.executable, "-m", "transformer18", "train", *OPTIONS, *options]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    )


def finish(*options) -> str:
    process = train(*options)
    output, _ = process.communicate(timeout=100)
    assert process.returncode == 0, output
    return output


def run_inside(*options):
    return CliRunner().invoke(cli.main, ["train", *OPTIONS, *options])


def what_is_left(out) -> tuple[dict, dict, list]:
    """Weights of the run, those of its last step, and its records."""
    model = read_checkpoint(Path(out) / "model.safetensors")[0]
    last = read_checkpoint(Checkpoints(Path(out) / "checkpoints").weights(STEPS))[0]
    records = [{k: v for k, v in r.items() if k != "seconds"} for r in read_metrics(out)]
    return model, last, records


def same(one, other):
    for a, b in zip(one[:2], other[:2], strict=True):
        assert a.keys() == b.keys()
        assert all(torch.equal(a[name], b[name]) for name in a)
    assert one[2] == other[2]


@pytest.fixture
def straight(folder):
    result = run_inside("--out", "straight")
    assert result.exit_code == 0, result.output
    return what_is_left("straight")


def wait_for(path: Path, process) -> None:
    for _ in range(2000):
        if path.exists():
            return
        assert process.poll() is None, process.stdout.read()
        time.sleep(0.02)
    raise AssertionError(f"{path} never came")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_stopped_by_a_signal(straight, number):
    process = train("--out", "stopped")
    wait_for(Checkpoints("stopped/checkpoints").state(2 * EVERY), process)
    process.send_signal(number)
    output, _ = process.communicate(timeout=60)
    assert process.returncode != 0 and "Traceback" not in output
    before = Checkpoints("stopped/checkpoints").steps()
    assert before[-1] < STEPS, "it was too fast to be stopped"
    if number != signal.SIGKILL:
        assert "Error: stopped at step" in output and "resume" in output
    assert "best" not in json.loads(Path("stopped/run.json").read_text())
    finish("--out", "stopped", "--resume")
    same(what_is_left("stopped"), straight)
    assert "best" in json.loads(Path("stopped/run.json").read_text())


def test_a_full_disk(straight):
    """A limit on the size of files: the weights fit, the state does not."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = Checkpoints("straight/checkpoints").weights(STEPS).stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(1.5 * size), hard))
    try:
        result = run_inside("--out", "full")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert result.exit_code == 1 and "File too large" in result.output
    assert Checkpoints("").state(EVERY).name in result.output  # and which file it was
    names = {path.name for path in Path("full/checkpoints").iterdir()}
    assert names == {Checkpoints("").weights(EVERY).name}  # nothing half-written
    result = run_inside("--out", "full", "--resume")
    assert result.exit_code == 0, result.output
    same(what_is_left("full"), straight)


def stop_after(step, out):
    """A run whose checkpoints end at a step."""
    assert run_inside("--out", out).exit_code == 0
    kept = Checkpoints(Path(out) / "checkpoints")
    for later in [s for s in kept.steps() if s > step]:
        kept.state(later).unlink()
    return kept


def test_a_broken_checkpoint(straight):
    kept = stop_after(STEPS, "broken")
    newest = kept.state(STEPS)
    data = newest.read_bytes()
    for broken in (data[:-10], data[:5], b"", data[:-10] + b"0123456789"):
        newest.write_bytes(broken)
        result = run_inside("--out", "broken", "--resume")
        assert result.exit_code == 1 and "Traceback" not in result.output
        assert newest.name in result.output and "--skip-broken" in result.output
    result = run_inside("--out", "broken", "--resume", "--skip-broken")
    assert result.exit_code == 0, result.output
    same(what_is_left("broken"), straight)
    for step in kept.steps():
        kept.state(step).write_bytes(b"")
    result = run_inside("--out", "broken", "--resume", "--skip-broken")
    assert result.exit_code == 1 and "no checkpoint in" in result.output


def test_another_run_is_not_resumed(straight):
    Path("other.tsv").write_text(Path("p.tsv").read_text() + "\na b\tx")
    for options, word in (
        (["--peak", "0.004"], "factor"), (["--seed", "3"], "seed"),
        (["--data", "other.tsv"], "data"), (["--preset", "tiny"], "d_model"),
        (["--dev", "p.tsv"], "dev"),
    ):  # fmt: skip
        without = {"--data": OPTIONS[2:], "--dev": OPTIONS[:2] + OPTIONS[4:]}
        base = without.get(options[0], OPTIONS)
        result = CliRunner().invoke(
            cli.main, ["train", *base, "--out", "straight", "--resume", *options]
        )
        assert result.exit_code == 1, options
        assert word in result.output and "another folder" in result.output


def test_the_options_of_a_run_are_known(straight):
    """--resume alone finds the newest unfinished run, and its options."""
    nothing = CliRunner().invoke(cli.main, ["train", "--resume"])
    assert nothing.exit_code == 1 and "no unfinished run" in nothing.output
    assert run_inside("--out", "runs/mine").exit_code == 0
    story = json.loads(Path("runs/mine/run.json").read_text())
    del story["best"]
    Path("runs/mine/run.json").write_text(json.dumps(story))
    result = CliRunner().invoke(cli.main, ["train", "--resume"])
    assert result.exit_code == 0, result.output
    told = json.loads(Path("runs/mine/run.json").read_text())
    assert [told[name] for name in FIRST] == [story[name] for name in FIRST]
    assert len(told["resumed"]) == 1 and told["resumed"][0].keys() == set(FIRST[1:])
    same(what_is_left("runs/mine"), straight)


@pytest.mark.parametrize("steps", ["16", "18"])
def test_more_steps_than_planned(straight, steps):
    """A finished run goes on when it is given more steps, even if its last
    one was not among those that are looked at."""
    assert run_inside("--out", "short", "--steps", steps).exit_code == 0
    result = run_inside("--out", "short", "--resume")
    assert result.exit_code == 0, result.output
    left = what_is_left("short")
    records = [record for record in left[2] if record["step"] != int(steps)]
    assert [r["step"] for r in records] == [s for s in range(4, 25, 4) if s != int(steps)]
    assert all(torch.equal(left[1][name], straight[1][name]) for name in left[1])


def test_a_better_average_is_not_overwritten(tmp_path):
    """Resumed, a run keeps its average until a single model beats it."""
    torch.manual_seed(0)
    config = TransformerConfig(9, d_model=12, n_heads=3, n_layers=1, d_ff=20)
    model, path = make_transformer(config), tmp_path / "model.safetensors"
    save_checkpoint(model, path, averaged=[1, 2], metric=0.5)
    keep = Keeper(tmp_path, "exact match")
    keep(model, {"step": 3, "metric": 0.4, "best": True})
    assert read_checkpoint(path)[2] == {"averaged": [1, 2], "metric": 0.5}
    keep(model, {"step": 4, "metric": 0.6, "best": True})
    assert read_checkpoint(path)[2]["metric"] == 0.6
    assert [r["step"] for r in read_metrics(tmp_path)] == [3, 4]
    keep(model, {"step": 4, "metric": 0.7, "best": False})  # done again
    assert [r["metric"] for r in read_metrics(tmp_path)] == [0.4, 0.7]


def test_a_longer_run_that_was_stopped(straight):
    """Given more steps and killed, it is unfinished, and knows how many."""
    assert run_inside("--out", "runs/a", "--steps", "8").exit_code == 0
    again = train("--out", "runs/a", "--resume", "--steps", "400")
    wait_for(Checkpoints("runs/a/checkpoints").state(12), again)
    again.kill()
    again.wait()
    story = json.loads(Path("runs/a/run.json").read_text())
    assert "best" not in story and story["recipe"]["steps"] == 400
    assert story["settings"]["steps"] == 400
    fewer = run_inside("--out", "runs/a", "--resume", "--steps", "20")
    assert fewer.exit_code == 1 and "steps 400, not 20" in fewer.output


def test_what_was_lost_is_noticed(straight):
    """Checkpoints, the tokenizer or run.json that are gone or another's."""
    folder = Path("straight")
    tokenizer, story = folder / "tokenizer.model", folder / "run.json"
    pieces, written = tokenizer.read_bytes(), story.read_bytes()
    longer = ("--out", "straight", "--resume", "--steps", "32")

    def fails(*parts):
        result = run_inside(*longer)
        assert result.exit_code == 1 and "Traceback" not in result.output
        assert all(part in result.output for part in parts), result.output

    other = train_tokenizer(["q r s t"] * 30 + ["u v w"] * 20, 270)
    tokenizer.write_bytes(other.model)
    fails("the tokenizer in straight is not that of this run")
    for text in ("[]", '{"config": {'):
        story.write_text(text)
        fails("run.json is cut off or no JSON")
    story.unlink()
    fails("put back its run.json")
    story.write_bytes(written)
    tokenizer.unlink()  # it is made again
    shutil.move(folder / "checkpoints", "elsewhere")
    fails("the checkpoints of straight are gone")
    shutil.move("elsewhere", folder / "checkpoints")
    assert tokenizer.read_bytes() == pieces
    assert run_inside(*longer).exit_code == 0


def test_options_that_are_zero_are_kept(folder):
    assert run_inside("--out", "a", "--dropout", "0", "--steps", "4").exit_code == 0
    result = CliRunner().invoke(cli.main, ["train", "--resume", "--out", "a", "--steps", "8"])
    assert result.exit_code == 0, result.output
    assert json.loads(Path("a/run.json").read_text())["config"]["dropout"] == 0


def test_a_learning_rate_far_too_high(folder):
    result = run_inside("--out", "a", "--peak", "100", "--steps", "8")
    assert "Traceback" not in result.output and not isinstance(
        result.exception, OverflowError
    )


def test_two_processes_do_not_share_a_run(straight):
    """The second is refused, and the first comes to its end."""
    first = train("--out", "shared")
    wait_for(Checkpoints("shared/checkpoints").state(EVERY), first)
    result = run_inside("--out", "shared", "--resume")
    assert result.exit_code == 1 and "another process is training shared" in result.output
    output, _ = first.communicate(timeout=100)
    assert first.returncode == 0, output
    same(what_is_left("shared"), straight)
    assert not Path("shared/lock").exists()
    assert run_inside("--out", "shared", "--resume").exit_code == 0
