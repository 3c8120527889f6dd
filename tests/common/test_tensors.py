# SPDX-License-Identifier: Apache-2.0
"""Laws of the tensor manifest."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.tensors import ALIGNMENT, ITEM_BYTES, Manifest, Role

Entry = tuple[str, str, tuple[int, ...], Role]

ROLES: st.SearchStrategy[Role] = st.sampled_from(["parameter", "buffer"])
ENTRIES: st.SearchStrategy[list[Entry]] = st.lists(
    st.tuples(
        st.text(min_size=1, max_size=12),
        st.sampled_from(sorted(ITEM_BYTES)),
        st.lists(st.integers(1, 9), max_size=4).map(tuple),
        ROLES,
    ),
    min_size=1,
    max_size=12,
    unique_by=lambda entry: entry[0],
)


@given(ENTRIES)
def test_tensors_are_aligned_in_order_and_never_overlap(entries: list[Entry]) -> None:
    manifest = Manifest.build(entries)
    end = 0
    for spec, (name, dtype, shape, role) in zip(manifest.tensors, entries, strict=True):
        assert (spec.name, spec.dtype, spec.shape, spec.role) == (name, dtype, shape, role)
        assert spec.offset % ALIGNMENT == 0
        assert end <= spec.offset < end + ALIGNMENT
        assert spec.nbytes == spec.items * ITEM_BYTES[dtype]
        end = spec.offset + spec.nbytes
    assert end <= manifest.nbytes < end + ALIGNMENT
    assert manifest.nbytes % ALIGNMENT == 0


@given(ENTRIES)
def test_a_manifest_survives_its_text(entries: list[Entry]) -> None:
    manifest = Manifest.build(entries)
    assert Manifest.from_json(manifest.to_json()) == manifest
    assert Manifest.from_json(manifest.to_json()).digest() == manifest.digest()


BASE: list[Entry] = [("a", "float32", (2, 3), "parameter"), ("b", "int64", (), "buffer")]


@pytest.mark.parametrize(
    "other",
    [
        [("c", "float32", (2, 3), "parameter"), BASE[1]],
        [("a", "int32", (2, 3), "parameter"), BASE[1]],
        [("a", "float32", (3, 2), "parameter"), BASE[1]],
        [("a", "float32", (2, 3), "buffer"), BASE[1]],
        [BASE[1], BASE[0]],
        [BASE[0]],
    ],
    ids=["name", "dtype", "shape", "role", "order", "number"],
)
def test_any_difference_changes_the_digest(other: list[Entry]) -> None:
    assert Manifest.build(other).digest() != Manifest.build(BASE).digest()


@pytest.mark.parametrize(
    "entries",
    [
        [],
        [BASE[0], BASE[0]],
        [("a", "complex64", (1,), "parameter")],
        [("a", "float32", (0,), "parameter")],
        [("a", "float64", (1 << 20, 1 << 20), "parameter")],
    ],
    ids=["empty", "same name twice", "unknown dtype", "nothing in it", "far too large"],
)
def test_impossible_models_are_refused(entries: list[Entry]) -> None:
    with pytest.raises(ValueError, match=r".+"):
        Manifest.build(entries)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[1]",
        '[{"name":"a"}]',
        '[{"name":1,"dtype":"float32","shape":[1],"role":"parameter"}]',
        '[{"name":"a","dtype":"float32","shape":["1"],"role":"parameter"}]',
        '[{"name":"a","dtype":"float32","shape":[true],"role":"parameter"}]',
        '[{"name":"a","dtype":"float32","shape":[1],"role":"weight"}]',
        '[{"name":"a","dtype":"float32","shape":[-1],"role":"buffer"}]',
        "[" * 5000,
    ],
)
def test_text_that_is_no_manifest_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        Manifest.from_json(text)


def test_a_view_is_the_bytes_of_its_tensor_and_no_copy() -> None:
    manifest = Manifest.build(BASE)
    model = bytearray(manifest.nbytes)
    manifest.view(model, manifest["b"])[:] = b"12345678"
    assert bytes(model) == bytes(32) + b"12345678" + bytes(8)  # 24 bytes of a, padded to 32
    with pytest.raises(ValueError, match="48 bytes, the buffer 47"):
        manifest.view(bytes(47), manifest["a"])
    with pytest.raises(KeyError):
        manifest["c"]


def test_importing_it_loads_neither_numpy_nor_torch() -> None:
    code = "import sys, paceline.tensors; sys.exit(bool({'numpy', 'torch'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
