"""What of a machine is part of a run's settings, and which options a strategy reads."""

import ast
import math
import re

import pytest
from support import ROOT, STRATEGIES

from scripts.memory.group_memory import free_group_memory_bytes
from scripts.results.settings import READERS


@pytest.mark.parametrize(
    "membership, files, free_bytes",
    [
        (
            "0::/",
            {"memory.max": "900", "memory.current": "500", "memory.stat": "anon 30\nactive_file 7\ninactive_file 300"},
            700,
        ),
        (
            "4:memory:/of/the/host\n0::/",
            {
                "memory/memory.limit_in_bytes": "700",
                "memory/memory.usage_in_bytes": "500",
                "memory/memory.stat": "inactive_file 9\ntotal_inactive_file 100",
            },
            300,
        ),
    ],
)
def test_a_containers_limit_of_memory_bounds_what_is_free(tmp_path, membership, files, free_bytes):
    """`docker run --memory` and Slurm's --mem: the kernel would kill the container's processes."""
    (tmp_path / "own").write_text(membership)
    for name, text in files.items():
        (tmp_path / "groups" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "groups" / name).write_text(f"{text}\n")
    assert free_group_memory_bytes(tmp_path / "groups", tmp_path / "own") == free_bytes
    assert free_group_memory_bytes(tmp_path / "groups", tmp_path / "none") == math.inf


def read_fields(path, seen) -> set[str]:
    """Fields of the configuration that a strategy's script reads, also by functions that it calls with `config`."""
    tree = ast.parse(path.read_text())
    own = {
        node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "config"
    }
    called = {
        ast.unparse(node.func)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and any(ast.unparse(argument) == "config" for argument in node.args)
    }
    return own | {name for call in called for name in seen.get(call, ())}


def test_the_table_of_readers_is_what_scripts_read():
    """An option that is not read is no setting: one that is added to a script is found here."""
    helpers: dict[str, set[str]] = {}
    ddp_options = r"\bconfig\.(\w+)|'(static_graph|gradient_as_bucket_view|broadcast_buffers)'"
    for path in (ROOT / "benchmarks" / "common").glob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef):
                found = re.findall(ddp_options, ast.unparse(node))
                helpers[node.name] = {name for names in found for name in names} & READERS.keys()
    for strategy in STRATEGIES:
        found = read_fields(ROOT / "benchmarks" / f"{strategy}.py", helpers) & READERS.keys()
        assert found == {name for name, strategies in READERS.items() if strategy in strategies}, strategy
