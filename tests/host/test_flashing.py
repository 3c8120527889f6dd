# SPDX-License-Identifier: Apache-2.0
"""`paceline boards flash`: images for another chip are refused, ports that will not do are named, copies are real.

The makers' tools are not run here, and there is no board: small programs of their names note how they are called.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from paceline.errors import DataError, LinkError, StorageError
from paceline_host.cli import main
from paceline_host.onboard import images
from paceline_host.onboard.flashing import copy, make_plan
from paceline_host.onboard.images import read_image

RP2350, RP2350_RISCV, RP2040, ANY = 0xE48BFF59, 0xE48BFF5A, 0xE48BFF56, 0xE48BFF57
C3, C6 = 5, 13
ARM, RISCV, X86 = 40, 243, 62


def uf2(*families: int, flags: int = 0x2000) -> bytes:
    n = len(families)
    return b"".join(
        struct.pack("<8I", 0x0A324655, 0x9E5D5157, flags, 0x10000000 + 256 * k, 256, k, n, family)
        + bytes(476)
        + struct.pack("<I", 0x0AB16F30)
        for k, family in enumerate(families)
    )


def esp(chip: int) -> bytes:
    return struct.pack("<BBBBIBBBBH", 0xE9, 1, 2, 0, 0x42000000, 0xEE, 0, 0, 0, chip) + bytes(40)


def elf(machine: int, bits: int = 1, kind: int = 2) -> bytes:
    return b"\x7fELF" + bytes((bits, 1)) + bytes(10) + struct.pack("<HH", kind, machine) + bytes(40)


def written(folder: Path, data: bytes, name: str = "meter.img") -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


@contextmanager
def serial_line() -> Iterator[str]:
    far, near = os.openpty()
    try:
        yield os.ttyname(near)
    finally:
        os.close(far)
        os.close(near)


def bootloader(folder: Path, board: str = "RP2350") -> Path:
    folder.mkdir()
    (folder / "INFO_UF2.TXT").write_text(f"UF2 Bootloader v1.0\r\nModel: Raspberry Pi\r\nBoard-ID: {board}\r\n")
    return folder


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Path]:
    """Return a function (name, what it does in sh) -> the file in which the tool notes its arguments, a line a call."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")

    def make(name: str, does: str) -> Path:
        log = tmp_path / f"{name}.log"
        path = folder / name
        path.write_text(f'#!/bin/sh\necho "$*" >> {log}\n{does}\n')
        path.chmod(0o755)
        return log

    return make


# Images ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "kind", "chip"),
    [
        (uf2(RP2350, RP2350), "uf2", "rp2350"),
        (uf2(ANY, RP2350), "uf2", "rp2350"),
        (uf2(RP2350_RISCV), "uf2", "rp2350"),
        (uf2(RP2040), "uf2", "rp2040"),
        (esp(C3), "esp", "esp32c3"),
        (esp(C6), "esp", "esp32c6"),
        (elf(ARM), "elf", "arm"),
        (elf(RISCV), "elf", "riscv"),
    ],
)
def test_an_image_says_for_which_chip_it_is(data: bytes, kind: str, chip: str, tmp_path: Path) -> None:
    image = read_image(written(tmp_path, data))
    assert (image.kind, image.chip, image.data) == (kind, chip, data)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "no firmware that is known here"),
        (b"hello", "no firmware that is known here"),
        (uf2(RP2350)[:-1], "cut short or damaged"),
        (uf2(RP2350)[:-4] + bytes(4), "cut short or damaged"),
        (uf2(RP2350, RP2040), "for rp2040, rp2350; expected one"),
        (uf2(0x12345678), "for family 0x12345678; expected"),
        (uf2(RP2350, flags=0), "for no family; expected"),
        (uf2(ANY), "for no chip; expected"),
        (esp(99), "chip of number 99"),
        (b"\xe9\x01", "no firmware that is known here"),
        (elf(X86), "no program for a 32-bit Arm or RISC-V"),
        (elf(ARM, bits=2), "no program for a 32-bit"),
        (elf(ARM, kind=1), "no program for a 32-bit"),
        (b"\x7fELF", "no program for a 32-bit"),
    ],
)
def test_what_is_no_image_is_refused_in_a_sentence(data: bytes, says: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=says) as refused:
        read_image(written(tmp_path, data))
    assert "\n" not in str(refused.value)


def test_an_image_that_is_not_there_or_too_large_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="No such file"):
        read_image(tmp_path / "none")
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(images.MOST_BYTES + 1)
    with pytest.raises(DataError, match="more than 64 MiB"):
        read_image(tmp_path / "huge")


