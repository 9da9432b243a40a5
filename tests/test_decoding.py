"""Beam search: exact where that can be checked, the same in any batch."""

import itertools
import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from transformer18.build import book_parts, make_transformer
from transformer18.config import TransformerConfig
from transformer18.decoder import shift_right
from transformer18.decoding import (
    Beams,
    Hypothesis,
    beam_search,
    decided,
    extend,
    length_groups,
    length_penalty,
    limits,
    search_all,
)
from transformer18.incremental import greedy_search
from transformer18.mini_german import split
from transformer18.position import LearnedPosition
from transformer18.translator import MINI, Translator
from transformer18.vocabulary import BEGIN, END, PAD, UNKNOWN, pad

TINY = dict(d_model=8, n_heads=2, n_layers=1, d_ff=16)
SOURCE = torch.tensor([[4, 5, 6, END]])


def tiny(seed, vocab_size=7, **changes):
    """A random model, sure enough of itself to have few ties."""
    torch.manual_seed(seed)
    config = TransformerConfig(vocab_size, **TINY, **changes)
    model = make_transformer(config).eval()
    with torch.no_grad():
        model.tgt_embedding.weight.mul_(2)
    return model


class Table:
    """A model that goes on by the last token only: logits (V, V)."""

    parts = SimpleNamespace(source_mask=lambda ids: None)

    def __init__(self, logits):
        self.logits = torch.as_tensor(logits)
        self.rows = []  # that were decoded, at each step

    def eval(self):
        return self

    def encode(self, src_ids, src_mask):
        return src_ids

    def decode(self, ids, memory, src_mask, cache):
        cache.length += ids.size(1)
        self.rows.append(ids.size(0))
        return ids

    def project(self, last):
        return self.logits[last].clone()


@torch.no_grad()
def log_prob(model, src_ids, rows):
    """Of whole translations of one sentence, without a cache: a list."""
    labels = pad(rows)
    logits = model(src_ids.expand(len(rows), -1), shift_right(labels))
    each = logits.float().log_softmax(-1).gather(2, labels[..., None])
    return each.squeeze(2).masked_fill(labels == PAD, 0).sum(1).tolist()


def everything(model, src_ids, longest, alpha):
    """All translations there are, best first."""
    inner = range(UNKNOWN, model.config.output_size)
    rows = [
        (*some, END)
        for n in range(longest)
        for some in itertools.product(inner, repeat=n)
    ]
    rows += itertools.product(inner, repeat=longest)  # cut
    found = [
        Hypothesis(ids, total, total / ((5 + len(ids)) / 6) ** alpha)
        for ids, total in zip(rows, log_prob(model, src_ids, rows))
    ]
    return sorted(found, key=lambda h: (h.finished, h.score), reverse=True)


def same(found, right):
    """The same hypotheses in the same order, equal scores either way."""
    assert len(found) == len(right)
    by_ids = {one.ids: one for one in right}
    assert len({one.ids for one in found}) == len(found)
    for mine, other in zip(found, right):
        assert mine.finished == other.finished
        assert math.isclose(mine.score, other.score, abs_tol=1e-4)
        own = by_ids.get(mine.ids, other)
        assert math.isclose(mine.log_prob, own.log_prob, abs_tol=1e-4)


def test_length_penalty():
    assert length_penalty(1, 0.6) == 1  # (5 + 1) / 6
    assert length_penalty(7, 1) == 2
    assert length_penalty(99, 0) == 1
    assert math.isclose(length_penalty(10, 0.6), 1.7328621, rel_tol=1e-6)
    many = length_penalty(torch.tensor([1, 7]), 1.0)
    assert many.tolist() == [1.0, 2.0]


@pytest.mark.parametrize("alpha", [0, 0.6, 1, 3])
@pytest.mark.parametrize("seed", range(4))
def test_exact_with_a_beam_as_wide_as_the_space(seed, alpha):
    model = tiny(seed, norm_first=seed % 2 == 1)
    for longest in (1, 2, 4):
        right = everything(model, SOURCE, longest, alpha)
        for n in {1, 3, len(right)}:
            found = beam_search(
                model, SOURCE, beam=len(right), alpha=alpha,
                max_length=longest, n_best=n,
            )
            same(found[0], right[:n])
        assert not right[-1].finished and right[0].finished


@pytest.mark.parametrize("alpha", [0, 0.6, 2])
def test_stopping_early_loses_nothing(alpha):
    """n_best = beam goes on until all have ended, n_best = 1 does not."""
    source = torch.randint(4, 30, (20, 6))
    source[:, -1] = END
    for seed in range(3):
        model = tiny(seed, vocab_size=30)
        patient = beam_search(
            model, source, alpha=alpha, max_length=12, n_best=4
        )
        for n in (1, 2, 3):
            quick = beam_search(
                model, source, alpha=alpha, max_length=12, n_best=n
            )
            for mine, all_four in zip(quick, patient):
                assert [h.ids for h in mine] == [h.ids for h in all_four[:n]]


