"""The running task is learnt to 99 % from any seed, and the model
that the package has of it is as good as it says."""

import json

import pytest

from transformer18.config import TransformerConfig
from transformer18.runs import (
    MINI_RECIPE,
    MINI_TOKENS,
    judge,
    mini_german_task,
    train_run,
)
from transformer18.translator import MINI, Translator


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_mini_german_is_learnt(seed, tmp_path):
    task, test = mini_german_task(seed)
    known = {source for source, _ in [*task.train, *task.dev]}
    assert not known & {source for source, _ in test} and len(test) == 1000
    config = TransformerConfig.preset("mini", len(task.tokenizer))
    model = train_run(
        tmp_path / "run", task, config, MINI_RECIPE, seed=seed,
        max_tokens=MINI_TOKENS, progress=False,
    )
    assert judge(model, task, test) >= 0.99


def test_the_mini_model_is_as_good_as_its_record():
    story = json.loads((MINI / "run.json").read_text())
    task, test = mini_german_task(story["seed"])
    translator = Translator.load(MINI)
    assert translator.tokenizer == task.tokenizer
    assert judge(translator.model, task, task.dev) == story["best"]["metric"]
    assert judge(translator.model, task, test) >= 0.99
    size = (MINI / "model.safetensors").stat().st_size
    assert size < 1_000_000
