"""The speed suite runs, compares like with like, and leaves nobody out unseen."""

import json
import os
import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

import copying
import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import bench, decode, measuring, peers, steps, train
from benchmarks.peers import BF16, CT2, MARIAN, NN, OURS, SIZES, SMOKE, THEIRS, X
from transformer18.batching import Batch
from transformer18.decoding import search_all
from transformer18.loss import label_smoothed_loss
from transformer18.vocabulary import END, PAD, UNKNOWN

ROOT = Path(__file__).resolve().parent.parent
ABOUT = {"command", "date", "commit", "hardware", "cores", "python", "versions", "threads"}
ABSENT = peers.missing()


def needs(peer):
    return pytest.mark.skipif(peer in ABSENT, reason=f"{peer} {ABSENT.get(peer)}")


# -- the scripts -----------------------------------------------------------------


@pytest.fixture(scope="module")
def full(tmp_path_factory):
    """(what it printed, the file) of all of the suite in minute sizes."""
    out = tmp_path_factory.mktemp("bench") / "bench.json"
    command = [sys.executable, bench.__file__, "--smoke", "--out", str(out)]
    environment = os.environ | {"OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "passive"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, json.loads(out.read_text(encoding="utf-8"))


def test_every_floor_has_its_row(full):
    printed, stored = full
    (run,) = stored["runs"]
    assert run["about"].keys() >= ABOUT and run["missing"] == ABSENT
    for one in bench.FLOORS:
        found = run["rows"][one.row]
        assert one.what in printed
        if why := found.get("not measured"):
            needed = next((peer for peer in ABSENT if peer in one.row), None)
            assert why == (ABSENT[needed] if needed else train.NO_BF16)
        else:
            assert 0 < found["least"] <= found["median"] <= found["most"]
            assert len(found["rounds"]) in (1, 2)
    assert [one["row"] for one in run["floors"]] == [one.row for one in bench.FLOORS]


def test_the_file_has_it_all(full):
    """Seconds, speeds, memory, wall times, curves: what a chapter shows."""
    (run,) = full[1]["runs"]
    there = {name for name, peer in peers.TRAINERS.items() if peer not in ABSENT}
    if not run["about"]["bfloat16_instructions"]:
        there -= {BF16}
    training, decoding = run["studies"]["train"], run["studies"]["decode"]
    engines = {"package"} | {peer for peer in (CT2, MARIAN) if peer not in ABSENT}
    for key in SIZES:
        by_dropout = training["steps"][key]["dropout"]
        assert [*by_dropout] == ["0.1", "0.0"]
        for one in by_dropout.values():
            assert one["cpu_seconds"].keys() == one["times_as_fast"].keys() == there
        assert by_dropout["0.1"]["wall_seconds"].keys() == there
        assert {THEIRS, OURS} <= training["memory"][key]["peak_bytes"].keys()
        assert training["growth"][key].keys() == {"sentences", "length"}
        for search in ("greedy, 1", "greedy, 32", "beam 4, 16"):
            one = decoding["fixed"][key][f"{search} at a time"]
            for what in ("cpu_seconds", "wall_seconds", "tokens_a_second", "outputs"):
                assert {"package"} <= one[what].keys()
                assert engines <= one[what].keys() or (key, search[:4]) == ("base", "beam")
        assert decoding["batch"][key]["tokens_a_second"].keys() == engines
        curve = decoding["length"][key]
        assert len(curve["lengths"]) == len(curve["1 at a time"])
    assert training["useful"]["tokens_a_second"].keys() == {
        "torch.nn, random batches", "torch.nn, length buckets", "package, length buckets",
    }  # fmt: skip
    assert training["attention"]["peak_bytes"].keys() == {*train.WAYS}


def test_what_each_measure_is_worth(tmp_path):
    out = tmp_path / "steps.json"
    command = [sys.executable, steps.__file__, "--smoke", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(out.read_text(encoding="utf-8"))
    assert found["about"].keys() >= ABOUT
    assert list(found["studies"]) == ["training", "decoding", "profile"]
    for name in ("training/tiny/fused attention", "decoding/base/1 × 1/single steps recorded"):
        assert found["rows"][name]["median"] > 0
    for kinds in found["studies"]["profile"].values():
        assert list(kinds) == [steps.PLAIN, steps.ALL]
        assert all(seconds >= 0 for own in kinds.values() for seconds in own.values())


def test_what_is_taken_back_computes_the_same():
    """Whatever form decoding has, the tokens are the same."""
    size = SMOKE["tiny"]
    model = peers.endless_model(size)
    sentences = peers.random_sentences(size, [5, 5])
    right = [list(one[0].ids) for one in search_all(model, sentences, beam=1, max_length=6)]
    found = {}

    def keep(model, sentences, **options):
        found[name] = search_all(model, sentences, **options)

    with patch.object(steps, "search_all", keep):
        for name, turn in steps.decoders(model, sentences, 1, 6, cache=True).items():
            result = turn()
            if result is not None:  # without a cache
                assert result.tolist() == right, name
            elif "8 bits" not in name:
                assert [list(one[0].ids) for one in found[name]] == right, name
    assert len(found) >= 6


@pytest.mark.parametrize("script", [train, decode, bench])
@pytest.mark.parametrize("wrong", [["--repeats", "0"], ["--sizes", "huge"]])
def test_scripts_refuse(script, wrong, tmp_path, capsys):
    run = bench.main
    if script is not bench:
        name = Path(script.__file__).stem

        def run(arguments):
            measuring.main(name, script.__doc__, script.STUDIES, arguments)

    out = tmp_path / "found.json"
    with pytest.raises(SystemExit, match="2"):
        run(["--smoke", "--out", str(out), *wrong])
    told = capsys.readouterr().err
    assert wrong[0] in told and not out.exists()


@pytest.mark.parametrize("script", [train, decode])
def test_a_script_by_itself(script, tmp_path, capsys):
    """One study, one size, one file."""
    study = {train: "growth", decode: "length"}[script]
    out, name = tmp_path / "found.json", Path(script.__file__).stem
    arguments = ["--smoke", "--sizes", "tiny", "--studies", study, "--out", str(out)]
    made = measuring.main(name, script.__doc__, script.STUDIES, arguments)
    assert json.loads(out.read_text(encoding="utf-8")) == made
    assert made["about"].keys() >= ABOUT and made["took"].keys() == {
        "load", "machine", "seconds_a_study",
    }  # fmt: skip
    assert made["studies"][study].keys() == {"tiny"}


def test_missing_peers_are_named(monkeypatch, capsys):
    """Without the peers: rows and table say so, and no floor is reached."""
    only_torch = dict.fromkeys(peers.DISTRIBUTIONS.values()) | {"torch": "2"}
    monkeypatch.setattr(peers, "versions", lambda: only_torch)
    found = bench.run(quick=True, smoke=True)
    bench.report(found, quick=True)
    printed = capsys.readouterr().out
    for peer, name in ((CT2, "ctranslate2"), (MARIAN, "transformers"), (X, "x-transformers")):
        assert f"{peer} not installed: {name}" in printed
        assert found["missing"][peer].startswith(f"not installed: {name}")
    row = f"greedy/tiny/1/{CT2}"
    assert found["rows"][row] == {"not measured": found["missing"][CT2]}
    (told,) = [one for one in found["floors"] if one["row"] == row]
    assert told["reached"] == "not measured"
    assert "not measured: not installed: ctranslate2" in printed
    assert found["rows"][f"train/tiny/{NN}"]["median"] > 0
    _, rows = train.steps(measuring.Plan({"tiny": SMOKE["tiny"]}, smoke=True))
    for peer in (MARIAN, X):
        assert rows[f"train/tiny/{peer}"] == {"not measured": found["missing"][peer]}


# -- the floors ------------------------------------------------------------------


def test_floors():
    """As many as were set, no two for one row, aims beyond them."""
    rows = [one.row for one in bench.FLOORS]
    assert len(rows) == len({*rows}) == 29
    assert [one.row for one in bench.FLOORS if one.quick] == [
        f"train/tiny/{NN}", f"train/base/{NN}", f"greedy/tiny/1/{CT2}", f"greedy/tiny/32/{CT2}",
    ]  # fmt: skip
    for one in bench.FLOORS:
        assert one.aim is None or one.good(one.aim, one.floor)


@pytest.mark.parametrize(
    "value, at_most, verdict",
    [(1.2, False, "aim"), (1.05, False, "floor"), (0.9, False, "no"), (0.9, True, "floor"),
     (0.7, True, "aim"), (1.1, True, "no")],
)  # fmt: skip
def test_verdicts(value, at_most, verdict):
    one = bench.Floor("row", "what", 1.0, 0.8 if at_most else 1.1, at_most)
    found = measuring.row([value, 0.0, 9.0])  # the median counts
    assert one.verdict(found) == verdict
    (line,) = [*bench.table([one], {"row": found})][1:]
    assert line.rstrip().endswith(bench.SHOWN[verdict]) and f"{value:.3g} (0–9)" in line


def fake(values):
    rows = {one.row: measuring.row([value]) for one, value in zip(bench.FLOORS, values)}
    return {
        "minutes": 1.0, "missing": {}, "rows": rows, "took": {}, "studies": {},
        "floors": bench.verdicts(bench.FLOORS, rows),
    }  # fmt: skip


def test_full_runs_are_kept_in_pairs(tmp_path, monkeypatch, capsys):
    """The last two, newest last; a missed floor is the exit status."""
    good = [one.floor for one in bench.FLOORS]
    bad = [one.floor * (2 if one.at_most else 0.5) for one in bench.FLOORS]
    out, statuses = tmp_path / "bench.json", []
    for values in (bad, good, [*good[:-1], bad[-1]]):
        monkeypatch.setattr(bench, "run", lambda *_, values=values: fake(values))
        statuses.append(bench.main(["--full", "--out", str(out)]))
    assert statuses == [1, 0, 1]
    runs = bench.earlier(out)
    assert len(runs) == 2 and all(run["about"].keys() >= ABOUT for run in runs)
    assert [run["floors"][-1]["reached"] for run in runs] == ["floor", "no"]
    assert bench.twice(runs) == [one.row for one in bench.FLOORS[:-1]]
    assert f"twice in a row: {len(good) - 1} of {len(good)}" in capsys.readouterr().out


def test_stored_runs():
    """Of the floors and sizes of today, on a machine with all peers."""
    if not bench.OUT.exists():
        pytest.skip("no full run is stored yet")
    runs = bench.earlier(bench.OUT)
    assert len(runs) in (1, 2)
    for run in runs:
        assert run["missing"] == {} and run["about"].keys() >= ABOUT
        assert run["floors"] == bench.verdicts(bench.FLOORS, run["rows"])
        for key, size in SIZES.items():
            assert run["studies"]["train"]["steps"][key]["sizes"] == vars(size)


# -- like with like: training ------------------------------------------------------


@pytest.fixture
def batch():
    """With padding, so that a missing mask shows."""
    torch.manual_seed(2)
    batch = SMOKE["tiny"].ids()
    batch.src_ids[0, 4:] = batch.labels[1, 3:] = PAD
    return Batch(batch.src_ids, batch.labels)  # counts its labels anew


@pytest.fixture
def ours():
    """A model far from its start, where all of its biases are 0."""
    torch.manual_seed(1)
    model = peers.make_model("package", SMOKE["tiny"], 0.0)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    return model


def smoothed(model, batch):
    """The loss that all should have, a label."""
    features = model.features(batch.src_ids, batch.tgt_ids)
    loss, _ = label_smoothed_loss(features, model.output_weight, batch.labels)
    return loss.item() / batch.n_tokens


def test_nn_computes_the_same(ours, batch):
    theirs = peers.make_model("torch.nn", SMOKE["tiny"], 0.0)
    copying.copy_transformer(ours, theirs.inner)
    theirs.embedding.weight.data.copy_(ours.src_embedding.weight)
    assert peers.nn_loss(theirs)(batch).item() == pytest.approx(smoothed(ours, batch), rel=1e-5)


def test_the_loops_do_the_same(ours, batch):
    """A step of plain gradient descent in either moves the weights alike."""
    start = {name: value.clone() for name, value in ours.state_dict().items()}
    moved = []
    for loop in ("plain", "package"):
        ours.load_state_dict(start)
        sgd = torch.optim.SGD(ours.parameters(), lr=0.1)
        if loop == "plain":
            peers.plain_step(ours, peers.nn_loss(ours), sgd)(batch)
        else:
            peers.package_step(ours, sgd, rate=0.1)(batch)
        moved.append(ours.output_weight.detach() - start["src_embedding.weight"])
    assert moved[0].abs().max() > 1e-3
    assert (moved[0] - moved[1]).abs().max() < 1e-6


@needs(MARIAN)
def test_marian_computes_the_same(ours, batch):
    theirs = peers.marian(ours.config)
    peers.copy_to_marian(ours, theirs)
    assert peers.marian_loss(theirs)(batch).item() == pytest.approx(smoothed(ours, batch), rel=1e-5)


@needs(MARIAN)
def test_marian_is_as_large():
    """But for its biases in attention: 4 D for each of 3 N."""
    size = SMOKE["base"]
    ours, theirs = (
        sum(p.numel() for p in model.parameters() if p.requires_grad)
        for model in (peers.make_model("package", size, 0.1), peers.marian(size.config(0.1)))
    )
    assert theirs - ours == 3 * size.n_layers * 4 * size.d_model


@needs(X)
def test_x_transformer_is_as_large():
    """But for its learned positions: one table a side."""
    size = SMOKE["base"]
    ours = sum(p.numel() for p in peers.make_model("package", size, 0.1).parameters())
    model = peers.x_transformer(size.config(0.1), tokens=10)
    theirs = sum(p.numel() for p in model.parameters())
    assert abs(theirs - ours - 2 * 10 * size.d_model) <= 0.05 * ours
    dropped = {m.p for m in model.modules() if isinstance(m, torch.nn.Dropout)}
    assert dropped == {0.0, 0.1}


@pytest.mark.parametrize("name", [*peers.TRAINERS])
def test_each_contender_learns(name, batch):
    """Many steps on one batch: the loss falls, so nothing is left out."""
    if peers.TRAINERS[name] in ABSENT:
        pytest.skip(ABSENT[peers.TRAINERS[name]])
    step = peers.make_trainer(name, SMOKE["tiny"], dropout=0.0)
    first = step(batch)
    for _ in range(30):
        last = step(batch)
    assert last < first


def test_flops():
    """As torch counts them, with attention in products that it can see."""
    size = peers.Size("some", 32, 4, 64, 2, vocab_size=99, sentences=4, tokens=16)
    batch, model = size.ids(), peers.make_model("package", size, 0.0)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        logits = model(batch.src_ids, batch.tgt_ids)
        F.cross_entropy(logits.flatten(0, 1), batch.labels.flatten()).backward()
    assert size.flops == counter.get_total_flops()
    big = SIZES["base"]
    assert big.flops / big.ids().labels.numel() == pytest.approx(380e6, rel=0.02)


# -- like with like: decoding ------------------------------------------------------


def test_nothing_ends():
    """The special tokens' logits are far below all that is written."""
    size = SIZES["tiny"]
    model = peers.endless_model(size)
    sentences = peers.random_sentences(size, [31, 5])
    ours = peers.PackageDecoder(model).translate(sentences, max_length=20)
    for source, target in zip(sentences, ours):
        assert len(target) == 20 and len({*target}) > 2
        scores = decode.log_probs(model, source, target)
        assert scores[:, : UNKNOWN + 1].max() < scores.amax(dim=1).min() - 8


@needs(CT2)
@pytest.mark.parametrize("beam", [1, 4])
def test_ctranslate2_writes_the_same(beam):
    """Token for token, on sentences of different lengths; in 8 bits it
    does not, and the model is as it was."""
    size = SIZES["tiny"]
    model = peers.endless_model(size)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    them = {decode.PACKAGE: peers.PackageDecoder(model), CT2: peers.CTranslate2Decoder(model)}
    them[decode.CT2_8] = peers.CTranslate2Decoder(model, int8=True)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    sentences = peers.random_sentences(size, [20, 3, 11])
    found = decode.compare(model, them, sentences, beam, 24)
    assert found[CT2]["same"] + found[CT2]["ties"] == 3


@needs(MARIAN)
@pytest.mark.parametrize("beam", [1, 4])
def test_marian_writes_the_same(beam):
    size = SIZES["tiny"]
    model = peers.endless_model(size)
    them = {decode.PACKAGE: peers.PackageDecoder(model), MARIAN: peers.MarianDecoder(model)}
    sentences = peers.random_sentences(size, [20, 3, 11])
    assert decode.compare(model, them, sentences, beam, 24)[MARIAN]["sentences"] == 3


class Wrong(peers.Decoder):
    """Writes what the package does, but for a token, or too little."""

    def __init__(self, model, change):
        self.inner, self.change = peers.PackageDecoder(model), change

    def translate(self, *arguments):
        return [self.change(ids) for ids in self.inner.translate(*arguments)]


def test_other_tokens_are_noticed():
    size = SMOKE["tiny"]
    model = peers.endless_model(size)
    them = {decode.PACKAGE: peers.PackageDecoder(model)}
    sentences = peers.random_sentences(size, [5, 4])

    def compare(change, name=CT2):
        return decode.compare(model, them | {name: Wrong(model, change)}, sentences, 1, 6)

    with pytest.raises(AssertionError, match="does not write the tokens"):
        compare(lambda ids: [*ids[:-1], UNKNOWN])
    with pytest.raises(AssertionError, match="wrote"):
        compare(lambda ids: ids[:-1])
    assert compare(lambda ids: [*ids[:-1], UNKNOWN], decode.CT2_8)[decode.CT2_8]["same"] == 0


def test_ties_are_told_from_mistakes():
    """Two words with one embedding are equally good wherever they stand."""
    size = SMOKE["tiny"]
    model = peers.endless_model(size)
    (source,) = peers.random_sentences(size, [5])
    (ids,) = peers.PackageDecoder(model).translate([source], max_length=6)
    twin = next(i for i in range(UNKNOWN + 1, size.vocab_size) if i not in [*ids, *source])
    other = [twin if i == ids[2] else i for i in ids]
    for greedy in (True, False):
        assert not decode.tied(model, source, ids, other, greedy)
    model.output_weight.data[twin] = model.output_weight.data[ids[2]]
    for greedy in (True, False):
        assert decode.tied(model, source, ids, other, greedy)


def test_own_limits():
    """Every sentence gets as many tokens as it should, alone or with others."""
    size = SMOKE["base"]
    decoder = peers.PackageDecoder(peers.endless_model(size))
    sentences, lengths = decode.news(size, 6, 12)
    with decode.own_limits(sentences, lengths):
        together = decoder.translate(sentences)
        alone = [decoder.translate([ids])[0] for ids in sentences]
    assert [len(ids) for ids in together] == lengths
    assert together == alone
    assert len(decoder.translate(sentences[:1], max_length=3)[0]) == 3  # as before


# -- lengths of news -----------------------------------------------------------------


def test_news_lengths():
    """Numbers of tokens and nothing else, of 3,000 pairs."""
    told = json.loads(train.LENGTHS.read_text(encoding="utf-8"))
    assert told.keys() == {"what", "source", "target"}
    for side in ("source", "target"):
        assert len(told[side]) == 3000
        assert all(type(n) is int and 1 <= n < 200 for n in told[side])
    pairs = train.news_pairs(43)
    source, target = pairs[17]
    assert (len(source), len(target)) == (told["source"][17], told["target"][17])
    assert all(UNKNOWN < i < 43 for i in source + target)


def test_random_batches_and_padding():
    """All pairs once, as many places at most, and the padding counted."""
    pairs = train.news_pairs(43)
    batches = train.random_batches(pairs, 4096)
    assert sum(len(batch.labels) for batch in batches) == len(pairs)
    for batch in batches:
        places = [max(batch.src_ids.numel(), batch.labels.numel()), len(batch.labels)]
        assert places[0] <= 4096
        assert int((batch.labels == END).sum()) == places[1]
    shares = train.padding(batches, pairs)
    real = sum(int((batch.labels != PAD).sum()) for batch in batches)
    places = sum(batch.labels.numel() for batch in batches)
    assert shares["target"] == pytest.approx(1 - real / places, rel=1e-3)
    assert all(0.5 < share < 0.8 for share in shares.values())
