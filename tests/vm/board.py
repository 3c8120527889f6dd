# SPDX-License-Identifier: Apache-2.0
"""A RISC-V board with a disk of its own, a network and an sshd, in QEMU; its power can be cut at any time.

Its disk holds Debian's programs as the packages have them, without their installation scripts, and a root who logs in
by one key. The host is 10.0.2.2 to it; the host reaches its sshd on a port of loopback.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from contextlib import closing
from pathlib import Path

from . import guest
from .kernel import Kernel, Missing

INIT = Path(__file__).with_name("board_init")
DISK_MB, MEMORY_MB = 768, 1024
BOOT_S = 240.0  # ten times what it takes on two free cores
HOST = "10.0.2.2"
USERS = "root:x:0:0:root:/root:/bin/sh\nsshd:x:100:65534::/run/sshd:/usr/sbin/nologin\n"
SSHD = """HostKey /etc/ssh/host
AuthorizedKeysFile /etc/ssh/keys
StrictModes no
PermitRootLogin yes
PasswordAuthentication no
UsePAM no
"""


class Board:
    """`folder` keeps its disk, keys and console; `up` switches it on."""

    def __init__(self, with_kernel: Kernel, folder: Path) -> None:
        if shutil.which("mke2fs") is None:
            raise Missing("mke2fs is missing: apt-get install e2fsprogs")
        self._kernel, self.folder = with_kernel, folder
        for name in ("host", "id"):
            command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
            subprocess.run(command, check=True, timeout=60)
        with closing(socket.create_server(("127.0.0.1", 0))) as free:
            self.port: int = free.getsockname()[1]
        public = (folder / "host.pub").read_text(encoding="ascii")
        (folder / "known_hosts").write_text(f"[127.0.0.1]:{self.port} {public}", encoding="ascii")
        self.disk = folder / "disk"
        self._make_disk()
        self._qemu: subprocess.Popen[bytes] | None = None

    @property
    def options(self) -> list[str]:
        """Return how `paceline boards` reaches it."""
        return [
            "--port", str(self.port), "--identity", str(self.folder / "id"), "--ssh-option",
            f"UserKnownHostsFile={self.folder / 'known_hosts'}", "--ssh-option", "GlobalKnownHostsFile=/dev/null",
        ]  # fmt: skip

    def up(self) -> float:
        """Switch it on, and wait until its sshd answers; return the seconds that it took."""
        began = time.monotonic()
        image = self.folder / "board.cpio"
        image.write_bytes(guest.initramfs(self._kernel, f"now={int(time.time())}\n", INIT))
        machine = self._kernel.machine
        command = [guest.emulator(machine), *guest.MACHINES[machine], "-accel", "tcg,thread=multi", "-smp", "1"]
        command += [
            "-m",
            str(MEMORY_MB),
            "-nodefaults",
            "-no-user-config",
            "-nographic",
            "-serial",
            "stdio",
            "-no-reboot",
        ]
        command += ["-kernel", str(self._kernel.image), "-initrd", str(image), "-append", guest.CONSOLE]
        command += ["-drive", f"if=none,id=disk,format=raw,file={self.disk}", "-device", "virtio-blk-pci,drive=disk"]
        command += ["-netdev", f"user,id=net,hostfwd=tcp:127.0.0.1:{self.port}-:22"]
        command += ["-device", "virtio-net-pci,netdev=net"]
        with (self.folder / "console.log").open("ab") as console:
            self._qemu = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=console, stderr=console)
        while self.call("true", 30.0) is None:
            if self._qemu.poll() is not None or time.monotonic() > began + BOOT_S:
                raise AssertionError(f"the board does not come up:\n{self.console[-3000:]}")
        return time.monotonic() - began

    def cut(self) -> None:
        """Cut its power: what it has not written to its disk is gone."""
        if self._qemu is not None:
            self._qemu.kill()
            self._qemu.wait()
            self._qemu = None

    def call(self, command: str, limit_s: float = 120.0, send: bytes = b"") -> str | None:
        """Run a shell command on it; return what it printed, None where that failed."""
        ssh = ["ssh", "-F", "none", "-p", str(self.port), "-i", str(self.folder / "id"), "-o", "BatchMode=yes"]
        ssh += ["-o", "IdentitiesOnly=yes", "-o", f"UserKnownHostsFile={self.folder / 'known_hosts'}"]
        ssh += ["-o", "ConnectTimeout=20", "-o", "LogLevel=ERROR", "root@127.0.0.1", command]
        try:
            done = subprocess.run(ssh, input=send, capture_output=True, timeout=limit_s, check=False)
        except subprocess.TimeoutExpired:
            return None
        return done.stdout.decode() if done.returncode == 0 else None

    @property
    def console(self) -> str:
        return (self.folder / "console.log").read_text(encoding="utf-8", errors="replace").replace("\r", "")

    def _make_disk(self) -> None:
        """Lay Debian's files and a few of ours on a new disk."""
        with tempfile.TemporaryDirectory(dir=self._kernel.root.parent) as scratch:
            root = Path(scratch, "root")
            subprocess.run(["cp", "-al", self._kernel.root, root], check=True, timeout=300)  # links: nothing is copied
            (root / "sbin").symlink_to("usr/sbin")
            for name, mode in (("root", 0o700), ("run", 0o755), ("etc/ssh", 0o755), ("var/tmp", 0o1777)):
                (root / name).mkdir(parents=True, exist_ok=True)
                os.chmod(root / name, mode)
            for name, text in (
                ("passwd", USERS),
                ("group", "root:x:0:\nnogroup:x:65534:\n"),
                ("ssh/sshd_config", SSHD),
            ):
                (root / "etc" / name).write_text(text, encoding="ascii")
            shutil.copy(self.folder / "host", root / "etc/ssh/host")
            shutil.copy(self.folder / "id.pub", root / "etc/ssh/keys")
            for library in (root / "usr/lib/riscv64-linux-gnu").glob("*/lib*.so.3"):  # what alternatives would choose
                (library.parents[1] / library.name).symlink_to(library.relative_to(library.parents[1]))
            with self.disk.open("wb") as disk:
                disk.truncate(DISK_MB << 20)
            subprocess.run(["mke2fs", "-q", "-t", "ext4", "-d", root, self.disk], check=True, timeout=300)
