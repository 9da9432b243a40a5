"""Parallel text, batches, tokenizers: what goes in comes out, and bad
input is told by file and line."""

import gzip
import hashlib
import pickle
import random
import threading
import time
from collections.abc import Sequence
from itertools import combinations, count

import numpy as np
import pytest
import torch
from torch._dynamo.testing import CompileCounter

from transformer18.batching import (
    Batch,
    PackedPairs,
    bucket_lengths,
    make_batch,
    pooled_batches,
    prefetch,
    token_batches,
)
from transformer18.build import make_transformer
from transformer18.config import TransformerConfig
from transformer18.corpus import MAX_LENGTH, read_corpus, read_lines
from transformer18.decoder import shift_right
from transformer18.loss import label_smoothed_loss, rows_at_a_time
from transformer18.runs import Stream, Task, read_json, read_metrics, train_run
from transformer18.tokenizer import (
    Tokenizer,
    load_tokenizer,
    save_tokenizer,
    train_tokenizer,
)
from transformer18.training import Objective, Recipe
from transformer18.vocabulary import BEGIN, END, PAD, Vocabulary, pad


def test_tsv_and_two_files_give_the_same(tmp_path):
    english, german = "a cat\nthe dog \n", "eine Katze\nder Hund\n"
    (tmp_path / "p.tsv").write_text(
        "a cat\teine Katze\tsource: x\nthe dog \tder Hund\n"
    )
    (tmp_path / "p.en").write_text(english)
    with gzip.open(tmp_path / "p.de.gz", "wt", encoding="utf-8") as file:
        file.write(german)
    one = read_corpus(tmp_path / "p.tsv")
    two = read_corpus(tmp_path / "p.en", tmp_path / "p.de.gz")
    assert one == two
    assert one.pairs == [("a cat", "eine Katze"), ("the dog", "der Hund")]


def test_pairs_with_an_empty_side_are_dropped_and_counted(tmp_path):
    (tmp_path / "p.tsv").write_text("a\tb\n \tc\nd\t\ne\tf\n")
    corpus = read_corpus(tmp_path / "p.tsv")
    assert corpus.pairs == [("a", "b"), ("e", "f")] and corpus.dropped == 2
    assert corpus.reasons == {"empty": 2} and corpus.why == "2 empty"


def test_an_enormous_line_is_dropped_and_counted(tmp_path):
    huge = "word " * 2_000_000  # 10 MB: the newlines were lost
    longest = "x" * MAX_LENGTH
    (tmp_path / "p.en").write_text(f"a\n{huge}\n\n{longest}\n{longest}x\n")
    (tmp_path / "p.de").write_text("b\nc\nd\ne\nf\n")
    corpus = read_corpus(tmp_path / "p.en", tmp_path / "p.de")
    assert corpus.pairs == [("a", "b"), (longest, "e")]
    assert corpus.reasons == {"too long": 2, "empty": 1}
    assert corpus.dropped == 3 and corpus.why == "2 too long, 1 empty"
    short = read_corpus(tmp_path / "p.en", tmp_path / "p.de", max_length=1)
    assert short.pairs == [("a", "b")] and short.dropped == 4
    whole = read_corpus(tmp_path / "p.en", tmp_path / "p.de", max_length=10**8)
    assert len(whole) == 4 and whole.dropped == 1


def test_nothing_left_says_why(tmp_path):
    (tmp_path / "p.tsv").write_text("long\tlong\n \tb\n")
    with pytest.raises(ValueError, match="p.tsv .left out: 1 too long, 1 empty"):
        read_corpus(tmp_path / "p.tsv", max_length=3)


def test_marks_windows_line_ends_and_nul_bytes(tmp_path):
    content = "\ufeffa\tb\r\nc\x00d\te\r\n".encode()
    (tmp_path / "p.tsv").write_bytes(content)
    corpus = read_corpus(tmp_path / "p.tsv")
    assert corpus.pairs == [("a", "b"), ("c\x00d", "e")] and not corpus.dropped


