"""A packed model computes what the model computes, step by step."""

import itertools

import pytest
import torch
import torch.nn.functional as F

from transformer18 import packing
from transformer18.build import book_parts, make_transformer
from transformer18.config import TransformerConfig
from transformer18.decoding import beam_search, search_all
from transformer18.masking import KeyValueCache
from transformer18.packing import LARGE, FixedLinear, Int8Linear, Sieve, pack
from transformer18.position import LearnedPosition
from transformer18.translator import MINI, SHIPPED, Translator
from transformer18.vocabulary import BEGIN, END, PAD, pad

SMALL = dict(d_model=12, n_heads=3, n_layers=2, d_ff=20)
WIDE = dict(d_model=384, n_heads=4, n_layers=1, d_ff=512)  # above LARGE


def make(vocab_size=60, parts=None, **changes):
    torch.manual_seed(0)
    config = TransformerConfig(vocab_size, **(SMALL | changes))
    model = make_transformer(config, parts).eval()
    with torch.no_grad():
        model.output_weight.mul_(3)  # sure of itself: few ties
    return model


def sources(n, vocab_size=60, seed=1):
    """n sentences of different lengths."""
    generator = torch.Generator().manual_seed(seed)
    lengths = [3 + 2 * i for i in range(n)]
    return [torch.randint(4, vocab_size, (k,), generator=generator).tolist() for k in lengths]


def same(found, right):
    for mine, other in zip(found, right, strict=True):
        assert [h.ids for h in mine] == [h.ids for h in other]
        for one, two in zip(mine, other, strict=True):
            assert one.log_prob == pytest.approx(two.log_prob, abs=1e-3)


