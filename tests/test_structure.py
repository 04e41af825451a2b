"""The shape of the code, which its two uses need: short scripts to copy, and one engine that knows no strategy.

.venv/bin/python -m pytest tests/test_structure.py
"""

import ast
import graphlib
import json
import re
import subprocess
import sys

import pytest
from support import ROOT, STRATEGIES, environment

from scripts.runner.preflight import CORE

pytestmark = pytest.mark.real_interpreter  # which modules are imported at the start

SCRIPTS = {name: (ROOT / "benchmarks" / f"{name}.py").read_text() for name in STRATEGIES}
COMMON = {path.stem: path.read_text() for path in sorted((ROOT / "benchmarks/common").glob("*.py"))}
TOOLS = {f"{path.parent.name}.{path.stem}": path.read_text() for path in sorted((ROOT / "scripts").glob("*/*.py"))}
# What scripts.studies.peers.overhead compares with, bare of everything, and what runs before tyro is installed.
WITHOUT_FLAGS = {"probe.bare_ddp", "setup.install"}
WITHOUT_TORCH = ["report.plot", "report.predict", "analysis.compare", "suite.bench", "suite.attempt", "suite.plan"]


def imported(source: str) -> set[str]:
    """Dotted names of all imports, `from a import b` as a.b, wherever in the file they are."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def function(source: str, name: str) -> str:
    """A function of `source`, also a nested one, as the text of its syntax tree: comments and layout left out."""
    (found,) = [node for node in ast.walk(ast.parse(source)) if getattr(node, "name", None) == name]
    return ast.dump(found)


def python(code: str) -> str:
    """Output of `code` in an interpreter of its own."""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


# --- imports point one way ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", COMMON)
def test_common_imports_no_script(name):
    """Protects the direction script -> common: the engine must not know who calls it."""
    ours = {module for module in imported(COMMON[name]) if module.split(".")[0] in ("benchmarks", "scripts", "tests")}
    assert all(module.startswith("benchmarks.common.") for module in ours), ours


def test_common_has_no_circle_of_imports():
    """Protects reading order: every module of common can be understood after those it imports."""
    graph = {
        name: {
            other
            for other in COMMON
            if any(f"{module}.".startswith(f"benchmarks.common.{other}.") for module in imported(text))
        }
        for name, text in COMMON.items()
    }
    assert len([*graphlib.TopologicalSorter(graph).static_order()]) == len(COMMON)
    assert graph["engine"] >= {"meters", "record"}


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_script_imports_common_and_no_other_script(name):
    """Protects copying: a script and common/ are all that a reader has to take."""
    ours = {module for module in imported(SCRIPTS[name]) if module.split(".")[0] in ("benchmarks", "scripts")}
    assert ours and all(module.startswith("benchmarks.common.") for module in ours)


@pytest.mark.parametrize("name", WITHOUT_TORCH)
def test_what_only_reads_tables_needs_no_torch(name):
    """Protects a laptop that draws a cluster's results, and half a minute of imports on a slow disk."""
    heavy = python(f"import sys, scripts.{name}; print([m for m in ('torch', 'torchvision') if m in sys.modules])")
    assert heavy.strip() == "[]"


# --- scripts are short and alike ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_script_is_short_and_says_how_it_is_launched(name):
    """Protects the quickstart: 100 lines, and a docstring with the exact command."""
    assert len(SCRIPTS[name].splitlines()) <= 100
    docstring = ast.get_docstring(ast.parse(SCRIPTS[name]))
    assert f" -m benchmarks.{name}" in docstring


def test_plain_steps_are_equal():
    """Protects the comparison: these strategies differ in how they start and wrap, and not in what a step does."""
    plain = ["single", "dataparallel", "ddp", "ddp_spawn", "slurm", "horovod_ddp"]
    assert len({function(SCRIPTS[name], "step") for name in plain}) == 1
    assert function(SCRIPTS["ddp_amp"], "step") != function(SCRIPTS["ddp"], "step")


# The baseline, and the core list with its order; what probes import is no word in them.
NAMED = {
    "analysis.sets": {"single"},
    "suite.preflight": {*CORE},
    # lists of what to try on a GPU, which say what is run and branch on nothing
    "gpu_check.checks": {"ddp"},
    "gpu_check.timed": {"ddp", "ddp_compile", "ddp_compressed"},
}