def test_lines_with_other_separators_stay_whole(tmp_path):
    """Only newlines end a line; U+2028 and form feeds do not."""
    text = "one\u2028still one\x0cstill one\r\ntwo\nthree"
    (tmp_path / "x").write_bytes(text.encode())
    assert len(list(read_lines(tmp_path / "x"))) == 3


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("p.tsv", b"a\tb\nb\xe4\tc\n", r"p.tsv, line 2 is not UTF-8.*0xe4"),
        ("p.tsv", b"a\tb\nno tab\n", "p.tsv, line 2 has no TAB"),
        ("p.tsv", b"", "no sentence pairs in .*p.tsv"),
        ("p.tsv", b"\t\n", "no sentence pairs"),
        ("p.gz", b"not gzip", "p.gz is no whole gzip file"),
        ("p.gz", gzip.compress(b"a\tb\n" * 9, mtime=0)[:-9], "no whole gzip file"),
    ],
)
def test_bad_files(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_corpus(tmp_path / name)


def test_missing_and_unequal_files(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere.tsv"):
        read_corpus(tmp_path / "nowhere.tsv")
    (tmp_path / "a").write_text("x\ny\n")
    (tmp_path / "b").write_text("x\n")
    with pytest.raises(ValueError, match="a has 2 lines but .*b has 1"):
        read_corpus(tmp_path / "a", tmp_path / "b")
    with pytest.raises(ValueError, match="b has 1 lines but .*a has 2"):
        read_corpus(tmp_path / "b", tmp_path / "a")


def pairs(n=200):
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(1, 30, (n, 2), generator=generator).tolist()
    return [([4 + i % 9] * s, [5 + i % 7] * t) for i, (s, t) in
            enumerate(lengths)]


def test_every_pair_once_within_the_budget():
    data = pairs()
    seen = []
    for batch in token_batches(data, max_tokens=128, seed=3):
        assert batch.src_ids.numel() <= 128 >= batch.labels.numel()
        for src, tgt in zip(batch.src_ids.tolist(), batch.labels.tolist()):
            src, tgt = src[: src.index(END)], tgt[: tgt.index(END)]
            seen.append((src, tgt))
    assert sorted(seen) == sorted(data)


def test_order_is_settled_by_seed_and_epoch():
    def order(**settled):
        batches = token_batches(pairs(), max_tokens=128, **settled)
        return [batch.labels.tolist() for batch in batches]

    assert order(seed=1, epoch=2) == order(seed=1, epoch=2)
    assert order(seed=1, epoch=2) != order(seed=1, epoch=3)
    assert order(seed=1, epoch=2) != order(seed=2, epoch=2)


def test_a_pair_too_long_for_any_batch():
    with pytest.raises(ValueError, match="pair 1 has 9 tokens.*max_tokens 8"):
        list(token_batches([([5], [5]), ([5], [5] * 8)], max_tokens=8, seed=0))


def test_no_pairs_make_no_batches():
    assert list(token_batches([], max_tokens=8, seed=0)) == []
    assert len(token_batches([], max_tokens=8, seed=0)) == 0
    assert len(PackedPairs([])) == 0
    with pytest.raises(ValueError, match="no pairs to make a batch of"):
        make_batch([])


def the_loop(pairs, max_tokens, seed, epoch=0):
    """The plan as a plain loop: which pairs are in which batch."""
    rng = random.Random(f"{seed} {epoch}")
    size = [max(len(src), len(tgt)) + 1 for src, tgt in pairs]
    order = list(range(len(pairs)))
    rng.shuffle(order)
    order.sort(key=lambda i: size[i])
    groups = [[]]
    for i in order:
        if (len(groups[-1]) + 1) * size[i] > max_tokens:
            groups.append([])
        groups[-1].append(i)
    rng.shuffle(groups)
    return groups


@pytest.mark.parametrize("max_tokens", [30, 31, 128, 1000, 10**6])
def test_plan_and_padding_equal_the_plain_loops(max_tokens):
    data = pairs(300)
    batches = token_batches(data, max_tokens=max_tokens, seed=5, epoch=4)
    groups = the_loop(data, max_tokens, seed=5, epoch=4)
    assert [group.tolist() for group in batches.groups] == groups
    for batch, group in zip(batches, groups, strict=True):
        assert batch.src_ids.equal(pad([[*data[i][0], END] for i in group]))
        assert batch.labels.equal(pad([[*data[i][1], END] for i in group]))
        assert batch.src_ids.dtype == batch.labels.dtype == torch.int64


def test_order_is_that_of_stored_runs():
    """Runs that were stored can be made again only in this order."""
    data = [
        ([4 + i], [4 + i] * (1 + (7 * i + i * i // 5) % 23)) for i in range(300)
    ]
    seen = hashlib.sha256()
    for batch in token_batches(data, max_tokens=128, seed=3, epoch=2):
        seen.update(str(batch.src_ids[:, 0].tolist()).encode())
    assert seen.hexdigest() == (
        "7553829c476026306c86add0a400dc54cacf4b242cb83bf0d38a932eeaa230da"
    )


def same(some, others):
    return len(some) == len(others) and all(
        a.src_ids.equal(b.src_ids) and a.labels.equal(b.labels)
        for a, b in zip(some, others)
    )


def test_batches_are_a_lazy_sequence(monkeypatch):
    batches = token_batches(pairs(), max_tokens=128, seed=3)
    made, batch = [], PackedPairs.batch
    monkeypatch.setattr(
        PackedPairs, "batch", lambda self, rows: made.append(1) or batch(self, rows)
    )
    assert isinstance(batches, Sequence)
    rest, share = batches[17:], batches[1::4]
    assert len(rest) == len(batches) - 17 and not made  # planned, none made
    assert same([rest[0]], [batches[17]]) and len(made) == 2
    assert same([batches[-1]], [rest[-1]])
    everything = list(batches)
    assert len(made) == len(batches) + 4
    assert same(rest, everything[17:]) and same(share, everything[1::4])
    shares = [batches[rank::4] for rank in range(4)]
    assert sum(map(len, shares)) == len(batches)
    with pytest.raises(IndexError):
        batches[len(batches)]


def test_packed_pairs_are_the_pairs():
    data = [*pairs(50), ([], []), ([], [7, 0, 7])]
    packed = PackedPairs(iter(data))
    assert list(packed) == data and len(packed) == 52
    assert packed[-1] == data[-1]
    with pytest.raises(IndexError):
        packed[52]
    settled = dict(max_tokens=64, seed=1, epoch=2)
    assert same(token_batches(packed, **settled), token_batches(data, **settled))
    assert packed.sizes.tolist() == [max(map(len, pair)) + 1 for pair in data]


def test_batches_can_be_sent_to_another_process():
    batches = token_batches(pairs(), max_tokens=128, seed=3)[5:9]
    assert same(pickle.loads(pickle.dumps(batches)), batches)


def test_pools():
    settled = dict(max_tokens=128, seed=3, epoch=1)
    data = pairs()
    whole = list(pooled_batches(iter(data), pool=200, **settled))
    assert same(whole, token_batches(data, **settled))
    parts = list(pooled_batches(iter(data), pool=64, **settled))
    assert same(parts, list(pooled_batches(iter(data), pool=64, **settled)))
    other = dict(settled, epoch=2)
    assert not same(parts, list(pooled_batches(iter(data), pool=64, **other)))
    labels = [row[row != PAD].tolist()[:-1] for b in parts for row in b.labels]
    assert sorted(labels) == sorted(tgt for _, tgt in data)
    assert max(batch.labels.numel() for batch in parts) <= 128
    assert list(pooled_batches([], **settled)) == []


def test_a_pool_reads_no_further_than_it_must():
    read = []

    def stream():
        for i in count():
            read.append(i)
            yield [4 + i % 5], [4] * (i % 7)

    batches = pooled_batches(stream(), max_tokens=64, seed=0, pool=100)
    assert not read  # nothing before it is asked for
    next(batches)
    assert len(read) == 100
    while len(read) == 100:
        batch = next(batches)
    assert len(read) == 200 and len(batch.labels)


def test_pool_errors():
    bad = [([5], [5])] * 7 + [([5] * 9, [5])]
    with pytest.raises(ValueError, match="pair 7 has 10 tokens.*max_tokens 8"):
        list(pooled_batches(bad, max_tokens=8, seed=0, pool=3))
    with pytest.raises(ValueError, match="pool is 0"):
        next(pooled_batches(bad, max_tokens=8, seed=0, pool=0))


def sentences(batches):
    """The pairs in batches, without `end` and padding."""
    found = []
    for batch in batches:
        for src, tgt in zip(batch.src_ids.tolist(), batch.labels.tolist()):
            if END in tgt:
                found.append((src[: src.index(END)], tgt[: tgt.index(END)]))
    return sorted(found)


@pytest.mark.parametrize("buckets", [1, 2, 3, 16])
@pytest.mark.parametrize("max_tokens", [30, 128, 1000, 10**5])
def test_buckets_have_few_shapes_and_all_pairs(buckets, max_tokens):
    data = pairs(300)
    settled = dict(max_tokens=max_tokens, seed=3, epoch=1, buckets=buckets)
    batches = token_batches(data, **settled)
    shapes, cells, labels = set(), 0, 0
    for batch, group, shape in zip(batches, batches.groups, batches.shapes, strict=True):
        rows, columns = shape
        assert batch.src_ids.shape == batch.labels.shape == shape
        assert rows == max_tokens // columns
        assert columns % 8 == 0 or columns == max_tokens
        plain = batches.pairs.batch(group)
        (B, S), T = plain.src_ids.shape, plain.labels.size(1)
        assert batch.src_ids[:B, :S].equal(plain.src_ids)
        assert batch.labels[:B, :T].equal(plain.labels)
        assert not batch.labels[B:].any() and not batch.labels[:, T:].any()
        assert not batch.src_ids[:, S:].any() and not batch.src_ids[B:, 1:].any()
        assert (batch.src_ids[B:, 0] == END).all()  # an empty sentence
        assert batch.n_tokens == plain.n_tokens == (batch.labels != PAD).sum()
        shapes.add(shape)
        cells, labels = cells + rows * columns, labels + batch.n_tokens
    assert len(shapes) <= buckets and sentences(batches) == sorted(data)
    assert batches.padding["target"] == pytest.approx(1 - labels / cells)
    assert same(batches, token_batches(data, **settled))
    other = token_batches(data, **settled | {"epoch": 2})
    assert set(other.shapes) <= set(batches.shapes) and sentences(other) == sorted(data)
    if len(batches) > 3:
        assert not same(batches, other)


def test_buckets_are_a_lazy_sequence_too():
    batches = token_batches(pairs(), max_tokens=128, seed=3, buckets=3)
    rest, share = batches[5:9], batches[1::4]
    assert same(rest, list(batches)[5:9]) and same(share, list(batches)[1::4])
    assert rest.shapes == batches.shapes[5:9] and same([rest[-1]], [batches[8]])
    assert same(pickle.loads(pickle.dumps(rest)), rest)
    assert same(list(prefetch(batches)), batches)
    with pytest.raises(IndexError):
        batches[len(batches)]


def test_the_lengths_of_buckets_leave_the_least_padding():
    """Against all choices there are; where more buckets help little, fewer."""
    draw = np.random.default_rng(0)
    for n, spread in [(1, 5), (40, 40), (300, 60), (300, 9)]:
        sizes = 1 + draw.geometric(1 / spread, n).clip(max=90)
        highest = -(-sizes.max() // 8) * 8
        below = range(8, highest, 8)
        for buckets in (1, 2, 3, 5):
            area = {}
            for k in range(buckets):
                for choice in combinations(below, k):
                    lengths = np.array([*choice, highest])
                    area[*lengths] = lengths[np.searchsorted(lengths, sizes)].sum()
            found = tuple(bucket_lengths(sizes, buckets, max_tokens=1000).tolist())
            least = min(area.values())
            assert area[found] <= 1.01 * least
            alike = [c for c, a in area.items() if len(c) == len(found)]
            assert area[found] == min(area[c] for c in alike)
            fewer = [a for c, a in area.items() if len(c) < len(found)]
            assert all(a > 1.01 * least for a in fewer)


def test_buckets_that_cannot_be():
    bad = [([5], [5]), ([5], [5] * 8)]
    with pytest.raises(ValueError, match="pair 1 has 9 tokens.*max_tokens 8"):
        token_batches(bad, max_tokens=8, seed=0, buckets=2)
    with pytest.raises(ValueError, match="buckets is 0: it must be at least 1"):
        token_batches(bad, max_tokens=9, seed=0, buckets=0)
    assert set(token_batches(bad, max_tokens=9, seed=0, buckets=2).shapes) == {(1, 8), (1, 9)}
    assert token_batches(bad[:1], max_tokens=3, seed=0, buckets=2).shapes == [(1, 3)]
    empty = token_batches([], max_tokens=8, seed=0, buckets=2)
    assert list(empty) == [] and empty.padding.keys() == {"source", "target"}
    with pytest.raises(ValueError, match="buckets must be an integer from 1"):
        Recipe(buckets=0)


def test_pools_in_buckets():
    """What is longer than the first pool's pairs finds room, too."""
    data = [*pairs(200), ([5] * 60, [6] * 50), *pairs(50)]
    settled = dict(max_tokens=128, seed=3, epoch=1, pool=64, buckets=4)
    parts = list(pooled_batches(iter(data), **settled))
    assert same(parts, list(pooled_batches(iter(data), **settled)))
    assert sentences(parts) == sorted(data)
    shapes = {(*batch.src_ids.shape, *batch.labels.shape) for batch in parts}
    assert len(shapes) <= 4 and (1, 128, 1, 128) in shapes
    with pytest.raises(ValueError, match="pair 200 has 61 tokens.*max_tokens 60"):
        list(pooled_batches(iter(data), **settled | {"max_tokens": 60}))
    with pytest.raises(ValueError, match="buckets of a stream is 1"):
        next(pooled_batches(iter(data), **settled | {"buckets": 1}))


def small_model(dtype=torch.float64, n_layers=2):
    torch.manual_seed(0)
    config = TransformerConfig(20, d_model=16, n_heads=2, n_layers=n_layers, d_ff=24, dropout=0)
    return make_transformer(config).to(dtype)


def gradients(model, batches, bfloat16=False, **options):
    """(loss, nll, all gradients) of an epoch, sums over the labels."""
    total = torch.zeros(2, dtype=torch.float64)
    model.zero_grad()
    for batch in batches:
        with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
            features = model.features(batch.src_ids, batch.tgt_ids)
            found = label_smoothed_loss(features, model.output_weight, batch.labels, **options)
        found[0].backward()
        total += torch.stack(found).detach().double()
    return *total.tolist(), torch.cat([p.grad.flatten() for p in model.parameters()])


def test_an_epoch_in_buckets_has_the_same_loss_and_gradients():
    """As the same groups without: padding and missing rows are nothing."""
    model = small_model()
    batches = token_batches(pairs(60), max_tokens=128, seed=3, buckets=3)
    plain = [batches.pairs.batch(group) for group in batches.groups]
    assert any(len(a.labels) < len(b.labels) for a, b in zip(plain, batches))
    expected = gradients(model, plain)
    for options in ({}, {"skip_padding": False}, {"skip_padding": False, "chunk": 7}):
        found = gradients(model, batches, **options)
        assert found[:2] == pytest.approx(expected[:2], rel=1e-12)
        assert (found[2] - expected[2]).abs().max() < 1e-10 < expected[2].abs().max()


@pytest.mark.parametrize("bfloat16", [False, True])
def test_rows_of_padding_keep_gradients_finite(bfloat16):
    """Both as buckets fill up and as nothing but padding on both sides."""
    model = small_model(torch.float32)
    batches = token_batches(pairs(9), max_tokens=400, seed=3, buckets=2)
    expected = gradients(model, batches, bfloat16)
    assert expected[2].isfinite().all()
    bare = []
    for batch in batches:
        rows = batch.labels.any(1, keepdim=True)
        assert not rows.all()  # some are missing
        bare.append(Batch(batch.src_ids * rows, batch.labels))
    found = gradients(model, bare, bfloat16)
    assert found[:2] == pytest.approx(expected[:2], rel=1e-6)
    assert (found[2] - expected[2]).abs().max() < 1e-4 * expected[2].abs().max()
    nothing = Batch(torch.zeros(3, 8, dtype=torch.long), torch.zeros(3, 8, dtype=torch.long))
    for options in ({}, {"skip_padding": False}):
        loss, nll, gradient = gradients(model, [nothing], bfloat16, **options)
        assert loss == nll == 0 and not gradient.any()


def test_logits_at_a_time():
    assert rows_at_a_time(37_000, "cpu") == 512
    for vocabulary in (100, 16_000, 37_000, 10**7):
        rows = rows_at_a_time(vocabulary, "cuda")
        assert rows % 128 == 0 < rows
        assert rows == 128 or 2**28 < 4 * rows * vocabulary <= 2**29


def test_every_bucket_is_compiled(monkeypatch):
    """Beyond the eight programs after which the library would give up."""
    counter, compile = CompileCounter(), torch.compile
    monkeypatch.setattr(
        torch, "compile", lambda f, **how: compile(f, backend=counter, **how)
    )
    data = [([5] * n, [6] * n) for n in range(1, 90)]
    batches = token_batches(data, max_tokens=200, seed=0, buckets=16)
    shapes = len(set(batches.shapes))
    assert 8 < shapes <= 16 < len(batches)
    model = small_model(torch.float32, n_layers=1)
    objective = Objective(model, Recipe(compile=True, buckets=16))
    objective.score = Objective(model, Recipe()).score
    for batch in [*batches, *batches]:
        objective(batch.src_ids, batch.tgt_ids, batch.labels)[0].backward()
    assert counter.frame_count == shapes


@pytest.fixture(autouse=True)
def own_limits():
    """What a test allows the compiler ends with the test."""
    limits = torch._dynamo.config
    with limits.patch(recompile_limit=limits.recompile_limit):
        yield


def trained(folder, steps, train=None, **changes):
    rows = [("a " * (1 + i % 20), "b " * (1 + i % 17)) for i in range(120)]
    rows = [(source.strip(), target.strip()) for source, target in rows]
    task = Task(train or rows, rows[:9], Vocabulary(["a", "b"]), "negative loss")
    config = TransformerConfig(
        len(task.tokenizer), d_model=12, n_heads=3, n_layers=1, d_ff=20
    )
    recipe = Recipe(**dict(steps=steps, warmup=5, eval_every=4, buckets=2) | changes)
    model = train_run(folder, task, config, recipe, max_tokens=100, progress=False, resume=True)
    records = read_metrics(folder)
    rates = [record.pop("tokens_a_second") for record in records]
    assert all(rate > 0 and record.pop("seconds") for rate, record in zip(rates, records))
    return torch.cat([p.flatten() for p in model.parameters()]), records


def test_a_run_in_buckets(tmp_path):
    """It says what they are, goes on where it stopped, and only with the same."""
    straight, records = trained(tmp_path / "straight", 24)
    batches = read_json(tmp_path / "straight" / "run.json")["batches"]
    shapes = batches["shapes"]
    assert 1 <= len(shapes) <= 2 and all(100 // columns == rows for rows, columns, _ in shapes)
    assert 0 < batches["padding"]["source"] < batches["padding"]["target"] < 0.6
    trained(tmp_path / "other", 12)
    resumed, again = trained(tmp_path / "other", 24)
    assert resumed.equal(straight) and again == records
    with pytest.raises(ValueError, match="begun with buckets 2, not 3"):
        trained(tmp_path / "other", 24, buckets=3)


def test_a_stream_in_buckets(tmp_path):
    stream = Stream(lambda: iter([("a b", "b"), ("b", "a b a")] * 30))
    weights, _ = trained(tmp_path / "run", 8, train=stream)
    assert weights.isfinite().all()
    assert "batches" not in read_json(tmp_path / "run" / "run.json")
    with pytest.raises(ValueError, match="buckets of a stream is 1"):
        trained(tmp_path / "one", 8, train=stream, buckets=1)
    assert not (tmp_path / "one").exists()


def makers():
    return [t for t in threading.enumerate() if t.name == "prefetch"]


@pytest.mark.parametrize("ahead", [1, 4, 1000])
def test_prefetch_keeps_batches_and_order(ahead):
    batches = token_batches(pairs(), max_tokens=128, seed=3)
    assert same(list(prefetch(batches, ahead=ahead)), batches)
    assert same(list(prefetch(batches, ahead=ahead, device="cpu")), batches)
    assert list(prefetch([], ahead=ahead)) == []
    assert not makers()


def test_prefetch_makes_some_ahead_but_no_more():
    batches = token_batches(pairs(), max_tokens=128, seed=3)
    made, four = [], threading.Event()

    def source():
        for i, batch in enumerate(batches):
            made.append(i)
            if len(made) == 4:
                four.set()
            yield batch

    ahead = prefetch(source(), ahead=3)
    assert not made and not makers()  # not begun
    next(ahead)
    assert four.wait(10)  # without being asked
    time.sleep(0.05)  # for a maker that does not wait
    assert len(made) == 4  # one is taken, three wait
    for taken in range(2, 20):
        next(ahead)
        assert len(made) <= taken + 3
    ahead.close()
    assert not makers() and len(made) <= 22


class Broken(Exception):
    pass


@pytest.mark.parametrize("good", [0, 1, 5])
@pytest.mark.parametrize("ahead", [1, 4])
def test_prefetch_raises_what_the_maker_raised(good, ahead):
    batches = token_batches(pairs(), max_tokens=128, seed=3)

    def source():
        yield from batches[:good]
        raise Broken("disc full")

    seen = []
    with pytest.raises(Broken, match="disc full"):
        for batch in prefetch(source(), ahead=ahead):
            seen.append(batch)
    assert same(seen, batches[:good]) and not makers()


def test_prefetch_ends_when_the_caller_stops():
    batches = token_batches(pairs(), max_tokens=128, seed=3)

    def endless():
        while True:
            yield from batches

    ahead = prefetch(endless(), ahead=2)
    next(ahead)
    assert len(makers()) == 1
    ahead.close()
    assert not makers()
    with pytest.raises(Broken):
        for _ in prefetch(endless(), ahead=2):
            raise Broken
    assert not makers()
    for _ in prefetch(endless(), ahead=2):
        break
    assert not makers()
    with pytest.raises(StopIteration):
        next(ahead)


def test_prefetch_many_at_once_and_again():
    """No deadlock and no thread left, whoever is first."""
    batches = token_batches(pairs(), max_tokens=128, seed=3)[:12]
    for stop in range(13):
        several = [prefetch(batches, ahead=1 + stop % 3) for _ in range(4)]
        for _ in range(stop):
            got = [next(one) for one in several]
            assert same(got, [got[0]] * 4)
        for one in several:
            one.close()
    assert not makers()


def test_prefetch_needs_room():
    with pytest.raises(ValueError, match="ahead is 0"):
        prefetch([], ahead=0)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA here")
@pytest.mark.parametrize("device", ["cuda", "cuda:0"])
def test_prefetch_to_cuda(device):
    batches = token_batches(pairs(2000), max_tokens=512, seed=3)
    seen = list(prefetch(batches, device=device))
    assert all(batch.labels.is_cuda for batch in seen)
    assert same([batch.to("cpu") for batch in seen], batches)


def test_batch_and_shift_right():
    batch = make_batch([([5, 6], [7]), ([], [8, 9])])
    assert batch.src_ids.tolist() == [[5, 6, END], [END, PAD, PAD]]
    assert batch.labels.tolist() == [[7, END, PAD], [8, 9, END]]
    assert batch.tgt_ids.tolist() == [[BEGIN, 7, END], [BEGIN, 8, 9]]
    assert batch.tgt_ids.equal(shift_right(batch.labels))
    assert batch.n_tokens == 5 == batch.to("cpu").n_tokens


TEXT = ["der alte Mann gibt dem Kind ein Buch", "die Katze schläft"] * 20


def test_tokenizer_round_trip_of_anything(tmp_path):
    tokenizer = train_tokenizer(TEXT, 300)
    assert len(tokenizer) == 300
    for text in [*TEXT[:2], "Ångström 日本 🙂", "ﬁ ½", "a\u00a0b"]:
        ids = tokenizer.encode(text)
        assert tokenizer.decode([BEGIN, *ids, END, PAD, 9]) == text
        assert len(tokenizer.tokens(text)) == len(ids)
        assert min(ids) > 3
    save_tokenizer(tokenizer, tmp_path / "t.model")
    assert load_tokenizer(tmp_path / "t.model") == tokenizer


def test_a_long_line_is_learnt_from_too():
    """The library alone would skip lines of more than 4,192 bytes."""
    long = "Donaudampfschiff " * 1000
    assert len(train_tokenizer([long, "a"], 290).encode("Donaudampfschiff")) < 8


def test_tokenizer_errors(tmp_path):
    with pytest.raises(ValueError, match=r"vocabulary of 100: .*take (\d+); raise it") as error:
        train_tokenizer(TEXT, 100)
    least = int(str(error.value).split()[-3].strip(";"))
    assert len(train_tokenizer(TEXT, least)) == least
    with pytest.raises(ValueError, match=r"vocabulary of 99999: .*at most (\d+); lower") as error:
        train_tokenizer(TEXT, 99999)
    most = int(str(error.value).split("at most ")[1].split(";")[0])
    assert len(train_tokenizer(TEXT, most)) == most
    for nothing in ([], ["", " "]):
        with pytest.raises(ValueError, match="vocabulary of 300: there is no text"):
            train_tokenizer(nothing, 300)
    with pytest.raises(ValueError, match="no sentencepiece model"):
        Tokenizer(b"something else")
    with pytest.raises(FileNotFoundError, match="t.model"):
        load_tokenizer(tmp_path / "t.model")
    (tmp_path / "t.model").write_bytes(b"cut")
    with pytest.raises(ValueError, match="t.model is no sentencepiece"):
        load_tokenizer(tmp_path / "t.model")


def test_packed_pairs_are_a_sequence():
    data = pairs(20)
    packed = PackedPairs(data)
    assert list(packed) == data and packed[-1] == data[-1]
    assert packed[2:5] == data[2:5] and packed[::7] == data[::7]
    with pytest.raises(IndexError):
        packed[20]
