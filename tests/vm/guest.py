# SPDX-License-Identifier: Apache-2.0
"""One boot of the guest: QEMU without hardware help, the host's files read-only, one command, its answer as JSON.

The answer comes over a virtio port named "answer", apart from the console. How the command ended stands on the
console's last GUEST-RC line alone: QEMU itself ends well whatever its guest did.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from . import kernel
from .kernel import Kernel, Missing

INIT = Path(__file__).with_name("init")
MEMORY_MB = 1024
MACHINES = {"x86_64": ("-M", "q35", "-cpu", "max"), "riscv64": ("-M", "virt")}
CONSOLE = "console=ttyS0 quiet panic=-1 mitigations=off"


@dataclass(frozen=True)
class Ran:
    """What came out of a boot."""

    answer: object  # None: there was none, or it was cut off
    status: int  # of the command; 99: the guest ended without telling
    console: str
    seconds: float
    up_seconds: float  # of the guest's time, until the command began


def emulator(machine: str = "x86_64") -> str:
    """Return the emulator. Raises Missing."""
    path = shutil.which(f"qemu-system-{machine}")
    if path is None:
        package = {"x86_64": "qemu-system-x86", "riscv64": "qemu-system-misc opensbi"}[machine]
        raise Missing(f"qemu-system-{machine} is missing: apt-get install --no-install-recommends {package}")
    return path


def run(with_kernel: Kernel, command: str, folder: Path, limit_s: float) -> Ran:
    """Boot, run a shell command in the root of the checkout, and return what came out. `folder` keeps the traces."""
    image, answer = folder / "guest.cpio", folder / "answer.json"
    shared = with_kernel.share is not None
    conf = f"checkout='{kernel.ROOT}'\ncommand='{command}'\nshared={'yes' if shared else ''}\n"
    image.write_bytes(initramfs(with_kernel, conf))
    machine = [*MACHINES[with_kernel.machine], "-accel", "tcg,thread=multi", "-smp", "1", "-m", str(MEMORY_MB)]
    plain = ["-nodefaults", "-no-user-config", "-nographic", "-serial", "stdio", "-no-reboot"]
    boot = ["-kernel", str(with_kernel.image), "-initrd", str(image), "-append", CONSOLE]
    files = []
    for tag, path in (("host", with_kernel.root), ("checkout", with_kernel.share)):
        if path is not None:
            files += ["-fsdev", f"local,id={tag},path={path},security_model=none,readonly=on,multidevs=remap"]
            files += ["-device", f"virtio-9p-pci,fsdev={tag},mount_tag={tag}"]
    port = ["-device", "virtio-serial-pci", "-chardev", f"file,id=answer,path={answer}"]
    port += ["-device", "virtserialport,chardev=answer,name=answer"]
    began = time.monotonic()
    with (folder / "console.log").open("wb") as console:
        arguments = [emulator(with_kernel.machine), *machine, *plain, *boot, *files, *port]
        try:
            subprocess.run(
                arguments, stdin=subprocess.DEVNULL, stdout=console, stderr=console, timeout=limit_s, check=False
            )
        except subprocess.TimeoutExpired:
            console.write(f"\nstopped after {limit_s:.0f} s\n".encode())
    said = (folder / "console.log").read_text(encoding="utf-8", errors="replace").replace("\r", "")
    status = re.findall(r"^GUEST-RC (\d+)", said, re.MULTILINE)
    up = re.search(r"^GUEST-UP ([\d.]+)", said, re.MULTILINE)
    return Ran(
        _parsed(answer), int(status[-1]) if status else 99, said, time.monotonic() - began, float(up[1]) if up else -1.0
    )


def _parsed(answer: Path) -> object:
    try:
        return json.loads(answer.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def initramfs(with_kernel: Kernel, conf: str, init: Path = INIT) -> bytes:
    """Return a cpio archive (newc): busybox, the modules by the order of their names, and what to run."""
    entries = [("bin", 0o40755, b""), ("modules", 0o40755, b"")]
    entries += [("bin/busybox", 0o100755, with_kernel.busybox.read_bytes()), ("init", 0o100755, init.read_bytes())]
    entries += [("run.conf", 0o100644, conf.encode())]
    for i, module in enumerate(with_kernel.modules):
        entries.append((f"modules/{i:02}-{module.name.removesuffix('.xz')}", 0o100644, kernel.content(module)))
    return b"".join(_entry(*entry) for entry in [*entries, ("TRAILER!!!", 0, b"")])


def _entry(name: str, mode: int, content: bytes) -> bytes:
    fields = [0, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name) + 1, 0]
    head = b"070701" + b"".join(b"%08X" % field for field in fields) + name.encode() + b"\0"
    return _padded(head) + _padded(content)


def _padded(data: bytes) -> bytes:
    return data + b"\0" * (-len(data) % 4)
