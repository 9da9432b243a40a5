"""Every part that attends, and the whole, equal torch.nn under the same
weights. All sizes differ, so that swapped axes show."""

import copying
import pytest
import torch
from torch import nn

from transformer18.build import book_parts, make_transformer
from transformer18.config import TransformerConfig
from transformer18.decoder import DecoderBlock
from transformer18.encoder import Encoder, EncoderBlock
from transformer18.multi_head import MultiHeadAttention

B, S, T, H = 2, 7, 5, 3
EXACT = [(torch.float32, 1e-5), (torch.float64, 1e-10)]
in_both_precisions = pytest.mark.parametrize("dtype, tolerance", EXACT)
in_both_orders = pytest.mark.parametrize("norm_first", [False, True])


def small(norm_first=False, **changes):
    sizes = dict(d_model=12, n_heads=H, n_layers=3, d_ff=20)
    return TransformerConfig(
        23, 19, norm_first=norm_first, **(sizes | changes)
    )


def shaken(module, dtype):
    """Every weight drawn at random: gains of 1 and biases of 0 hide
    mistakes."""
    torch.manual_seed(1)
    with torch.no_grad():
        for weight in module.parameters():
            weight.add_(0.3 * torch.randn_like(weight))
    return module.to(dtype).eval()


def hidden_keys():
    """Padding of a batch of two: True = hidden, as torch.nn has it."""
    hidden = torch.zeros(B, S, dtype=torch.bool)
    hidden[1, 4:] = True
    return hidden


def close(ours, theirs, tolerance):
    assert ours.shape == theirs.shape
    assert (ours - theirs).abs().max() <= tolerance


@in_both_precisions
@pytest.mark.parametrize("d_model, n_heads", [(12, 3), (7, 1), (15, 5), (6, 6)])
@pytest.mark.parametrize("masked", [False, True])
def test_multi_head_attention(d_model, n_heads, masked, dtype, tolerance):
    ours = shaken(MultiHeadAttention(d_model, n_heads), dtype)
    theirs = nn.MultiheadAttention(d_model, n_heads, batch_first=True)
    theirs = theirs.to(dtype).eval()
    copying.copy_attention(ours, theirs)
    query = torch.randn(B, T, d_model, dtype=dtype)
    key = torch.randn(B, S, d_model, dtype=dtype)
    value = torch.randn(B, S, d_model, dtype=dtype)
    hidden = hidden_keys() if masked else None
    mask = ~hidden[:, None, None, :] if masked else None
    for q, k, v in [(query, key, value), (query, key, key)]:
        out, weights = ours(q, k, v, mask=mask, need_weights=True)
        expected, expected_weights = theirs(
            q, k, v, key_padding_mask=hidden, average_attn_weights=False
        )
        close(out, expected, tolerance)
        close(weights, expected_weights, tolerance)
        close(ours(q, k, v, mask=mask), expected, tolerance)


@in_both_precisions
@in_both_orders
def test_encoder(norm_first, dtype, tolerance):
    config = small(norm_first)
    ours = shaken(Encoder(config, book_parts()), dtype)
    layer = nn.TransformerEncoderLayer(
        12, H, 20, 0.1, batch_first=True, norm_first=norm_first
    )
    norm = nn.LayerNorm(12) if norm_first else None
    theirs = nn.TransformerEncoder(
        layer, 3, norm, enable_nested_tensor=False
    ).to(dtype).eval()
    for mine, other in zip(ours.blocks, theirs.layers):
        copying.copy_encoder_block(mine, other)
    if norm_first:
        copying.copy_linear(ours.final_norm, theirs.norm)
    x = torch.randn(B, S, 12, dtype=dtype)
    hidden = hidden_keys()
    out = ours(x, ~hidden[:, None, None, :])
    expected = theirs(x, src_key_padding_mask=hidden)
    close(out[~hidden], expected[~hidden], tolerance)


@in_both_precisions
@in_both_orders
def test_blocks(norm_first, dtype, tolerance):
    config, parts = small(norm_first), book_parts()
    kind = dict(batch_first=True, norm_first=norm_first)
    x = torch.randn(B, T, 12, dtype=dtype)
    ours = shaken(EncoderBlock(config, parts), dtype)
    theirs = nn.TransformerEncoderLayer(12, H, 20, 0.1, **kind)
    theirs = theirs.to(dtype).eval()
    copying.copy_encoder_block(ours, theirs)
    close(ours(x), theirs(x), tolerance)

    ours = shaken(DecoderBlock(config, parts), dtype)
    theirs = nn.TransformerDecoderLayer(12, H, 20, 0.1, **kind)
    theirs = theirs.to(dtype).eval()
    copying.copy_decoder_block(ours, theirs)
    memory = torch.randn(B, S, 12, dtype=dtype)
    hidden = hidden_keys()
    causal = torch.ones(T, T, dtype=torch.bool).tril()
    out = ours(x, memory, causal, ~hidden[:, None, None, :])
    expected = theirs(
        x, memory, tgt_mask=~causal, memory_key_padding_mask=hidden
    )
    close(out, expected, tolerance)


@in_both_precisions
@in_both_orders
def test_whole_model(norm_first, dtype, tolerance):
    torch.manual_seed(2)
    ours = shaken(make_transformer(small(norm_first)), dtype)
    theirs = nn.Transformer(
        12, H, 3, 3, 20, 0.1, batch_first=True, norm_first=norm_first
    ).to(dtype).eval()
    copying.copy_transformer(ours, theirs)
    hidden = hidden_keys()
    src_ids = torch.randint(4, 23, (B, S)).masked_fill(hidden, 0)
    tgt_ids = torch.randint(4, 19, (B, T))
    causal = nn.Transformer.generate_square_subsequent_mask(T, dtype=dtype)
    expected = theirs(
        ours.position(ours.src_embedding(src_ids)),
        ours.position(ours.tgt_embedding(tgt_ids)),
        tgt_mask=causal,
        src_key_padding_mask=hidden,
        memory_key_padding_mask=hidden,
    )
    close(ours.features(src_ids, tgt_ids), expected, tolerance)
    logits = expected @ ours.tgt_embedding.weight.T
    close(ours(src_ids, tgt_ids), logits, tolerance * 10)


def test_gradients_of_the_whole_model():
    """In train mode without dropout, so do all gradients."""
    ours = shaken(make_transformer(small(dropout=0.0)), torch.float64)
    theirs = nn.Transformer(12, H, 3, 3, 20, 0.0, batch_first=True).double()
    copying.copy_transformer(ours, theirs)
    ours.train(), theirs.train()
    src = torch.randn(B, S, 12, dtype=torch.float64)
    tgt = torch.randn(B, T, 12, dtype=torch.float64)
    causal = torch.ones(T, T, dtype=torch.bool).tril()
    ours.decoder(tgt, ours.encoder(src), causal).square().sum().backward()
    theirs(src, tgt, tgt_mask=~causal).square().sum().backward()
    pairs = zip(ours.decoder.blocks, theirs.decoder.layers)
    for mine, other in pairs:
        close(
            mine.cross_attention.projections.weight.grad.flatten(0, 1),
            other.multihead_attn.in_proj_weight.grad, 1e-10,
        )
        close(
            mine.feed_forward.expand.weight.grad,
            other.linear1.weight.grad, 1e-10,
        )
        close(mine.add_norm_3.norm.bias.grad, other.norm3.bias.grad, 1e-10)
    for mine, other in zip(ours.encoder.blocks, theirs.encoder.layers):
        close(
            mine.self_attention.projections.weight.grad.flatten(0, 1),
            other.self_attn.in_proj_weight.grad, 1e-10,
        )
