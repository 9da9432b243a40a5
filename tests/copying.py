"""Copy the weights of the book's parts into those of torch.nn."""

import torch


@torch.no_grad()
def copy_attention(ours, theirs):
    """MultiHeadAttention -> nn.MultiheadAttention; its biases become 0."""
    theirs.in_proj_weight.copy_(ours.projections.weight.flatten(0, 1))
    theirs.out_proj.weight.copy_(ours.output.weight)
    for bias in (theirs.in_proj_bias, theirs.out_proj.bias):
        if bias is not None:
            bias.zero_()


@torch.no_grad()
def copy_linear(ours, theirs):
    theirs.weight.copy_(ours.weight)
    theirs.bias.copy_(ours.bias)


def copy_encoder_block(ours, theirs):
    copy_attention(ours.self_attention, theirs.self_attn)
    copy_linear(ours.feed_forward.expand, theirs.linear1)
    copy_linear(ours.feed_forward.contract, theirs.linear2)
    copy_linear(ours.add_norm_1.norm, theirs.norm1)
    copy_linear(ours.add_norm_2.norm, theirs.norm2)


def copy_decoder_block(ours, theirs):
    copy_attention(ours.self_attention, theirs.self_attn)
    copy_attention(ours.cross_attention, theirs.multihead_attn)
    copy_linear(ours.feed_forward.expand, theirs.linear1)
    copy_linear(ours.feed_forward.contract, theirs.linear2)
    copy_linear(ours.add_norm_1.norm, theirs.norm1)
    copy_linear(ours.add_norm_2.norm, theirs.norm2)
    copy_linear(ours.add_norm_3.norm, theirs.norm3)


def copy_transformer(ours, theirs):
    """The two stacks; in post-norm the paper has no final norms, so
    those of nn.Transformer are taken out."""
    for mine, other in zip(ours.encoder.blocks, theirs.encoder.layers):
        copy_encoder_block(mine, other)
    for mine, other in zip(ours.decoder.blocks, theirs.decoder.layers):
        copy_decoder_block(mine, other)
    if ours.config.norm_first:
        copy_linear(ours.encoder.final_norm, theirs.encoder.norm)
        copy_linear(ours.decoder.final_norm, theirs.decoder.norm)
    else:
        theirs.encoder.norm = theirs.decoder.norm = None
