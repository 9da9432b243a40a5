#!/usr/bin/env bash
# The full model on one GPU, in nine minutes and from start to finish:
#
#     benchmarks/gpu_full_model.sh gpu/report            on a machine with a GPU
#     benchmarks/gpu_full_model.sh --dry-run gpu/dry    the same code on a CPU
#
# It needs no network. Lay into gpu/, which git ignores:
#
#     gpu/data/multi30k/    train, valid, test_2016_flickr: NAME.en, NAME.de (or .gz),
#                           lower-cased, normalised, tokenised
#     gpu/data/tatoeba/     train.tsv, dev.tsv, test.tsv (or .gz): English TAB German
#     gpu/wheels/           what `pip download` gives for the package's needs but torch
#
# Started again with the same folder it goes on where it was stopped. Compiling
# takes minutes the first time; the programs stay in that folder, too. With
# --runs tatoeba (or multi30k) all of the time goes to one of the two runs.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

PYTHON="${PYTHON:-python3}"
export PYTHONPATH="$PWD/src${PYTHONPATH:+:$PYTHONPATH}"
if [ -d gpu/wheels ]; then
    "$PYTHON" -m pip install --quiet --no-index --no-deps gpu/wheels/*.whl
fi
exec "$PYTHON" benchmarks/gpu_full_model.py "$@"
