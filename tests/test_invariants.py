"""What must hold for any weights: nobody sees the future, padding does
nothing, decoding in steps gives what one pass gives, nothing is NaN."""

import pytest
import torch

from transformer18.build import book_parts, make_transformer
from transformer18.config import TransformerConfig
from transformer18.decoder import greedy
from transformer18.incremental import greedy_search, next_token
from transformer18.loss import label_smoothed_loss
from transformer18.masking import KeyValueCache, padding_mask
from transformer18.multi_head import MultiHeadAttention
from transformer18.transformer import DecoderOnly, EncoderOnly
from transformer18.vocabulary import BEGIN, END, PAD

in_both_orders = pytest.mark.parametrize("norm_first", [False, True])
SIZES = [  # d_model, n_heads, n_layers, d_ff
    (12, 3, 2, 20), (7, 1, 1, 5), (9, 9, 2, 1), (1, 1, 1, 3), (10, 2, 3, 4),
]
in_all_sizes = pytest.mark.parametrize("sizes", SIZES)


def model(sizes=SIZES[0], norm_first=False, kind=None, dropout=0.1, tgt=19):
    torch.manual_seed(0)
    d_model, n_heads, n_layers, d_ff = sizes
    config = TransformerConfig(
        23, tgt, d_model=d_model, n_heads=n_heads, n_layers=n_layers,
        d_ff=d_ff, norm_first=norm_first, dropout=dropout,
    )
    made = kind(config, book_parts()) if kind else make_transformer(config)
    return made.eval()


