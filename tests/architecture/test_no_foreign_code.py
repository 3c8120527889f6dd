# SPDX-License-Identifier: Apache-2.0
"""Nothing that a peer, a file or a person sends is ever run: judged by the text of all that is installed.

That nobody imports pickle, marshal or the like, calls torch.load or allows pickles is in test_import_arrows.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from .test_import_arrows import dotted, modules

# The one eval: contracts of messages, joined from the program's own text when it starts.
RUNS_CODE = {"eval": {"paceline.quick"}, "exec": set[str](), "compile": set[str](), "__import__": set[str]()}
SHELLS = {"os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput"}
UNPACKS = {"extractall", "unpack_archive"}  # an archive says where its files go
FORBIDDEN_MODULES = {"yaml", "xml", "telnetlib", "imp", "code", "codeop"}


def offences(module: str, source: str) -> Iterator[str]:
    """Yield a sentence for each way in which a module could run what is not its own."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
            for name in names:
                if name.partition(".")[0] in FORBIDDEN_MODULES:
                    yield f"{module}:{node.lineno}: imports {name}"
        if not isinstance(node, ast.Call):
            continue
        name = dotted(node.func)
        if name in RUNS_CODE and module not in RUNS_CODE[name]:
            yield f"{module}:{node.lineno}: {name}()"
        if name in SHELLS or (isinstance(node.func, ast.Attribute) and node.func.attr in UNPACKS):
            yield f"{module}:{node.lineno}: {name}()"
        for keyword in node.keywords:
            if keyword.arg == "shell" and not (
                isinstance(keyword.value, ast.Constant) and keyword.value.value is False
            ):
                yield f"{module}:{node.lineno}: a shell"


@pytest.mark.parametrize(
    ("source", "is_clean"),
    [
        ("eval(text)", False), ("exec(text)", False), ("compile(text, '', 'exec')", False), ("re.compile(text)", True),
        ("model.eval()", True), ("import yaml", False), ("from xml.etree import ElementTree", False),
        ("subprocess.run(line, shell=True)", False), ("subprocess.run([a, b])", True), ("os.system(line)", False),
        ("tar.extractall(folder)", False), ("tar.extractfile(member)", True),
    ],
)  # fmt: skip
def test_each_rule_bites_on_a_planted_example(source: str, is_clean: bool) -> None:
    assert (not list(offences("paceline_host.store", source))) == is_clean


def test_no_module_runs_what_is_not_its_own() -> None:
    found = [offence for module, path in modules() for offence in offences(module, path.read_text(encoding="utf-8"))]
    assert not found, "\n".join(found)
