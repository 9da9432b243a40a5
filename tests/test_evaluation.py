"""BLEU and chrF: values worked out by hand, and what the options do."""

import math

import pytest

from transformer18.evaluation import scores

RIGHT = ["die Katze sieht den kleinen Hund", "der Hund schläft"]


def test_all_right_and_all_wrong():
    best = scores(RIGHT, RIGHT)
    assert best["exact_match"] == 1
    assert math.isclose(best["bleu"], 100) and best["chrf"] == 100
    worst = scores(["x y z w q"] * 2, RIGHT)
    assert worst["exact_match"] == 0 and worst["bleu"] < 3


def test_bleu_by_hand():
    """7 of 8 words; 5 of 6, 3 of 4, 1 of 2 pairs, threes, fours; c = 8, r = 9."""
    hypotheses = ["a b c d e", "f g x"]
    references = ["a b c d h", "f g x y"]
    found = scores(hypotheses, references, tokenize="none")
    shares = (7 / 8) * (5 / 6) * (3 / 4) * (1 / 2)
    right = 100 * math.exp(1 - 9 / 8) * shares**0.25
    assert math.isclose(found["bleu"], right, rel_tol=1e-9)
    assert found["exact_match"] == 0


def test_repeated_words_are_clipped():
    found = scores(["der der der der der"], ["der Hund und der alte Kater"])
    # 2 of 5 words; no pair: smoothed as 1 / (2 · 4), 1 / (4 · 3), 1 / (8 · 2)
    shares = (2 / 5) * (1 / 8) * (1 / 12) * (1 / 16)
    right = 100 * math.exp(1 - 6 / 5) * shares**0.25
    assert math.isclose(found["bleu"], right, rel_tol=1e-9)


def test_signatures():
    plain = scores(RIGHT, RIGHT)
    assert "case:mixed" in plain["bleu_signature"]
    assert "tok:13a" in plain["bleu_signature"]
    assert "version:" in plain["bleu_signature"]
    assert "nc:6" in plain["chrf_signature"]
    cut = scores(RIGHT, RIGHT, tokenize="none", lowercase=True)
    assert "tok:none" in cut["bleu_signature"]
    assert "case:lc" in cut["bleu_signature"]
    assert "case:lc" in cut["chrf_signature"]


def test_text_in_words_is_cut_no_further():
    """13a takes the full stop off `don't.`, none leaves it there."""
    hypothesis, reference = ["a b c don't."], ["a b c don't ."]
    cut = scores(hypothesis, reference)
    words = scores(hypothesis, reference, tokenize="none")
    assert math.isclose(cut["bleu"], 100)
    # 3 of 4 words, 2 of 3 pairs, 1 of 2 threes, no four (smoothed)
    right = (3 / 4 * 2 / 3 * 1 / 2 * 1 / 2) ** 0.25 * math.exp(1 - 5 / 4)
    assert math.isclose(words["bleu"], 100 * right, rel_tol=1e-9)


def test_lowercase():
    capital = ["Die Katze sieht den kleinen Hund", "Der Hund schläft"]
    assert scores(capital, RIGHT)["bleu"] < 90
    found = scores(capital, RIGHT, lowercase=True)
    assert math.isclose(found["bleu"], 100) and found["chrf"] == 100
    assert found["exact_match"] == 0  # case counts there


def test_no_warning_for_text_in_words(capfd):
    lines = ["a b c d ."] * 200
    scores(lines, lines, tokenize="none")
    assert capfd.readouterr() == ("", "")


def test_what_cannot_be_scored():
    with pytest.raises(ValueError, match="1 hypotheses for 2 references"):
        scores(["a"], RIGHT)
    with pytest.raises(ValueError, match="no sentences"):
        scores([], [])
    with pytest.raises(ValueError, match="no tokenize 'words': .*none"):
        scores(RIGHT, RIGHT, tokenize="words")
