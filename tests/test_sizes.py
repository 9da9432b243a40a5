"""Configuration, parameter counts and the errors for sizes that do not
fit."""

import pytest
import torch

from transformer18.build import make_transformer
from transformer18.config import (
    PRESETS,
    TransformerConfig,
    count_parameters,
    parameter_budget,
)
from transformer18.embedding import TokenEmbedding
from transformer18.multi_head import MultiHeadAttention
from transformer18.position import LearnedPosition, SinusoidalPosition
from transformer18.residual import Residual


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"norm_first": True},
        {"tie_embeddings": False},
        {"tgt_vocab_size": 301},
        {"tgt_vocab_size": 301, "tie_embeddings": False},
    ],
)
def test_formula_and_count_agree(preset, changes):
    config = TransformerConfig.preset(preset, 1003, **changes)
    with torch.device("meta"):
        built = make_transformer(config)
    assert count_parameters(built) == sum(parameter_budget(config).values())


@pytest.mark.parametrize("preset, paper", [("base", 65e6), ("big", 213e6)])
def test_size_of_the_papers_models(preset, paper):
    config = TransformerConfig.preset(preset, 37_000)
    total = sum(parameter_budget(config).values())
    assert abs(total / paper - 1) < 0.04


@pytest.mark.parametrize(
    "field, value, message",
    [
        ("d_model", 10, "d_model 10 is not divisible by n_heads 8"),
        ("d_model", 0, "d_model must be an integer of at least 1, not 0"),
        ("n_layers", -1, "n_layers must be"),
        ("n_layers", True, "n_layers must be an integer of at least 1, not True"),
        ("d_ff", 2.5, "d_ff must be an integer.*2.5"),
        ("dropout", 1.0, r"dropout must lie in \[0, 1\), not 1.0"),
        ("dropout", "0.1", r"dropout must lie in \[0, 1\), not '0.1'"),
        ("tgt_vocab_size", 0, "tgt_vocab_size must be"),
        ("max_length", 0, "max_length must be"),
    ],
)
def test_sizes_that_make_no_model(field, value, message):
    with pytest.raises(ValueError, match=message):
        TransformerConfig(100, **{field: value})


def test_unknown_preset():
    with pytest.raises(ValueError, match="'huge'.*mini, tiny, base, big"):
        TransformerConfig.preset("huge", 100)


def test_heads_that_do_not_divide_the_width():
    with pytest.raises(ValueError, match="d_model 12 .* n_heads 5"):
        MultiHeadAttention(12, 5)


@pytest.mark.parametrize("bad", [-1, 9, 1000])
def test_ids_outside_the_vocabulary(bad):
    embedding = TokenEmbedding(9, 4)
    with pytest.raises(IndexError, match=f"id {bad} .* vocabulary of 9"):
        embedding(torch.tensor([[1, bad]]))


def test_a_sentence_longer_than_the_learned_table():
    position = LearnedPosition(6, 4)
    assert position(torch.zeros(1, 6, 4)).shape == (1, 6, 4)
    with pytest.raises(ValueError, match="7 tokens .* 6 learned positions"):
        position(torch.zeros(1, 7, 4))
    with pytest.raises(ValueError, match="7 tokens"):
        position(torch.zeros(1, 1, 4), start=6)


@pytest.mark.parametrize("d_model", [1, 7, 8])
def test_sinusoids_of_any_width_and_length(d_model):
    position = SinusoidalPosition(d_model, dropout=0.0)
    x = torch.zeros(1, 700, d_model)
    long = position(x)
    fresh = SinusoidalPosition(d_model, dropout=0.0)
    assert torch.equal(fresh(x[:, :1], start=699), long[:, 699:])
    for pos, i in [(0, 0), (3, 0), (699, d_model - 1)]:
        angle = pos / 10_000 ** ((i - i % 2) / d_model)
        value = torch.tensor(angle, dtype=torch.float64)
        value = value.cos() if i % 2 else value.sin()
        assert abs(long[0, pos, i] - value) < 1e-6


def test_residual_needs_equal_shapes():
    with pytest.raises(ValueError, match=r"\(2, 3\) of \(2, 4\)"):
        Residual()(torch.zeros(2, 4), lambda x: x[:, :3])