def ids(rows, columns, high=19, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(4, high, (rows, columns), generator=generator)


@in_both_orders
@in_all_sizes
@pytest.mark.parametrize("training", [False, True])
def test_a_changed_future_leaves_the_past_bit_identical(
    sizes, norm_first, training
):
    net = model(sizes, norm_first).train(training)
    src, tgt = ids(2, 7, 23), ids(2, 6)
    changed = tgt.clone()
    changed[:, 4:] = ids(2, 2, seed=9)
    outs = []
    for target in (tgt, changed):
        torch.manual_seed(5)  # the same dropout in both
        outs.append(net(src, target))
    assert torch.equal(outs[0][:, :4], outs[1][:, :4])
    if sizes[0] > 1:  # layer norm of a single feature is constant
        assert not torch.equal(outs[0][:, 4:], outs[1][:, 4:])


@in_both_orders
@in_all_sizes
def test_padding_changes_nothing_at_real_positions(sizes, norm_first):
    net = model(sizes, norm_first).double()
    src, tgt = ids(1, 5, 23), ids(1, 4)
    alone = net(src, tgt)
    pads = lambda n: torch.full((1, n), PAD)
    padded = net(
        torch.cat([src, pads(3)], 1), torch.cat([tgt, pads(2)], 1)
    )
    assert (padded[:, :4] - alone).abs().max() < 1e-10
    with_longer = net(
        torch.cat([torch.cat([src, pads(3)], 1), ids(1, 8, 23, seed=3)]),
        torch.cat([torch.cat([tgt, pads(2)], 1), ids(1, 6, seed=4)]),
    )
    assert (with_longer[:1, :4] - alone).abs().max() < 1e-10


@in_both_orders
@in_all_sizes
def test_one_pass_equals_steps_equals_cache(sizes, norm_first):
    net = model(sizes, norm_first).double()
    src, tgt = ids(2, 7, 23), ids(2, 6)
    src[1, 4:] = PAD
    mask = padding_mask(src)
    with torch.no_grad():
        memory = net.encode(src, mask)
        once = net.decode(tgt, memory, mask)
        cache, steps, cached = KeyValueCache(6), [], []
        for t in range(6):
            steps.append(net.decode(tgt[:, : t + 1], memory, mask)[:, -1:])
            cached.append(
                net.decode(tgt[:, t : t + 1], memory, mask, cache)
            )
            assert cache.length == t + 1
        uneven = KeyValueCache(10)
        parts = [
            net.decode(tgt[:, a:b], memory, mask, uneven)
            for a, b in [(0, 3), (3, 4), (4, 6)]
        ]
    for other in (steps, cached, parts):
        assert (torch.cat(other, 1) - once).abs().max() < 1e-10


@in_both_orders
def test_decoder_only_model_with_cache(norm_first):
    net = model(norm_first=norm_first, kind=DecoderOnly).double()
    tgt = ids(2, 6)
    cache = KeyValueCache(6)
    with torch.no_grad():
        once = net(tgt)
        parts = [net(tgt[:, a:b], cache) for a, b in [(0, 2), (2, 3), (3, 6)]]
    assert (torch.cat(parts, 1) - once).abs().max() < 1e-10
    changed = tgt.clone()
    changed[:, 3] = 5
    assert torch.equal(net(changed)[:, :3], once[:, :3])


def test_encoder_only_model_sees_both_ways_but_no_padding():
    net = model(kind=EncoderOnly).double()
    src = ids(1, 5, 19)
    changed = src.clone()
    changed[:, 4] = src[:, 4] % 14 + 4
    assert not torch.equal(net(src)[:, 0], net(changed)[:, 0])
    padded = torch.cat([src, torch.full((1, 3), PAD)], 1)
    assert (net(padded)[:, :5] - net(src)).abs().max() < 1e-10


@in_both_orders
def test_greedy_search_equals_greedy_without_cache(norm_first):
    net = model(norm_first=norm_first)
    src = ids(3, 7, 23)
    src[1, 3:] = PAD
    full = greedy(lambda tgt: net(src, tgt)[:, -1], 3, 9)
    assert torch.equal(greedy_search(net, src, 9), full)


def beams_of(net, src, m, tgt):
    """Features of the last token of m hypotheses a sentence, uncached."""
    src = src.repeat_interleave(m, 0)
    return net.features(src, tgt)[:, -1]


def test_cache_with_beams_reorder_and_keep():
    net = model().double()
    m, src = 3, ids(2, 7, 23)
    src[1, 5:] = PAD
    mask = padding_mask(src)
    with torch.no_grad():
        memory = net.encode(src, mask)
        cache = KeyValueCache(8)
        tgt = ids(2 * m, 3, seed=7)
        for t in range(3):
            out = net.decode(tgt[:, t : t + 1], memory, mask, cache)
        expected = beams_of(net, src, m, tgt)
        assert (out[:, 0] - expected).abs().max() < 1e-10

        parents = torch.tensor([1, 1, 0, 3, 5, 5])
        cache.reorder(parents)
        tgt = torch.cat([tgt[parents], ids(2 * m, 1, seed=8)], 1)
        out = net.decode(tgt[:, 3:], memory, mask, cache)
        expected = beams_of(net, src, m, tgt)
        assert (out[:, 0] - expected).abs().max() < 1e-10

        cache.keep(torch.tensor([1]))
        tgt = torch.cat([tgt[m:], ids(m, 1, seed=9)], 1)
        out = net.decode(tgt[:, 4:], memory[1:], mask[1:], cache)
        expected = beams_of(net, src[1:], m, tgt)
        assert (out[:, 0] - expected).abs().max() < 1e-10


def test_cache_is_full():
    cache = KeyValueCache(2)
    owner = torch.nn.Identity()
    keys = torch.zeros(1, 1, 3, 4)
    with pytest.raises(ValueError, match="3 tokens.*cache of 2.*larger"):
        cache.append(owner, keys, keys)


@pytest.mark.parametrize("autocast", [None, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("need_weights", [False, True])
def test_a_fully_masked_row_gives_zero(autocast, need_weights):
    torch.manual_seed(0)
    net = MultiHeadAttention(12, 3)
    x = torch.randn(2, 5, 12, requires_grad=True)
    y = torch.randn(2, 7, 12, requires_grad=True)
    mask = torch.rand(2, 1, 5, 7) > 0.4
    mask[0, 0, 2] = False
    mask[1] = False
    with torch.autocast("cpu", autocast, enabled=autocast is not None):
        out = net(x, y, y, mask=mask, need_weights=need_weights)
        if need_weights:
            out, weights = out
            assert weights.isfinite().all()
            assert (weights[1] == 0).all()
    assert out.isfinite().all()
    assert (out[0, 2] == 0).all() and (out[1] == 0).all()
    assert (out[0, 1] != 0).any()
    out.float().square().sum().backward()
    for grad in [x.grad, y.grad, *(p.grad for p in net.parameters())]:
        assert grad.isfinite().all()
    assert (x.grad[1] == 0).all() and (y.grad[1] == 0).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_source_of_padding_only_under_autocast(dtype):
    net = model().train()
    src = torch.full((2, 4), PAD)
    src[0] = torch.tensor([5, 6, END, PAD])
    labels = torch.tensor([[5, 7, END], [6, END, PAD]])
    with torch.autocast("cpu", dtype):
        features = net.features(src, labels)
        loss, _ = label_smoothed_loss(features, net.output_weight, labels)
    loss.backward()
    assert loss.isfinite()
    assert all(p.grad.isfinite().all() for p in net.parameters())


@in_all_sizes
def test_shortest_input(sizes):
    """Batch 1, one source token, a target that is only begin."""
    net = model(sizes)
    logits = net(torch.tensor([[END]]), torch.tensor([[BEGIN]]))
    assert logits.shape == (1, 1, 19) and logits.isfinite().all()
    assert greedy_search(net, torch.tensor([[END]]), 3).shape[1] <= 3


def test_next_token_runs_only_new_tokens_through_the_decoder():
    net = model()
    lengths = []
    net.decoder.register_forward_pre_hook(
        lambda module, args: lengths.append(args[0].size(1))
    )
    scores = next_token(net, ids(2, 7, 23), 9)
    with torch.no_grad():
        greedy(scores, 2, 9)
    assert set(lengths) == {1}


def test_compile_and_autocast_give_the_same():
    net = model()
    src, tgt = ids(2, 7, 23), ids(2, 6)
    plain = net(src, tgt)
    compiled = torch.compile(net, backend="aot_eager")(src, tgt)
    assert (compiled - plain).abs().max() < 1e-5
    for dtype in (torch.bfloat16, torch.float16):
        with torch.autocast("cpu", dtype):
            assert (net(src, tgt).float() - plain).abs().max() < 0.1


@pytest.mark.parametrize("need_weights", [False, True])
def test_a_mask_of_numbers_is_refused(need_weights):
    """torch would add it to the scores without a word."""
    x = torch.randn(1, 5, 12)
    with pytest.raises(TypeError, match="bool"):
        MultiHeadAttention(12, 3)(
            x, x, x, mask=torch.ones(5, 5), need_weights=need_weights
        )


def test_a_target_for_each_source():
    """One source with three targets would pass for three hypotheses."""
    with pytest.raises(ValueError, match="1 source .* 3 targets"):
        model()(ids(1, 7, 23), ids(3, 5))