def test_it_does_not_stop_when_the_first_has_ended():
    """`end` at once is likelier than any one word, but scores less."""
    logits = torch.full((6, 6), -torch.inf)
    logits[BEGIN, END], logits[BEGIN, 4] = math.log(0.6), math.log(0.4)
    logits[4, 5] = logits[5, END] = logits[END, END] = 0.0
    logits[PAD, END] = logits[UNKNOWN, END] = 0.0
    short = beam_search(Table(logits), SOURCE, beam=2, alpha=0)[0][0]
    long = beam_search(Table(logits), SOURCE, beam=2, alpha=3)[0][0]
    assert short.ids == (END,) and long.ids == (4, 5, END)
    assert math.isclose(long.log_prob, math.log(0.4), rel_tol=1e-6)
    assert math.isclose(long.score, math.log(0.4) / (8 / 6) ** 3,
                        rel_tol=1e-6)


def test_one_step_by_hand():
    beams = Beams.start(torch.tensor([9]), 2)
    logits = torch.full((2, 6), -torch.inf)
    logits[:, END], logits[:, 4] = math.log(0.3), math.log(0.7)
    beams, parents = extend(beams, logits, alpha=0.6)
    assert beams.ids.tolist() == [[[BEGIN, 4], [BEGIN, END]]]
    assert parents.tolist() == [0, 0]
    right = torch.tensor([[0.7, 0.3]]).log()
    assert torch.allclose(beams.log_prob, right)
    assert beams.score[0, 0] == -torch.inf  # it is open
    assert torch.isclose(beams.score[0, 1], right[0, 1])  # length 1
    # it may hope for ln 0.7 / lp(9), more than ln 0.3
    assert decided(beams, 0.6, n_best=1).tolist() == [False]
    logits = torch.full((2, 6), -torch.inf)
    logits[:, END], logits[:, 4] = math.log(0.9), math.log(0.1)
    beams, parents = extend(beams, logits, alpha=0.6)
    assert beams.ids.tolist()[0] == [[BEGIN, END, PAD], [BEGIN, 4, END]]
    assert parents.tolist() == [1, 0]
    assert torch.isclose(beams.score[0, 0], right[0, 1])  # as it was
    other = math.log(0.63) / (7 / 6) ** 0.6
    assert math.isclose(beams.score[0, 1], other, rel_tol=1e-5)
    assert decided(beams, 0.6, n_best=1).tolist() == [True]  # none is open


def test_what_has_ended_keeps_its_place():
    """Two likelier ways to go on do not push it out."""
    logits = torch.full((7, 7), -torch.inf)
    logits[BEGIN, END], logits[BEGIN, 4] = math.log(0.1), math.log(0.9)
    logits[4, 5] = math.log(0.6)
    logits[4, 6] = math.log(0.4)
    logits[5:, END] = logits[0, END] = logits[2:4, END] = 0.0
    found = beam_search(Table(logits), SOURCE, beam=2, n_best=2)[0]
    assert [one.ids for one in found] == [(4, 5, END), (END,)]


def test_greedy_loses_where_two_hypotheses_win():
    logits = torch.full((8, 8), -torch.inf)
    logits[BEGIN, 4], logits[BEGIN, 5] = math.log(0.5), math.log(0.4)
    logits[BEGIN, END] = math.log(0.1)
    logits[4, 6] = logits[4, 7] = math.log(0.5)
    logits[5, 6] = math.log(0.9)
    logits[5, 7] = math.log(0.1)
    logits[6:, END] = logits[:BEGIN, END] = logits[2:4, END] = 0.0
    one = beam_search(Table(logits), SOURCE, beam=1)[0][0]
    two = beam_search(Table(logits), SOURCE, beam=2)[0][0]
    assert one.ids[0] == 4
    assert math.isclose(one.log_prob, math.log(0.25), rel_tol=1e-6)
    assert two.ids == (5, 6, END)
    assert math.isclose(two.log_prob, math.log(0.36), rel_tol=1e-6)


def test_beam_1_is_greedy_search():
    compared = 0
    for seed in range(24):
        model = tiny(seed, vocab_size=20)
        source = torch.randint(4, 20, (16, 5))
        source[:, -1] = END
        right = greedy_search(model, source, 12)
        found = beam_search(model, source, beam=1, max_length=12)
        for (mine,), row in zip(found, right.tolist()):
            ids = row[: row.index(END) + 1] if END in row else row
            if PAD in ids or BEGIN in ids:
                continue  # greedy search may write those
            assert list(mine.ids) == ids
            compared += 1
    assert compared > 50


