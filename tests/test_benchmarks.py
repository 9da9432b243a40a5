"""The benchmarks run, compare like with like, and their files are true."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from transformer18.config import TransformerConfig
from transformer18.mini_german import split

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize("preset", ["tiny", "base", "big"])
def test_the_operations_are_those_of_the_products(preset):
    """Counted from parameters and from the products that are timed: the same,
    but for biases."""
    from benchmarks import gpu_full_model as gpu

    config = TransformerConfig.preset(preset, 16_000)
    counted = sum(6 * n * inputs * outputs for inputs, outputs, n in gpu.products(config))
    assert 1 <= gpu.flops(config, sources=1.0) / counted < 1.005
    assert gpu.flops(config, 1.0) > gpu.flops(config, 0.5) > gpu.flops(config, 0.0)


@pytest.mark.slow
def test_the_full_model_on_a_gpu_dry(tmp_path):
    """The script for a GPU machine, all of it, on a CPU; it can go on."""
    script = ROOT / "benchmarks" / "gpu_full_model.sh"
    command = ["bash", str(script), "--dry-run", str(tmp_path / "out")]
    environment = os.environ | {"PYTHON": sys.executable, "OMP_NUM_THREADS": "1"}
    for _ in range(2):
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stdout + done.stderr
        report = json.loads((tmp_path / "out" / "report.json").read_text())
        assert list(report["runs"]) == ["multi30k", "tatoeba"]
        assert report["memory_bytes_a_second"] > 1e8 < report["matmul_flops"]
        for name, run in report["runs"].items():
            assert run["steps"] == 12 and run["stretches"] == 2
            assert 0 < run["share_of_matmul_rate"] < 1 > run["ceiling_of_matmul_rate"] > 0
            assert run["tokens_a_second"] > 0 < run["tokens_a_second_in_all"]
            assert run["dev_nll"] > 0 and "tok:" in run["scores"]["bleu_signature"]
            assert 1 <= len(run["shapes"]) <= 16 and run["padding"].keys() == {"source", "target"}
            for rows, columns, n in run["shapes"]:
                assert rows == 300 // columns and columns % 8 == 0 < n
            recipe = json.loads((tmp_path / "out" / name / "run.json").read_text())["recipe"]
            assert recipe["buckets"] == 16 and recipe["precision"] == "bfloat16"
            assert not recipe["compile"]
    nothing = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / "gpu_full_model.py", str(tmp_path / "x")],
        capture_output=True, text=True, env=environment | {"CUDA_VISIBLE_DEVICES": ""},
    )  # fmt: skip
    assert nothing.returncode == 1 and "no GPU here" in nothing.stderr


def test_knobs():
    """The stored file is of these knobs, all seeds, and a short run runs."""
    from benchmarks import ablation, knobs

    stored = json.loads(knobs.OUT.read_text())
    assert ablation.same_task(stored["about"])
    assert list(stored["runs"]) == [run.name for run in knobs.all_runs()]
    assert all(run["history"][-1]["step"] == knobs.STEPS for run in stored["runs"].values())
    for knob, values in knobs.KNOBS.items():
        assert values[0] < knobs.usual(knob) < values[1] or knobs.usual(knob) not in values
    found = knobs.train(knobs.Run("d_ff", 32, 0), steps=4, eval_every=2)
    assert [record["step"] for record in found["history"]] == [2, 4]
    same = stored["runs"]["d_ff=32/0"]["parameters"]
    assert found["parameters"] == same < stored["runs"]["mini/0"]["parameters"]


def test_position():
    """The stored file is of these ways, all seeds, and a short run runs."""
    from benchmarks import ablation, position

    stored = json.loads(position.OUT.read_text())
    assert ablation.same_task(stored["about"])
    assert stored["about"]["steps"] == position.STEPS
    assert list(stored["runs"]) == [run.name for run in position.all_runs()]
    for run in stored["runs"].values():
        assert run["history"][-1]["step"] == position.STEPS[run["study"]]
    found = position.train(position.Run("way", "32 of 64", 0), steps=4, eval_every=2)
    assert [record["step"] for record in found["history"]] == [2, 4]
    assert found["parameters"] == stored["runs"]["way/sinusoidal/0"]["parameters"]


def test_heads():
    """As for the knobs; and a model of one head has as many parameters."""
    from benchmarks import ablation, heads

    stored = json.loads(heads.OUT.read_text())
    assert ablation.same_task(stored["about"])
    assert list(stored["runs"]) == [run.name for run in heads.all_runs()]
    found = heads.train(heads.Run(8, 0), steps=4, eval_every=2)
    assert [record["step"] for record in found["history"]] == [2, 4]
    assert {run["parameters"] for run in stored["runs"].values()} == {found["parameters"]}
    assert found.keys() == stored["runs"]["8/0"].keys()


def test_bend():
    """As for the heads; and the straight model has all its parameters."""
    from benchmarks import ablation, bend

    stored = json.loads(bend.OUT.read_text())
    assert ablation.same_task(stored["about"])
    assert list(stored["runs"]) == [run.name for run in bend.all_runs()]
    found = bend.train(bend.Run(0, steps=4))
    assert [record["step"] for record in found["history"]] == [4]
    assert {run["parameters"] for run in stored["runs"].values()} == {found["parameters"]}


def test_ablation():
    """The stored file has every run, in order, on the sentences of today."""
    from benchmarks import ablation

    stored = json.loads(ablation.OUT.read_text())
    assert ablation.same_task(stored["about"])
    runs = list(ablation.all_runs())
    assert list(stored["runs"]) == [run.name for run in runs]
    for run, found in zip(runs, stored["runs"].values(), strict=True):
        assert found["steps"] == run.steps and found["factor"] == run.factor


def test_exposure():
    """As for the heads, with one of the remedies."""
    from benchmarks import exposure

    stored = json.loads(exposure.OUT.read_text())
    assert list(stored["runs"]) == [run.name for run in exposure.all_runs()]
    found = exposure.train(exposure.Run("own words", 0), looks=(2, 4), every=2)
    assert found.keys() == stored["runs"]["own words/0"].keys()


def test_connections():
    """As for the heads; and no connection costs a parameter."""
    from benchmarks import connections

    stored = json.loads(connections.OUT.read_text())
    assert list(stored["runs"]) == [run.name for run in connections.all_runs()]
    found = connections.train(connections.Run("k to k", 2, 0), steps=4, every=2)
    assert [record["step"] for record in found["history"]] == [2, 4]


def test_recurrence():
    """The stored file has every run, in order."""
    from benchmarks import recurrence

    stored = json.loads(recurrence.OUT.read_text())
    runs = list(recurrence.all_runs())
    assert list(stored["runs"]) == [run.name for run in runs]
    for run, found in zip(runs, stored["runs"].values(), strict=True):
        assert found["study"] == run.study


def test_tying():
    """The stored file is of chapter 9's variants, and a run comes out the same."""
    from benchmarks import tying

    stored = json.loads(tying.OUT.read_text())
    runs = list(tying.all_runs())
    assert list(stored["runs"]) == [run.name for run in runs]
    assert stored["about"]["variants"].keys() == tying.chapter()["variants"].keys()
    run = tying.Run("alone", "Q, K, V", 250, 0)
    assert run in runs
    found, kept = tying.train(run), stored["runs"][run.name]
    assert found.keys() == kept.keys() and abs(found["right"] - kept["right"]) < 0.02