@pytest.mark.parametrize(
    ("data", "chip", "says"),
    [
        (esp(C3), "esp32c6", "is for esp32c3, and --chip says esp32c6"),
        (uf2(RP2040), "RP2350", "is for rp2040, and --chip says RP2350"),
        (elf(RISCV), "STM32F103C8", "is machine code for riscv, and --chip STM32F103C8 is arm"),
        (elf(ARM), "esp32c3", "is machine code for arm, and --chip esp32c3 is riscv"),
    ],
)
def test_an_image_for_another_chip_is_refused_before_anything_is_touched(
    data: bytes, chip: str, says: str, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=says):
        make_plan(read_image(written(tmp_path, data)), "/dev/none", chip, 0)


# Ports and tools ------------------------------------------------------------------------------------------------------


def test_ports_that_will_not_do_are_named_with_what_to_do(tmp_path: Path, tool: Callable[[str, str], Path]) -> None:
    log = tool("esptool", "echo esptool v5.0.0")
    image = read_image(written(tmp_path, esp(C3)))
    with pytest.raises(LinkError, match="it is not there; is the board plugged in"):
        make_plan(image, "/dev/ttyACM99", "", 0)
    with pytest.raises(LinkError, match="it is no serial port"):
        make_plan(image, "/dev/null", "", 0)
    with serial_line() as port:
        other = os.open(port, os.O_RDWR | os.O_NOCTTY)
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(LinkError, match=r"another program uses it: `fuser -v"):
            make_plan(image, port, "", 0)
        os.close(other)
        assert make_plan(image, port, "", 0).steps()
    with pytest.raises(LinkError, match="goes over a debug probe"):
        make_plan(read_image(written(tmp_path, elf(ARM))), "/dev/ttyACM0", "", 0)
    with pytest.raises(LinkError, match=r"no INFO_UF2\.TXT there"):
        make_plan(read_image(written(tmp_path, uf2(RP2350))), str(tmp_path), "", 0)
    assert log.read_text() == "version\n", "nothing was flashed"