def test_padding_and_begin_are_never_written():
    logits = torch.zeros(7, 7)
    logits[:, [PAD, BEGIN]] = 9.0  # by far the likeliest
    found = beam_search(
        Table(logits), SOURCE, beam=6, max_length=3, n_best=6
    )[0]
    assert len(found) == 6
    for one in found:
        assert not {PAD, BEGIN} & set(one.ids)
        # their share of the probability stays theirs
        assert math.isclose(
            one.log_prob, -len(one.ids) * math.log(2 * math.exp(9) + 5),
            rel_tol=1e-5,
        )


def test_what_is_cut_comes_after_what_has_ended():
    logits = torch.zeros(6, 6)
    logits[:, END] = -5.0  # unlikely, yet complete
    found = beam_search(
        Table(logits), SOURCE, beam=200, max_length=3, n_best=200
    )[0]
    # three tokens may stand within: unknown, 4, 5
    assert [h.finished for h in found] == [True] * 13 + [False] * 27
    assert found[12].score < found[13].score
    assert all(len(h.ids) == 3 for h in found[13:])
    logits[:, END] = -torch.inf
    (never,) = beam_search(Table(logits), SOURCE, max_length=7)[0]
    assert len(never.ids) == 7 and not never.finished
    assert math.isclose(never.score, never.log_prob / 2**0.6, rel_tol=1e-6)


def test_the_limit_is_the_sentences_own_length_plus_50():
    source = pad([[4, END], [4] * 9 + [END]])
    logits = torch.zeros(6, 6)
    logits[:, END] = -torch.inf
    found = beam_search(Table(logits), source)
    assert [len(best.ids) for best, in found] == [52, 60]
    assert limits(source, None).tolist() == [52, 60]
    assert limits(source, 3).tolist() == [3, 3]


def test_a_beam_wider_than_the_vocabulary():
    model = tiny(0, vocab_size=5)
    found = beam_search(model, SOURCE % 5, beam=50, n_best=50, max_length=3)
    same(found[0], everything(model, SOURCE % 5, 3, 0.6))
    assert len(found[0]) == 1 + 2 + 4 + 8


def gaps(model, source, m, alpha, longest):
    """The closest call of a search for one sentence: the least distance
    between what was kept and what was not, or between two results."""
    going, ended, least = [((BEGIN,), 0.0)], [], math.inf
    for t in range(1, longest + 1):
        ways = []
        for ids, total in going:
            with torch.no_grad():
                logits = model(source, torch.tensor([ids]))[0, -1]
            for token, more in enumerate(logits.log_softmax(0).tolist()):
                if token not in (PAD, BEGIN):
                    ways.append((total + more, (*ids, token)))
        ways.sort(reverse=True)
        room = m - len(ended)
        least = min(least, ways[room - 1][0] - ways[room][0])
        kept = ways[:room]
        ended += [x / length_penalty(t, alpha) for x, ids in kept
                  if ids[-1] == END]
        going = [(ids, x) for x, ids in kept if ids[-1] != END]
        if not going:
            break
    ended += [x / length_penalty(longest, alpha) for _, x in going]
    ended.sort(reverse=True)
    return min([least, *(a - b for a, b in zip(ended, ended[1:]))])


def test_the_same_alone_and_in_any_batch():
    """Save for ties: they are counted, and are all there is."""
    torch.manual_seed(5)
    rows = [
        [*torch.randint(4, 40, (int(n),)).tolist(), END]
        for n in torch.randint(1, 15, (60,))
    ]
    different = total = 0
    for seed in range(3):
        model = tiny(seed, vocab_size=40)
        options = dict(max_length=10, n_best=4)
        alone = [
            beam_search(model, torch.tensor([row]), **options)[0]
            for row in rows
        ]
        padded = torch.nn.functional.pad(pad(rows), (0, 7), value=PAD)
        order = torch.randperm(len(rows))
        batch = beam_search(model, padded[order], **options)
        small = search_all(
            model, [row[:-1] for row in rows], max_tokens=30, **options
        )
        for i, place in enumerate(order.argsort().tolist()):
            for other in (batch[place], small[i]):
                total += 1
                if [h.ids for h in other] == [h.ids for h in alone[i]]:
                    for a, b in zip(other, alone[i]):
                        assert abs(a.log_prob - b.log_prob) < 1e-4
                    continue
                different += 1
                source = torch.tensor([rows[i]])
                assert gaps(model, source, 4, 0.6, 10) < 1e-4
    assert total == 360 and different < 0.05 * total


