"""Named corpora and streams: from folders of texts or tables, a pair at a
time, without a network; the folder comes first."""

import gzip
import json
import sys
import tracemalloc
from collections import Counter

import pytest

from transformer18.batching import pooled_batches
from transformer18.corpus import CORPORA, DATA_VARIABLE, stream_corpus

PAIRS = [(f"sentence {i}", f"Satz {i}") for i in range(50)]


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.delenv(DATA_VARIABLE, raising=False)


def write(path, lines):
    text = "".join(line + "\n" for line in lines)
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "wt", encoding="utf-8") as file:
        file.write(text)


def in_one_column(pairs):
    return [{"translation": {"de": de, "en": en}} for en, de in pairs]


def in_two_columns(pairs):
    return [{"en": en, "de": de} for en, de in pairs]


def write_parquet(path, rows, row_group_size=None):
    pytest.importorskip("datasets")
    import pyarrow
    from pyarrow import parquet

    table = pyarrow.Table.from_pylist(rows)
    parquet.write_table(table, path, row_group_size=row_group_size)


def write_jsonl(path, rows):
    pytest.importorskip("datasets")
    write(path, [json.dumps(row) for row in rows])


# -- texts --------------------------------------------------------------


@pytest.mark.parametrize("ends", [("", ""), (".gz", ".gz"), ("", ".gz")])
def test_two_texts(tmp_path, monkeypatch, ends):
    (tmp_path / "wmt14").mkdir()
    for side, language in enumerate(("en", "de")):
        path = tmp_path / "wmt14" / f"train.{language}{ends[side]}"
        write(path, [pair[side] for pair in PAIRS])
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path))
    assert list(stream_corpus("wmt14", "train")) == PAIRS
    assert list(stream_corpus("wmt14")) == PAIRS
    back = stream_corpus("wmt14", source="de", target="en")
    assert list(back) == [(de, en) for en, de in PAIRS]
    assert list(stream_corpus(str(tmp_path / "wmt14"))) == PAIRS


@pytest.mark.parametrize("end", ["", ".gz"])
def test_tsv(tmp_path, end):
    write(tmp_path / f"train.tsv{end}", map("\t".join, PAIRS))
    assert list(stream_corpus(str(tmp_path))) == PAIRS
    assert list(stream_corpus(tmp_path)) == PAIRS


@pytest.mark.parametrize("file", ["dev", "valid", "validation"])
@pytest.mark.parametrize("asked", ["dev", "valid", "validation"])
def test_the_names_of_the_validation_set(tmp_path, file, asked):
    write(tmp_path / f"{file}.tsv", map("\t".join, PAIRS))
    assert list(stream_corpus(tmp_path, asked)) == PAIRS


def test_a_split_of_another_name(tmp_path):
    write(tmp_path / "test_2017.tsv", map("\t".join, PAIRS))
    assert list(stream_corpus(tmp_path, "test_2017")) == PAIRS


def test_what_is_not_usable_is_counted(tmp_path):
    write(tmp_path / "train.tsv", ["a\tb", "a\t ", "aaaaaa\tb", "c\td"])
    dropped = Counter()
    found = list(stream_corpus(tmp_path, max_length=5, dropped=dropped))
    assert found == [("a", "b"), ("c", "d")]
    assert dropped == {"empty": 1, "too long": 1}


def test_texts_are_read_as_they_are_used(tmp_path):
    """The fault in line 40,000 is not seen before one gets there."""
    good = [f"line {i}" for i in range(40_000)]
    write(tmp_path / "train.en", good)
    write(tmp_path / "train.de", good[:-1])
    dropped = Counter()
    pairs = stream_corpus(tmp_path, dropped=dropped)
    assert next(pairs) == ("line 0", "line 0")
    with pytest.raises(ValueError, match="40000 lines but .*de has 39999"):
        list(pairs)
    assert not dropped  # a line without partner is no pair


def test_memory_is_bounded(tmp_path):
    """Ten megabytes of text, read in less than one."""
    write(tmp_path / "train.tsv", (f"{i:050}\t{i:050}" for i in range(100_000)))
    tracemalloc.start()
    try:
        assert sum(1 for _ in stream_corpus(tmp_path)) == 100_000
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000 < (tmp_path / "train.tsv").stat().st_size / 10


# -- tables -------------------------------------------------------------


@pytest.mark.parametrize("schema", [in_one_column, in_two_columns])
@pytest.mark.parametrize(
    "name, writer",
    [
        ("train.parquet", write_parquet),
        ("train-00000-of-00001.parquet", write_parquet),
        ("train.jsonl", write_jsonl),
        ("train.jsonl.gz", write_jsonl),
    ],
)
def test_tables(tmp_path, monkeypatch, schema, name, writer):
    (tmp_path / "wmt14").mkdir()
    writer(tmp_path / "wmt14" / name, schema(PAIRS))
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path))
    assert list(stream_corpus("wmt14", "train")) == PAIRS
    back = stream_corpus("wmt14", source="de", target="en")
    assert list(back) == [(de, en) for en, de in PAIRS]


def test_tables_in_parts_are_read_in_order(tmp_path):
    for part in range(3):
        rows = in_one_column(PAIRS[10 * part : 10 * part + 10])
        write_parquet(tmp_path / f"train-0000{part}-of-00003.parquet", rows)
    assert list(stream_corpus(tmp_path)) == PAIRS[:30]