def test_warmup():
    from benchmarks import warmup

    stored = json.loads(warmup.OUT.read_text())
    assert list(stored["runs"]) == [run.name for run in warmup.all_runs()]
    assert stored["about"]["sizes"] == warmup.SIZES
    found = warmup.train(warmup.Run(False, 0, True, 0), steps=10)
    kept = stored["runs"]["post-norm/0/xavier/0"]
    assert found.keys() == kept.keys()
    assert abs(found["loss"][0] - kept["loss"][0]) < 0.05


@pytest.mark.parametrize("name", ["attention_times", "encoder_cost"])
def test_times(name, tmp_path):
    """The stored file is of a quiet machine, and the script runs in small."""
    script = importlib.import_module(f"benchmarks.{name}")
    out = tmp_path / "found.json"
    command = [sys.executable, script.__file__, "--smoke", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found, stored = json.loads(out.read_text()), json.loads(script.OUT.read_text())
    assert stored["about"]["machine"] == "quiet" and found["about"].keys() == stored["about"].keys()
    for study, now in found["studies"].items():
        kept = stored["studies"][study]
        assert now.keys() == kept.keys()
        assert now["cpu_seconds"].keys() == kept["cpu_seconds"].keys()
        (sizes,) = (kept[key] for key in kept if key != "cpu_seconds")
        for rows in kept["cpu_seconds"].values():
            assert len(rows) == len(sizes)
            assert all(0 < low <= median <= high for median, low, high in rows)


def write_pairs(folder, n):
    lines = [f"{source}\t{target}\n" for source, target in split(n, 0, 0, seed=0)[0]]
    (folder / "pairs.tsv").write_text("".join(lines))
    return str(folder / "pairs.tsv")


def test_pipeline(tmp_path):
    out = tmp_path / "found.json"
    command = [
        sys.executable, str(ROOT / "benchmarks" / "pipeline.py"), write_pairs(tmp_path, 3000),
        "--rounds", "1", "--updates", "2", "--out", str(out),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())
    assert found["pairs"] == 3000 and 0 < found["padding"]["target"] < 0.2
    assert found["sentences_encoded_a_second"] > 0 < found["input_over_training"]


@pytest.mark.parametrize("name", ["multi30k", "tatoeba"])
def test_stored_records(name):
    """Whole, and without the sentences of a corpus."""
    kept = json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())
    assert {"command", "seed", "torch", "hardware", "minutes", "config", "best"} <= kept.keys()
    assert kept["command"].startswith("transformer18 train --data data/")
    assert kept["metrics"][-1]["step"] == kept["best"]["averaged"][-1] == kept["recipe"]["steps"]
    for test in kept["tests"].values():
        assert [sample.keys() for sample in test["samples"]] == [{"line", "translation"}] * 20
        for how in ("beam", "greedy", "plain"):
            assert {"bleu", "bleu_signature", "chrf", "chrf_signature"} <= test[how].keys()
        assert "±" in test["beam"]["bleu_in_full"]


