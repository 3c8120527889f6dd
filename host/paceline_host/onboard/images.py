# SPDX-License-Identifier: Apache-2.0
"""Firmware images: which chip one is for, by its own bytes. Pure but for reading the file.

UF2 (its blocks name a family), ESP (its header names a chip), ELF (its header names a machine).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

from paceline import foreign
from paceline.errors import DataError, StorageError

MOST_BYTES = 64 << 20  # above the flash of any of these chips

_UF2_BLOCK = struct.Struct("<8I476sI")
_UF2_BEGIN, _UF2_SECOND, _UF2_END = 0x0A324655, 0x9E5D5157, 0x0AB16F30
_UF2_HAS_FAMILY = 0x2000
UF2_ANY = 0xE48BFF57  # for no chip in particular: the block that works around an erratum of the RP2350
UF2_FAMILIES = {
    0xE48BFF56: "rp2040", 0xE48BFF59: "rp2350", 0xE48BFF5A: "rp2350", 0xE48BFF5B: "rp2350",  # Arm, RISC-V, not secure
}  # fmt: skip
_ESP_MAGIC, _ESP_HEADER = 0xE9, struct.Struct("<BBBBIBBBBH")  # the last: chip
ESP_CHIPS = {
    0: "esp32", 2: "esp32s2", 5: "esp32c3", 9: "esp32s3", 12: "esp32c2", 13: "esp32c6", 16: "esp32h2", 18: "esp32p4",
    20: "esp32c61", 23: "esp32c5",
}  # fmt: skip
_ELF_HEADER = struct.Struct("<4sBB10sHH")
_ELF_32_BITS, _ELF_LITTLE, _ELF_PROGRAM = 1, 1, 2
ELF_MACHINES = {40: "arm", 243: "riscv"}
# Of chips for SWD and JTAG, the instruction set by how the maker's names begin.
ELF_CHIPS = {
    "stm32": "arm", "nrf": "arm", "rp2": "arm", "atsam": "arm", "lpc": "arm", "cortex": "arm", "mps2": "arm",
    "gd32vf": "riscv", "gd32f": "arm", "ch32v": "riscv", "esp32c": "riscv", "esp32h": "riscv", "rv32": "riscv",
}  # fmt: skip


@dataclass(frozen=True)
class Image:
    """A firmware's file. `chip`: for which it is; of an ELF the instruction set alone."""

    path: Path
    kind: str  # uf2, esp, elf
    chip: str
    data: bytes


def read_image(path: Path) -> Image:
    """Read an image. Raises StorageError or DataError, one sentence."""
    try:
        with foreign.opened(path) as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise StorageError(f"--image {path}: it cannot be read: {error.strerror or error}") from None
    if len(data) > MOST_BYTES:
        raise DataError(f"--image {path}: it has more than {MOST_BYTES >> 20} MiB, and no chip so much flash")
    if data[:4] == _UF2_BEGIN.to_bytes(4, "little"):
        return Image(path, "uf2", _uf2_chip(path, data), data)
    if data[:4] == b"\x7fELF":
        return Image(path, "elf", _elf_machine(path, data), data)
    if data[:1] == bytes((_ESP_MAGIC,)) and len(data) >= _ESP_HEADER.size:
        *_, number = _ESP_HEADER.unpack_from(data)
        if number not in ESP_CHIPS:
            raise DataError(f"--image {path}: an ESP image for a chip of number {number}, which is not known here")
        return Image(path, "esp", ESP_CHIPS[number], data)
    raise DataError(
        f"--image {path}: it is no firmware that is known here: expected UF2 (RP2350), an ESP image (esptool's) or ELF"
    )


def check_chip(image: Image, chip: str) -> None:
    """Refuse an image that is for another chip than the one that was named. Raises DataError."""
    wanted = chip.lower().replace("-", "").replace("_", "")
    if image.kind == "elf":
        sets = {machine for begin, machine in ELF_CHIPS.items() if wanted.startswith(begin)}
        if sets and image.chip not in sets:
            raise DataError(f"--image {image.path} is machine code for {image.chip}, and --chip {chip} is {sets.pop()}")
    elif wanted != image.chip:
        raise DataError(
            f"--image {image.path} is for {image.chip}, and --chip says {chip}: take the image for that chip"
        )


def _uf2_chip(path: Path, data: bytes) -> str:
    """Every block must be whole, and those that name a chip's family must name one chip."""
    chips, whole = set(), len(data) % _UF2_BLOCK.size == 0
    for at in range(0, len(data) - _UF2_BLOCK.size + 1, _UF2_BLOCK.size):
        begin, second, flags, *_, family, _, end = _UF2_BLOCK.unpack_from(data, at)
        whole = whole and (begin, second, end) == (_UF2_BEGIN, _UF2_SECOND, _UF2_END)
        if family != UF2_ANY:
            chips.add(UF2_FAMILIES.get(family, f"family 0x{family:08x}") if flags & _UF2_HAS_FAMILY else "no family")
    if not whole:
        raise DataError(f"--image {path}: a UF2 file that is cut short or damaged; fetch or build it anew")
    if len(chips) != 1 or not chips <= set(UF2_FAMILIES.values()):
        told = ", ".join(sorted(chips)) or "no chip"
        raise DataError(f"--image {path}: a UF2 file for {told}; expected one for rp2350 or rp2040 alone")
    return chips.pop()


def _elf_machine(path: Path, data: bytes) -> str:
    if len(data) >= _ELF_HEADER.size:
        _, bits, order, _, kind, machine = _ELF_HEADER.unpack_from(data)
        if (bits, order, kind) == (_ELF_32_BITS, _ELF_LITTLE, _ELF_PROGRAM) and machine in ELF_MACHINES:
            return ELF_MACHINES[machine]
    raise DataError(f"--image {path}: an ELF file, but no program for a 32-bit Arm or RISC-V microcontroller")