@pytest.mark.parametrize(
    ("data", "port", "named"),
    [
        (esp(C3), "", "esptool is not installed, .* `pip install esptool`"),
        (uf2(RP2350), "usb", "picotool is not installed, .* --port FOLDER"),
        (elf(ARM), "swd", "probe-rs is not installed, .* --port openocd:"),
        (elf(ARM), "openocd:a.cfg,b.cfg", "openocd is not installed, .* `apt-get install openocd`"),
    ],
)
def test_a_tool_that_is_missing_is_named_with_how_to_get_it(
    data: bytes,
    port: str,
    named: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    chip = ["--chip", "STM32F103C8"] if port == "swd" else []
    with serial_line() as line:
        words = ["boards", "flash", "--port", port or line, "--image", str(written(tmp_path, data)), *chip, "--dry-run"]
        assert main(words) == 9
    (sentence,) = capsys.readouterr().err.splitlines()
    assert re.search(named, sentence)


@pytest.mark.parametrize(
    ("data", "port", "chip", "name", "steps"),
    [
        (esp(C6), "", "", "esptool", ["esptool --chip esp32c6 --port PORT write-flash 0x10000 IMAGE"]),
        (uf2(RP2350), "usb", "", "picotool", ["picotool load --verify --execute IMAGE"]),
        (elf(ARM), "swd", "STM32F103C8", "probe-rs",
         ["probe-rs download --chip STM32F103C8 --verify IMAGE", "probe-rs reset --chip STM32F103C8"]),
        (elf(RISCV), "0483:374b:7", "esp32c3", "probe-rs",
         ["probe-rs download --chip esp32c3 --probe 0483:374b:7 --verify IMAGE",
          "probe-rs reset --chip esp32c3 --probe 0483:374b:7"]),
        (elf(ARM), "openocd:i.cfg,t.cfg", "", "openocd",
         ["openocd -f i.cfg -f t.cfg -c 'program {IMAGE} verify reset exit'"]),
    ],
)  # fmt: skip
def test_a_dry_run_prints_what_would_be_done_and_then_that_is_done(
    data: bytes, port: str, chip: str, name: str, steps: list[str], tmp_path: Path,
    tool: Callable[[str, str], Path], capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    log = tool(name, 'test "$1" != version || echo esptool v5.1.0')
    image = written(tmp_path, data)
    with serial_line() as line:
        words = ["boards", "flash", "--port", port or line, "--image", str(image), "--offset", "0x10000"]
        words += ["--chip", chip] if chip else []
        assert main([*words, "--dry-run"]) == 0
        wanted = [step.replace("IMAGE", str(image)).replace("PORT", line) for step in steps]
        assert capsys.readouterr().out.splitlines() == wanted
        log.write_text("")
        assert main([*words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["schema"], told["done"], told["steps"]) == ("paceline-flash-1", True, wanted)
    called = [line for line in log.read_text().splitlines() if line != "version"]
    assert called == [step.partition(" ")[2].replace("'", "") for step in wanted]


def test_an_older_esptool_is_called_in_its_own_words(tmp_path: Path, tool: Callable[[str, str], Path]) -> None:
    tool("esptool.py", "printf 'esptool.py v4.8.1\\n4.8.1\\n'")
    with serial_line() as port:
        (step,) = make_plan(read_image(written(tmp_path, esp(C3))), port, "", 0).steps()
    assert step.startswith("esptool.py --chip esp32c3 --port /dev/pts/")
    assert " write_flash 0x0 " in step


def test_a_tool_that_does_not_run_is_named(
    tmp_path: Path, tool: Callable[[str, str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    (tool("picotool", "").parent / "bin" / "picotool").write_bytes(b"\x7fELF no program")
    assert main(["boards", "flash", "--port", "usb", "--image", str(written(tmp_path, uf2(RP2350)))]) == 9
    assert "picotool is there and does not run: Exec format error" in capsys.readouterr().err


def test_a_tool_that_fails_and_a_board_that_is_unplugged_are_one_sentence_each(
    tmp_path: Path, tool: Callable[[str, str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    image = written(tmp_path, esp(C3))
    with serial_line() as line:
        port = tmp_path / "ttyACM0"
        port.symlink_to(line)
        words = ["--log-level", "warning", "boards", "flash", "--port", str(port), "--image", str(image)]
        words = [*words[2:], *words[:2]]
        tool(
            "esptool",
            'test "$1" = version && exit; echo; echo "A fatal error occurred: no \033[1mserial\033[0m data"; exit 2',
        )
        assert main(words) == 4
        (sentence,) = capsys.readouterr().err.splitlines()
        assert "esptool ended with status 2: A fatal error occurred" in sentence
        assert "\033" not in sentence
        assert sentence.endswith("half an image: hold its BOOT button while it is plugged in, and flash it again")
        tool("esptool", f'test "$1" = version && exit; rm {port}; exit 2')
        assert main(words) == 4
        (sentence,) = capsys.readouterr().err.splitlines()
        assert f"{port} went away while esptool wrote: it was unplugged; the board may hold half an image" in sentence


# The copy -------------------------------------------------------------------------------------------------------------


def leaves_when_it_has(folder: Path, name: str, n_bytes: int) -> threading.Thread:
    """Do as a boot ROM does: when the last block is there, go away."""

    def watch() -> None:
        while not (folder / name).exists() or (folder / name).stat().st_size < n_bytes:
            time.sleep(0.01)
        (folder / "INFO_UF2.TXT").unlink()

    thread = threading.Thread(target=watch)
    thread.start()
    return thread


def test_a_copy_is_whole_and_the_board_is_seen_to_take_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, data = bootloader(tmp_path / "RP2350"), uf2(*[RP2350] * 300)
    image = written(tmp_path, data, "meter.uf2")
    words = ["boards", "flash", "--port", str(folder), "--image", str(image)]
    assert main([*words, "--dry-run"]) == 0
    assert not (folder / "meter.uf2").exists()
    assert capsys.readouterr().out == f"copy {image} to {folder}, and see it accepted\n"
    board = leaves_when_it_has(folder, "meter.uf2", len(data))
    assert main(words) == 0
    board.join()
    assert capsys.readouterr().out == "copied; the board took it and left its bootloader\n"
    assert (folder / "meter.uf2").read_bytes() == data


def test_a_board_that_stays_in_its_bootloader_has_not_taken_it(tmp_path: Path) -> None:
    folder = bootloader(tmp_path / "RP2350")
    with pytest.raises(
        LinkError, match=r"in its bootloader still, 0\.1 s after the copy; what is there is what was copied"
    ):
        copy(read_image(written(tmp_path, uf2(RP2350))), folder, leaves_s=0.1)


@pytest.mark.parametrize(("family", "board"), [(RP2040, "RP2350"), (RP2350, "RPI-RP2"), (RP2350, "SAMD21G18A-Feather")])
def test_a_board_that_the_image_is_not_for_is_left_alone(family: int, board: str, tmp_path: Path) -> None:
    folder = bootloader(tmp_path / "board", board)
    with pytest.raises(DataError, match=f"and the board at {folder} is {board}"):
        make_plan(read_image(written(tmp_path, uf2(family))), str(folder), "", 0)


def test_the_first_pico_is_known_by_its_own_name(tmp_path: Path) -> None:
    folder = bootloader(tmp_path / "pico", "RPI-RP2")
    assert make_plan(read_image(written(tmp_path, uf2(RP2040))), str(folder), "", 0).folder == folder


def test_no_room_and_a_folder_that_went_away_are_one_sentence_each(tmp_path: Path) -> None:
    folder = bootloader(tmp_path / "RP2350")
    image = read_image(written(tmp_path, uf2(RP2350), "meter.uf2"))
    (folder / "meter.uf2").symlink_to("/dev/full")
    with pytest.raises(StorageError, match="there is not room for 512 bytes"):
        copy(image, folder)
    (folder / "meter.uf2").unlink()
    (folder / "INFO_UF2.TXT").unlink()
    folder.rmdir()
    with pytest.raises(LinkError, match=r"the copy broke off \(No such file or directory\): was it unplugged"):
        copy(image, folder)
