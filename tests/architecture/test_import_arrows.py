# SPDX-License-Identifier: Apache-2.0
"""The arrows of docs/DESIGN.md, section 2, and the habits of the link that a reader of one module cannot see.

`offences` judges one module by its text alone; planted examples show that each rule bites, then the whole tree is read.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE_ROOTS = ("common", "agent", "host")

# Who may never import whom. The C core's face stands below the library: of it, only the errors are below the face.
ARROWS = [
    (r"paceline(\..*)?", r"paceline_agent|paceline_host|tests"),
    (r"paceline_agent(\..*)?", r"paceline_host|tests"),
    (r"paceline_host(\..*)?", r"paceline_agent|tests"),
    (r"paceline\.core", r"paceline(?!\.(_core|errors)(\.|$))"),
    (r"paceline\.errors", r"paceline"),
]
# One door for each effect: what is imported -> the only modules that may.
TORCH_DOORS = (
    r"paceline\.tasks\..+|paceline\.split\.(client|host|inprocess)|paceline\.torch(\..*)?|paceline_agent\.(trainer\w*|workers\..+)"
    r"|paceline_host\.(evaluation|reducers?)(\..*)?"
)
DOORS = {
    r"zmq": r"paceline_(agent|host)\.link|paceline_host\.(operator|swarm)_link",
    r"cffi|_cffi_backend|ctypes|paceline\._core": r"paceline\.core",
    r"smbus2": r"paceline_agent\.meters\.\w*(bus|i2c)\w*",
    r"serial": r"paceline_agent\.meters\.\w*(bus|serial|uart)\w*|paceline_host\.onboard\.serial_line",
    r"zeroconf": r"paceline_host\.onboard\.mdns",
    r"torch": TORCH_DOORS,
    r"matplotlib": r"paceline_host\.plot(_\w+)?",
    r"pickle|marshal|shelve|dill|cloudpickle|joblib": r"(?!)",  # what a peer sends is never code
    r"asyncio|multiprocessing|concurrent\.futures": r"(?!)",  # threads meet in queues, processes on sockets
}
# Imported with the module itself, and so paid by every command that only starts.
LATE = r"|paceline_host\.(plot(_\w+)?|bench_(sampler|controller|schedule|aggregate))"  # imported when they are called
DOORS_AT_START = {r"numpy|safetensors": TORCH_DOORS + LATE}
# Names that stand for a trap of the link or of a file format -> where they may stand.
NAMES = {
    r"heartbeat_(ivl|timeout|ttl)|HEARTBEAT_(IVL|TIMEOUT|TTL)": r"paceline_host\.link",
    r"routing_id|ROUTING_ID|IDENTITY|connect_routing_id": r"(?!)",
    r"(recv|send)_pyobj|zmq\.REQ|torch\.load|wait_for|allow_pickle": r"(?!)",
}
# Sockets get their options where they are made, so they are made nowhere else. ZAP itself is request-reply.
FACTORIES = {
    "paceline_agent.link": {"_dealer"},
    "paceline_host.link": {"_router", "plain_dealer", "_Zap.__init__"},
    "paceline_host.operator_link": {"_dealer"},
}
REPLY_SOCKETS = {("paceline_host.link", "_Zap.__init__")}
FREESTANDING = {"stddef.h", "stdint.h", "stdbool.h", "stdalign.h", "stdnoreturn.h", "limits.h", "float.h", "stdarg.h"}
INSTRUCTIONS = {"immintrin.h", "emmintrin.h", "cpuid.h", "arm_neon.h"}  # the compiler's own as well; pl_engine*.c only


def offences(module: str, source: str, is_package: bool = False) -> list[str]:
    """Return one sentence for each rule that a module breaks."""
    tree = ast.parse(source)
    found = []
    for name, line, at_start in imports(tree, module, is_package):
        for who, whom in ARROWS:
            if re.fullmatch(who, module) and re.match(rf"(?:{whom})(?:\.|$)", name):
                found.append(f"{module}:{line}: imports {name}, against the arrows")
        doors = DOORS | DOORS_AT_START if at_start else DOORS
        for what, door in doors.items():
            if re.match(rf"(?:{what})(?:\.|$)", name) and not re.fullmatch(door, module):
                found.append(f"{module}:{line}: imports {name}, which only {door} may")
    for name, line, _ in names(tree):
        for what, where in NAMES.items():
            if re.fullmatch(rf"(?:.*\.)?(?:{what})", name) and not re.fullmatch(where, module):
                found.append(f"{module}:{line}: {name} has no place here")
    for name, line, function in names(tree):
        if name == "zmq.REP" and (module, function) not in REPLY_SOCKETS:
            found.append(f"{module}:{line}: request-reply sockets lock up when a message is lost")
        if name.endswith(".socket()") and name != "socket.socket()" and function not in FACTORIES.get(module, set()):
            found.append(f"{module}:{line}: makes a socket outside its factory")
    return found


def imports(tree: ast.AST, module: str, is_package: bool) -> Iterator[tuple[str, int, bool]]:
    """Yield (name, line, whether it happens when the module is imported) of each import, also by literal name."""
    for node, function in walk(tree):
        at_start = not function
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno, at_start) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = module.split(".")[: len(module.split(".")) - node.level + is_package]
                base = ".".join([*above, *([base] if base else [])])
            yield from ((f"{base}.{alias.name}", node.lineno, at_start) for alias in node.names)
        elif (
            isinstance(node, ast.Call)
            and dotted(node.func).rpartition(".")[2] in ("import_module", "__import__")
            and node.args
            and isinstance(node.args[0], ast.Constant)
        ):
            yield str(node.args[0].value), node.lineno, at_start


def names(tree: ast.AST) -> Iterator[tuple[str, int, str]]:
    """Yield (dotted name, line, function around it) of attributes, keywords and calls, the last with () behind."""
    for node, function in walk(tree):
        if isinstance(node, ast.Attribute):
            yield dotted(node), node.lineno, function
        elif isinstance(node, ast.keyword) and node.arg:
            yield node.arg, node.value.lineno, function
        elif isinstance(node, ast.Call):
            yield dotted(node.func) + "()", node.lineno, function


def walk(tree: ast.AST, function: str = "", scope: str = "") -> Iterator[tuple[ast.AST, str]]:
    """Yield each node and the qualified name of the outermost function around it. Type-only imports are left out."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.If) and dotted(child.test).endswith("TYPE_CHECKING"):
            continue
        yield child, function
        inner, below = function, scope
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            inner = function or scope + child.name
        elif isinstance(child, ast.ClassDef):
            below = f"{scope}{child.name}."
        yield from walk(child, inner, below)