KINDS = [
    dict(),
    dict(norm_first=True),
    dict(tie_embeddings=False),
    dict(tgt_vocab_size=31),
    dict(d_model=7, n_heads=1),
    dict(d_model=9, n_heads=9, dropout=0.3),
    WIDE | dict(vocab_size=700),
    WIDE | dict(vocab_size=700, norm_first=True, tie_embeddings=False),
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("beam", [1, 4])
def test_the_same_translations(kind, beam):
    kind = dict(kind)
    vocab_size = kind.pop("vocab_size", 60)
    model = make(vocab_size, **kind)
    packed = pack(model)
    for n in (1, 2, 5):
        ids = sources(n, vocab_size)
        options = dict(beam=beam, n_best=min(beam, 2), max_length=20)
        same(search_all(packed, ids, **options), search_all(model, ids, **options))
    assert packed.steps  # it did use recordings


def test_logits_of_every_step():
    """Through the cache's growth, rows that leave and a padded source."""
    model = make(d_model=16, n_heads=4)
    packed = pack(model)
    src = pad([[*ids, END] for ids in sources(5)])
    mask = model.parts.source_mask(src)
    tgt = torch.randint(4, 60, (5, 50))
    with torch.inference_mode():
        memory = model.encode(src, mask)
        right = model.project(model.decode(tgt, memory, mask))
        for chosen in (mask, None):
            wanted = right if chosen is mask else model.project(model.decode(tgt, memory))
            cache, rows = KeyValueCache(50), torch.arange(5)
            for t in range(50):
                if t in (17, 30, 40):  # sentences leave
                    kept = torch.arange(0, len(rows), 2)
                    cache.keep(kept)
                    rows = rows[kept]
                own = None if chosen is None else chosen[rows]
                new = tgt[rows, t : t + 1]
                got = packed.project(packed.decode(new, memory[rows], own, cache))
                torch.testing.assert_close(got[:, 0], wanted[rows, t], rtol=0, atol=1e-4)
            assert cache.length == 50
            with pytest.raises(ValueError, match="51 tokens do not fit"):
                packed.decode(tgt[rows, :1], memory[rows], own, cache)
    # single rows and several, with a mask and without
    assert set(packed.steps) == set(itertools.product((False, True), repeat=2))


def test_past_the_first_table_of_positions():
    model = make()
    ids = [[5, 6, 7]]
    with torch.no_grad():
        model.output_weight[END] = 0
    options = dict(beam=1, max_length=300)
    same(search_all(pack(model), ids, **options), search_all(model, ids, **options))


def test_learned_positions_say_where_they_end():
    from dataclasses import replace

    parts = replace(book_parts(), position=lambda c: LearnedPosition(6, c.d_model))
    packed = pack(make(parts=parts))
    with torch.no_grad():
        packed.output.one[END] = -10
        with pytest.raises(ValueError, match="7 tokens is longer than the 6"):
            search_all(packed, [[5, 6]], beam=1, max_length=20)


def test_the_model_itself_is_left_alone():
    model = make(700, **WIDE)
    before = {name: w.clone() for name, w in model.state_dict().items()}
    for int8 in (False, True):
        packed = pack(model, int8=int8)
        search_all(packed, [[5, 6, 7]], max_length=5)
        assert packed is not model and type(model).__name__ == "Transformer"
        # the embedding is shared, not copied
        assert packed.tgt_embedding.weight is model.tgt_embedding.weight
    for name, w in model.state_dict().items():
        assert torch.equal(w, before[name])
    model.train()
    assert model.training and not packed.training
    with pytest.raises(TypeError, match="a packed model is not trained"):
        packed.train()


@pytest.mark.parametrize("shape", [(LARGE // 256, 256), (300, 512), (512, 300), (3, 5)])
@pytest.mark.parametrize("with_bias", [False, True])
def test_products(shape, with_bias):
    torch.manual_seed(0)
    weight, bias = torch.randn(shape), torch.randn(shape[0]) if with_bias else None
    for rows in ((1,), (2,), (33,), (1, 1), (4, 1), (2, 3)):
        x = torch.randn(*rows, shape[1])
        right = F.linear(x, weight, bias)
        torch.testing.assert_close(FixedLinear(weight, bias)(x), right, rtol=1e-4, atol=1e-3)
        rounded = Int8Linear(weight, bias)(x)
        assert (rounded - right).norm() < 0.02 * right.norm()


def test_a_row_of_zeros_in_int8():
    weight = torch.randn(4, 8)
    weight[2] = 0
    assert Int8Linear(weight)(torch.ones(1, 8))[0, 2] == 0


def test_int8_translates():
    """Everyday sentences: nearly all as in 32 bits."""
    texts = ["Where is the station?", "I have a dog.", "She reads a book.", "We are tired."]
    plain, rounded = Translator.load(SHIPPED), Translator.load(SHIPPED, int8=True)
    a, b = plain.translate(texts), rounded.translate(texts)
    assert sum(x == y for x, y in zip(a, b)) >= 3
    assert Translator.load(MINI, int8=True).translate(["the old man sleeps"]) == [
        "der alte Mann schläft"
    ]


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_precisions_come_back(dtype):
    model = make().to(dtype)
    assert pack(model) is model
    with pytest.raises(ValueError, match="int8 is for models on a CPU in float32"):
        pack(model, int8=True)


def test_from_torch_nn():
    """Parts that know no cache are packed, and searched without one."""
    from transformer18.encoder import torch_parts

    model = make(parts=torch_parts())
    src, tgt = torch.randint(4, 60, (2, 5)), torch.randint(4, 60, (2, 4))
    with torch.inference_mode():
        torch.testing.assert_close(pack(model)(src, tgt), model(src, tgt))


def test_packed_twice():
    packed = pack(pack(make()))
    assert len(search_all(packed, [[5, 6]], max_length=4)) == 1


def test_greedy_without_scores():
    model = pack(make())
    ids = sources(4)
    with_scores = search_all(model, ids, beam=1, max_length=15)
    without = search_all(model, ids, beam=1, max_length=15, scores=False)
    for (a,), (b,) in zip(with_scores, without):
        assert a.ids == b.ids and b.log_prob != b.log_prob and b.score != b.score
    wide = beam_search(model, torch.tensor([[5, END]]), beam=2, max_length=5, scores=False)
    assert wide[0][0].log_prob <= 0


@pytest.mark.parametrize("shape", [(400, 16), (5000, 64), (900, 512)])
def test_the_sieve_is_exact(shape):
    """Also for rows that hardly know what they want, and large ones."""
    torch.manual_seed(0)
    weight = torch.randn(shape) / shape[1] ** 0.5
    sieve = Sieve(weight)
    for size in (0.001, 1.0, 30.0):
        for n in (1, 3, 40):
            x = size * torch.randn(n, shape[1])
            x[0] *= 5
            right = F.linear(x, weight)
            assert ((sieve.rough(x) - right).abs() <= sieve.slack(x)).all()
            right[:, [PAD, BEGIN]] = -torch.inf
            best = right.gather(1, sieve(x)[:, None])[:, 0]
            torch.testing.assert_close(best, right.amax(dim=1))


def test_the_sieve_takes_the_first_of_equals_and_refuses_nan():
    weight = torch.randn(300, 8)
    weight[200:210] = weight[77] = 10.0
    x = torch.ones(2, 8)
    assert Sieve(weight)(x).tolist() == [77, 77]
    for bad in (torch.nan, torch.inf):
        x[1, 3] = bad
        with pytest.raises(FloatingPointError, match="not numbers"):
            Sieve(weight)(x)


def test_greedy_search_through_the_sieve(monkeypatch):
    monkeypatch.setattr(packing, "HUGE", 1)
    model = make()
    packed = pack(model)
    assert packed.sieve is not None and pack(model, int8=True).sieve is None
    ids = sources(6)
    options = dict(beam=1, max_length=25)
    right = search_all(model, ids, **options)
    found = search_all(packed, ids, scores=False, **options)
    assert [a.ids for (a,) in found] == [b.ids for (b,) in right]
    with torch.no_grad():
        packed.decoder.blocks[0].add_norm_1.norm.weight.fill_(torch.nan)
    with pytest.raises(FloatingPointError, match="not numbers"):
        search_all(packed, ids, scores=False, **options)