def test_a_trained_model_in_any_batch():
    translator = Translator.load(MINI)
    sources = [source for source, _ in split(0, 0, 60, seed=3)[2]]
    together = translator.translate(sources)
    assert together == translator.translate(sources, max_tokens=1)
    assert together[::-1] == translator.translate(sources[::-1])


def test_log_prob_is_the_models_own():
    model = tiny(1, vocab_size=20)
    source = pad([[4, 5, 6, 7, END], [8, END]])
    found = beam_search(model, source, max_length=9, n_best=3)
    for row, hypotheses in zip(source, found):
        row = row[row != PAD][None]
        right = log_prob(model, row, [h.ids for h in hypotheses])
        for one, expected in zip(hypotheses, right):
            assert math.isclose(one.log_prob, expected, abs_tol=1e-4)
            penalty = ((5 + len(one.ids)) / 6) ** 0.6
            assert math.isclose(one.score, one.log_prob / penalty)
        scores = [h.score for h in hypotheses]
        assert scores == sorted(scores, reverse=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_models_in_16_bits(dtype):
    model = tiny(1, vocab_size=20).to(dtype)
    best = beam_search(model, SOURCE, max_length=9)[0][0]
    (right,) = log_prob(model, SOURCE, [best.ids])
    assert math.isclose(best.log_prob, right, rel_tol=0.03)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_same_on_a_gpu():
    model = tiny(1, vocab_size=20)
    here = beam_search(model, SOURCE, max_length=9, n_best=4)[0]
    model = model.cuda()
    there = beam_search(model, SOURCE.cuda(), max_length=9, n_best=4)[0]
    same(there, here)


def test_scores_that_are_not_numbers():
    model = tiny(0)
    with torch.no_grad():
        model.tgt_embedding.weight[4] = torch.nan
    with pytest.raises(FloatingPointError, match="not numbers"):
        beam_search(model, SOURCE, max_length=5)


@pytest.mark.parametrize("options, message", [
    (dict(beam=0), "beam 0: give 1"),
    (dict(alpha=-0.1), "alpha -0.1: give a number from 0 to 10"),
    (dict(alpha=math.nan), "alpha nan"),
    (dict(max_length=0), "max_length 0: give 1 or more"),
    (dict(n_best=0), "n_best 0 with beam 4: give 1 to 4"),
    (dict(n_best=5), "n_best 5 with beam 4: .* or a wider beam"),
])
def test_options_out_of_range(options, message):
    with pytest.raises(ValueError, match=message):
        beam_search(tiny(0), SOURCE, **options)


def test_no_sentences_and_wrong_shapes():
    model = tiny(0)
    assert beam_search(model, torch.zeros(0, 3, dtype=torch.long)) == []
    assert search_all(model, []) == []
    with pytest.raises(ValueError, match=r"\(4,\): give \(B, S\)"):
        beam_search(model, SOURCE[0])


def test_decided_sentences_leave_the_batch():
    """Rows of the decoder: m for each sentence that is still open."""
    logits = torch.full((8, 8), -20.0)
    logits[:, 4] = 0.0  # never ends: the limits decide
    model = Table(logits)
    source = pad([[4] * n + [END] for n in (1, 3, 6)])
    beam_search(model, source, beam=3)  # limits 52, 54, 57
    assert model.rows == [9] * 52 + [6] * 2 + [3] * 3


def test_long_sentences_work_or_say_what_is_wrong():
    words = [4, 5, 6] * 700
    model = tiny(0)
    (best,) = search_all(model, [words], max_length=3)[0]
    assert 1 <= len(best.ids) <= 3
    learned = replace(
        book_parts(),
        position=lambda c: LearnedPosition(c.max_length, c.d_model, 0.0),
    )
    config = TransformerConfig(7, **TINY, max_length=100)
    model = make_transformer(config, learned)
    with pytest.raises(ValueError, match="longer than the 100 learned"):
        search_all(model, [words])


def test_groups_of_like_length():
    lengths = [3, 9, 4, 9, 50, 2, 1, 1]
    groups = list(length_groups(lengths, max_tokens=18))
    assert groups == [[4], [1, 3], [2, 0, 5, 6], [7]]
    assert list(length_groups([], 10)) == []


def test_search_all_keeps_the_order_and_evaluates():
    model = tiny(3, vocab_size=30).train()
    rows = [[4, 5], [6, 7, 8, 9, 10], [11], [12, 13, 14]]
    found = search_all(model, rows, max_length=6, max_tokens=8)
    assert not model.training
    for row, one in zip(rows, found):
        alone = beam_search(model, torch.tensor([[*row, END]]), max_length=6)
        assert one[0].ids == alone[0][0].ids
