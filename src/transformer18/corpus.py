import gzip
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


# ---
def read_lines(path: str | Path) -> Iterator[str]:
    """The lines of a UTF-8 text file, plain or gzip (by its name, .gz).

    Raises FileNotFoundError for no such file and ValueError, naming file
    and line, for bytes that are no UTF-8 or a damaged gzip file.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no file {path}: check the path")
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rb") as file:
        number, code = 0, "utf-8-sig"  # the first line may have a mark
        while line := next_line(file, path):
            number += 1
            try:
                text = line.decode(code)
            except UnicodeDecodeError as error:
                raise ValueError(
                    f"{path}, line {number} is not UTF-8 (byte "
                    f"{error.object[error.start]:#04x} at place "
                    f"{error.start}): convert the file to UTF-8"
                ) from None
            code = "utf-8"
            yield text.rstrip("\r\n")


def next_line(file, path: Path) -> bytes:
    try:
        return file.readline()
    except (EOFError, gzip.BadGzipFile, gzip.zlib.error) as error:
        raise ValueError(
            f"{path} is no whole gzip file ({error}): get it again"
        ) from None


# ---
@dataclass(frozen=True)
class Corpus:
    """Sentence pairs: `pairs` (source, target), and `dropped`, how many
    pairs were left out because one side was empty.
    """

    pairs: list[tuple[str, str]]
    dropped: int = 0

    def __len__(self) -> int:
        return len(self.pairs)


# ---
def read_corpus(source: str | Path, target: str | Path | None = None):
    """Read parallel text into a `Corpus`.

    One file: a pair a line, source TAB target (further columns are left
    out). Two files: line n of one translates line n of the other. Plain
    or gzip, UTF-8.

    Raises FileNotFoundError; ValueError, naming file and line, for bad
    UTF-8, a line without TAB, files of unequal length or without pairs.
    """
    tsv = target is None
    pairs = split_tsv(source) if tsv else aligned(source, target)
    kept, dropped = [], 0
    for src, tgt in pairs:
        if src.strip() and tgt.strip():
            kept.append((src.strip(), tgt.strip()))
        else:
            dropped += 1
    if not kept:
        names = source if tsv else f"{source} and {target}"
        raise ValueError(f"no sentence pairs in {names}: give others")
    return Corpus(kept, dropped)


# ---
def split_tsv(path: str | Path) -> Iterator[tuple[str, str]]:
    """(source, target) of every line of a TSV file."""
    for number, line in enumerate(read_lines(path), start=1):
        if not line:
            continue
        columns = line.split("\t")
        if len(columns) < 2:
            raise ValueError(
                f"{path}, line {number} has no TAB: write a pair as "
                "source TAB target, or give two files"
            )
        yield columns[0], columns[1]


def aligned(
    source: str | Path, target: str | Path
) -> Iterator[tuple[str, str]]:
    """(source, target) of line n of both files, for every n."""
    src, tgt = list(read_lines(source)), list(read_lines(target))
    if len(src) != len(tgt):
        raise ValueError(
            f"{source} has {len(src)} lines but {target} has {len(tgt)}: "
            "line n of one must translate line n of the other"
        )
    yield from zip(src, tgt, strict=True)