def test_record(tmp_path):
    """A finished run as a file for the book, without the corpus's sentences."""
    pairs = write_pairs(tmp_path, 300)
    run, environment = tmp_path / "run", os.environ | {"OMP_NUM_THREADS": "1"}
    train = ["--data", pairs, "--steps", "4", "--vocab-size", "320", "--out", str(run)]
    script = [sys.executable, str(ROOT / "benchmarks" / "record.py"), str(run)]
    script += ["--name", "it", "--test", "some", pairs, "--samples", "3", "--out", str(tmp_path)]
    call = dict(capture_output=True, text=True, env=environment)
    begun = subprocess.run([sys.executable, "-m", "transformer18", "train", *train], **call)
    assert begun.returncode == 0, begun.stderr
    done = subprocess.run(script, **call)
    assert done.returncode == 0, done.stderr
    kept = json.loads((tmp_path / "it.json").read_text())
    some = kept["tests"]["some"]
    assert [sample.keys() for sample in some["samples"]] == [{"line", "translation"}] * 3
    assert some["sentences"] == 300 >= sum(row["sentences"] for row in some["by_length"]) > 200
    assert some["beam"]["bleu_in_full"].startswith("BLEU = ")
    assert {"command", "seed", "torch", "hardware", "minutes", "config", "best"} <= kept.keys()
    assert kept["metrics"][-1]["step"] == 4 and "settings" not in kept
    assert "tok:13a" in kept["tests"]["some"]["plain"]["bleu_signature"]
    (run / "run.json").write_text("{}")
    done = subprocess.run(script, **call)
    assert done.returncode == 1 and "resume it first" in done.stderr