@pytest.mark.parametrize("name", sorted(SCRIPTS.keys() | COMMON.keys() | TOOLS.keys()))
def test_no_branch_on_a_strategys_name(name):
    """Protects the design: functions are passed, so that a new strategy changes nothing that exists."""
    text = (SCRIPTS | COMMON | TOOLS)[name]
    words = [node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant)]
    assert set(STRATEGIES) & {word for word in words if isinstance(word, str)} == NAMED.get(name, set())


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_script_can_be_handed_another_fit(name):
    """Protects the seam of the probes: main(config, fit=fit), and what main gets is what trains."""
    (main,) = [node for node in ast.parse(SCRIPTS[name]).body if getattr(node, "name", None) == "main"]
    assert [argument.arg for argument in main.args.args] == ["config", "fit"]
    assert [ast.unparse(default) for default in main.args.defaults] == ["fit"]
    for node in ast.walk(ast.parse(SCRIPTS[name])):
        if isinstance(node, ast.FunctionDef) and "fit(\n" in ast.get_source_segment(SCRIPTS[name], node):
            assert "fit" in [argument.arg for argument in node.args.args], node.name


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_script_tells_how_it_divides_a_step(name):
    """Protects the memory forecast, which asks each strategy itself."""
    (split,) = [node for node in ast.parse(SCRIPTS[name]).body if getattr(node, "name", None) == "split"]
    assert [argument.arg for argument in split.args.args] == ["config", "num_devices"]


TESTS = {name for path in (ROOT / "tests").rglob("*.py") for name in re.findall(r"def (test_\w+)", path.read_text())}


@pytest.mark.parametrize("document", ["tests/faults/README.md", "SECURITY.md"])
def test_what_a_document_promises_is_tested(document):
    """Protects the promises: a name that no test has protects nothing, and what it stood for is no longer looked at."""
    named = set(re.findall(r"`(test_\w+)`", (ROOT / document).read_text()))
    assert named and named <= TESTS, named - TESTS


def test_every_sentence_of_what_is_survived_names_its_test():
    """Protects the list in tests/faults/README.md from sentences that nobody tries."""
    text = (ROOT / "tests/faults/README.md").read_text().split("What is not covered:")[0]
    points = [" ".join(point.split()) for point in text.split("\n- ")[1:]]
    sentences = [
        one for point in points for one in re.split(r"(?<=\.) (?=[A-Z`])", re.sub(r"^\*\*.*?\*\* ", "", point))
    ]
    assert len(sentences) > 15 and [one for one in sentences if "`test_" not in one] == []


def test_nothing_that_ships_patches_anything():
    """Protects what users run: stand-ins are for tests, and code has arguments."""
    for name, text in (SCRIPTS | COMMON | TOOLS).items():
        assert not any(module.split(".")[0] == "unittest" for module in imported(text)), name


def test_the_engine_is_short():
    """Protects the one file that everybody has to trust."""
    assert len(COMMON["engine"].splitlines()) <= 250


HELPS = """
import contextlib, io, json, runpy, sys
said = {}
for module in sys.argv[1:]:
    out = io.StringIO()
    before, sys.argv = sys.argv, [module, "--help"]
    try:
        with contextlib.redirect_stdout(out):
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        code = "did not exit"
    except SystemExit as end:
        code = end.code
    except Exception as error:
        code = repr(error)
    sys.argv = before
    said[module] = code, out.getvalue()
print(json.dumps(said))
"""


def test_every_script_has_a_help():
    """Protects --help: exit code 0, a strategy's own docstring and command, and every flag of a tool."""
    modules = [f"benchmarks.{name}" for name in STRATEGIES]
    programs = {name for name, text in TOOLS.items() if '__name__ == "__main__"' in text} - WITHOUT_FLAGS
    modules += [f"scripts.{name}" for name in sorted(programs)]
    command = [sys.executable, "-W", "ignore", "-c", HELPS, *modules]  # one interpreter: torch is imported once
    done = subprocess.run(command, cwd=ROOT, env=environment(COLUMNS=200), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for module, (code, text) in json.loads(done.stdout).items():
        assert code == 0, f"{module} --help: {code}"
        package, _, name = module.partition(".")
        if package == "benchmarks":
            first_line = ast.get_docstring(ast.parse(SCRIPTS[name])).splitlines()[0]
            assert first_line in text and f"-m {module}" in text and "--global-batch" in text
        else:
            assert "--help" in text and (text.count("--") >= 2 or "positional arguments" in text), module


def test_locks_and_replaced_files_have_one_place():
    """Protects from a lock opened through a link or waited for without end, and from a file replaced without a sync."""
    found = {}
    for path in [*ROOT.glob("benchmarks/**/*.py"), *ROOT.glob("scripts/**/*.py")]:
        for word in re.findall(r"\bfcntl\.flock|\bmkstemp\b|\.chmod\(|\.to_csv\([^)]*/", path.read_text()):
            found.setdefault(str(path.relative_to(ROOT)), set()).add(word)
    assert found == {"benchmarks/common/system/files.py": {"fcntl.flock"}}