def dotted(node: ast.AST) -> str:
    """Return a.b.c for such an expression; whatever is not a name becomes empty."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def modules() -> Iterator[tuple[str, Path]]:
    """Yield (module name, file) of everything that is installed."""
    for root in SOURCE_ROOTS:
        for path in sorted((ROOT / root).rglob("*.py")):
            parts = path.relative_to(ROOT / root).with_suffix("").parts
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


@pytest.mark.parametrize(
    ("module", "source", "is_clean"),
    [
        ("paceline.energy", "from paceline_agent import meters", False),
        ("paceline.energy", "from paceline.core import integrate", True),
        ("paceline_agent.agent", "import paceline_host.store", False),
        ("paceline_host.server", "from paceline_agent.link import AgentLink", False),
        ("paceline_host.server", "def f():\n    import paceline_agent", False),
        ("paceline_host.server", "import importlib\nimportlib.import_module('paceline_agent.link')", False),
        ("paceline.core", "from paceline.errors import CoreError\nfrom paceline._core import ffi", True),
        ("paceline.core", "from paceline import _core", True),
        ("paceline.core", "from paceline import energy", False),
        ("paceline.core", "from . import energy", False),
        ("paceline.energy", "from ._core import lib", False),
        ("paceline.energy", "import ctypes", False),
        ("paceline_host.server", "import zmq", False),
        ("paceline_host.link", "import zmq.utils.z85", True),
        ("paceline_agent.agent", "from zmq import Poller", False),
        ("paceline_agent.meters.ina219", "import smbus2", False),
        ("paceline_agent.meters.i2c_bus", "import smbus2", True),
        ("paceline.tasks.mnist", "import torch.nn", True),
        ("paceline.tasks", "def make():\n    import torch", False),
        ("paceline_agent.trainer_server", "import torch", True),
        ("paceline_agent.agent", "def run():\n    import torch", False),
        ("paceline.data.idx", "import numpy", False),
        ("paceline.data.idx", "def read():\n    import numpy", True),
        ("paceline.data.idx", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import numpy", True),
        ("paceline_host.store", "import pickle", False),
        ("paceline_host.store", "x = numpy.load(path, allow_pickle=True)", False),
        ("paceline_host.server", "import asyncio", False),
        ("paceline_host.link", "s.heartbeat_ivl = 1", True),
        ("paceline_agent.link", "s.heartbeat_ivl = 1", False),
        ("paceline_agent.link", "s.setsockopt(zmq.ROUTING_ID, b'x')", False),
        ("paceline_host.link", "s.recv_pyobj()", False),
        ("paceline_host.link", "s = zmq.REQ", False),
        ("paceline_host.link", "def f(c):\n    return c.socket(zmq.REP)", False),
        ("paceline_host.link", "class _Zap:\n    def __init__(self, c):\n        self.s = c.socket(zmq.REP)", True),
        ("paceline_host.link", "def _router(c):\n    return c.socket(zmq.ROUTER)", True),
        ("paceline_host.link", "def other(c):\n    return c.socket(zmq.ROUTER)", False),
        ("paceline_agent.channel", "import socket\nsocket.socket(socket.AF_UNIX)", True),
        ("paceline_host.store", "weights = torch.load(path)", False),
    ],
)
def test_each_rule_bites_on_a_planted_example(module: str, source: str, is_clean: bool) -> None:
    found = offences(module, source, is_package=module in ("paceline", "paceline.tasks"))
    assert (not found) == is_clean, found


def test_imports_follow_the_arrows_and_effects_use_their_doors() -> None:
    seen = dict(modules())
    assert {"paceline.core", "paceline_agent.link", "paceline_host.link"} <= seen.keys()
    found = [
        offence
        for module, path in seen.items()
        for offence in offences(module, path.read_text(encoding="utf-8"), path.name == "__init__.py")
    ]
    assert not found, "\n".join(found)


def test_the_c_core_includes_its_own_headers_and_freestanding_ones_only() -> None:
    files = [*(ROOT / "core_c" / "src").glob("*.[ch]"), *(ROOT / "core_c" / "include").glob("*.h")]
    assert files
    own = {path.name for path in files}
    for path in files:
        included = set(
            re.findall(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', path.read_text(encoding="utf-8"), re.MULTILINE)
        )
        allowed = FREESTANDING | own | (INSTRUCTIONS if path.name.startswith("pl_engine") else set())
        assert included <= allowed, f"{path.name} includes {sorted(included - allowed)}"


def test_each_source_file_names_its_licence_in_the_first_line() -> None:
    folders = ("common", "agent", "host", "core_c", "tests", "tools", ".ci")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file()]
    sources = [path for path in files if path.suffix in (".py", ".c", ".h", ".sh") or path.name == "run"]
    generated = {"_core.c"}
    for path in [*sources, ROOT / "setup.py", ROOT / "Makefile"]:
        head = path.read_text(encoding="utf-8").split("\n")[:2]
        first = head[1] if head[0].startswith("#!") else head[0]
        assert path.name in generated or "SPDX-License-Identifier: Apache-2.0" in first, f"{path.relative_to(ROOT)}"