def test_an_empty_cell_is_an_empty_side(tmp_path):
    write_jsonl(tmp_path / "test.jsonl", in_two_columns([*PAIRS, ("a", None)]))
    dropped = Counter()
    assert list(stream_corpus(tmp_path, "test", dropped=dropped)) == PAIRS
    assert dropped == {"empty": 1}


def test_a_stream_of_a_table_is_read_pool_by_pool(tmp_path):
    many = [(f"sentence {i}", f"Satz {i}") for i in range(5000)]
    write_parquet(tmp_path / "train.parquet", in_one_column(many), 100)
    read = []

    def ids():
        for en, de in stream_corpus(tmp_path):
            read.append(en)
            yield [len(word) for word in en.split()], [len(de), 5]

    batches = pooled_batches(ids(), max_tokens=90, seed=0, pool=300)
    first = next(batches)
    assert len(read) == 300 and len(first.labels) == 30
    assert 30 + sum(len(batch.labels) for batch in batches) == 5000
    assert read == [en for en, _ in many]


def test_a_wrong_language(tmp_path):
    write_jsonl(tmp_path / "train.jsonl", in_one_column(PAIRS))
    pairs = stream_corpus(tmp_path, source="fr")
    with pytest.raises(ValueError, match="train.jsonl has the columns .*not fr"):
        next(pairs)


@pytest.mark.parametrize("name", ["train.parquet", "train.jsonl"])
def test_damaged_tables(tmp_path, name):
    pytest.importorskip("datasets")
    (tmp_path / name).write_bytes(b'{"en": "a", \x00 this is no table\n' * 20)
    with pytest.raises(ValueError, match=f"{name} cannot be read"):
        list(stream_corpus(tmp_path))


# -- the hub, and what is wrong ------------------------------------------


def test_the_table_of_corpora():
    assert CORPORA["multi30k"].hub_id == "bentrevett/multi30k"
    assert CORPORA["wmt14"].hub_id == "wmt/wmt14"
    assert CORPORA["wmt14"].config == "de-en"
    assert all(corpus.licence for corpus in CORPORA.values())


@pytest.mark.parametrize("name", CORPORA)
def test_a_corpus_of_the_hub(monkeypatch, name):
    """What the library is asked for, and how its rows are read."""
    asked, given = [], iter(in_two_columns(PAIRS))

    def load_dataset(*where, **options):
        asked.append((where, options))
        return given

    datasets = type(sys)("datasets")
    datasets.load_dataset = load_dataset
    monkeypatch.setitem(sys.modules, "datasets", datasets)
    pairs = stream_corpus(name, "dev")
    assert next(pairs) == PAIRS[0] and next(given)["en"] == PAIRS[1][0]
    corpus = CORPORA[name]
    ((where, options),) = asked
    assert where == (corpus.hub_id, corpus.config)
    assert options == {"split": "validation", "streaming": True}


@pytest.mark.parametrize("good", [0, 3])
def test_a_network_that_fails_at_once_or_later(monkeypatch, good):
    def rows():
        yield from in_one_column(PAIRS[:good])
        raise OSError("a long story")

    datasets = type(sys)("datasets")
    datasets.load_dataset = lambda *where, **options: rows()
    monkeypatch.setitem(sys.modules, "datasets", datasets)
    pairs = stream_corpus("wmt14", "test")
    assert [next(pairs) for _ in range(good)] == PAIRS[:good]
    with pytest.raises(ConnectionError, match="corpus wmt14 .*test.en") as found:
        next(pairs)
    assert DATA_VARIABLE in str(found.value)
    assert "\n" not in str(found.value)


def test_no_network():
    """The library itself, told to stay off the network."""
    pytest.importorskip("datasets")
    import datasets.config
    import huggingface_hub.constants as constants

    if not (constants.HF_HUB_OFFLINE or datasets.config.HF_HUB_OFFLINE):
        pytest.skip("the library was imported with a network")
    with pytest.raises(ConnectionError, match="cannot get the corpus multi30k"):
        next(stream_corpus("multi30k", "test"))


def test_no_library(tmp_path, monkeypatch):
    (tmp_path / "train.parquet").touch()
    monkeypatch.setitem(sys.modules, "datasets", None)
    for name in ("wmt14", tmp_path):
        with pytest.raises(ImportError, match=r'"transformer18\[corpora\]"'):
            next(stream_corpus(name))


def test_unknown_names(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="no corpus 'nowhere': .*multi30k, wmt14"):
        stream_corpus("nowhere")
    with pytest.raises(ValueError, match="no split 'best': give train"):
        stream_corpus("wmt14", "best")
    with pytest.raises(FileNotFoundError, match="no split 'test' in .*test.en and test.fr"):
        stream_corpus(tmp_path, "test", target="fr")
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path / "nowhere"))
    with pytest.raises(ValueError, match="TRANSFORMER18_DATA is .*nowhere, which is no folder"):
        stream_corpus("wmt14")


def test_a_folder_of_ones_own_in_the_data_folder(tmp_path, monkeypatch):
    (tmp_path / "mine").mkdir()
    write(tmp_path / "mine" / "train.tsv", map("\t".join, PAIRS))
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path))
    assert list(stream_corpus("mine")) == PAIRS
