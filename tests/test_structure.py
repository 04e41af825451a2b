"""The shape of the code, which its two uses need: short scripts to copy, and one engine that knows no strategy."""

import ast
import re
import runpy
import shlex
import subprocess
import sys

import pytest
from support import ROOT, STRATEGIES, environment

from benchmarks.common.config import load_config
from benchmarks.common.engine import check_windows_fit
from scripts.cli.command_table import find_command
from scripts.cli.run_command import parse

# Of benchmarks/common, in the order of a reader: a module imports only those before it.
COMMON = """
    errors files machine architectures config columns rows run_folder exits rank
    listing packed images loader strategy model stages
    clock exchange phases checkpoint summary engine
""".split()
# Folders, the lowest first. A folder imports those of lower lines only; a study may import another study.
LAYERS = [
    ["common"],
    ["benchmarks", "shared"],
    ["memory"],
    ["setup"],
    ["data"],
    ["results"],
    ["charts", "runner"],
    ["report"],
    ["verify", "studies"],
    ["publish"],
    ["cli"],
]
LEVELS = {folder: level for level, folders in enumerate(LAYERS) for folder in folders}
READS_RESULTS = ["charts.plot", "report.page", "studies.compare", "runner.loop", "runner.record"]
READS_RESULTS += ["studies.sweep.section", "studies.loaders.section"]


def imported(path) -> set[str]:
    """Dotted names of a file's imports of ours, `from a import b` as a.b, wherever in the file they are."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name for name in names if name.split(".")[0] in ("benchmarks", "scripts", "tests")}


def folder_of(module: str) -> str:
    """common, benchmarks, runner or studies."""
    parts = module.split(".")
    return "common" if parts[1] == "common" else parts[1] if parts[0] == "scripts" else "benchmarks"


def test_imports_point_one_way():
    """common knows no script, and what reads results knows no study."""
    wrong = set()
    for path in [*ROOT.glob("benchmarks/**/*.py"), *ROOT.glob("scripts/*/**/*.py")]:
        importer = folder_of(".".join(path.relative_to(ROOT).with_suffix("").parts))
        for module in imported(path):
            if folder_of(module) != importer and LEVELS[importer] <= LEVELS[folder_of(module)]:
                wrong.add(f"{path.relative_to(ROOT)} imports {module}")
    assert wrong == set()


def test_a_module_of_common_imports_those_before_it():
    """Also by imports in functions."""
    wrong = set()
    for path in ROOT.glob("benchmarks/common/[!_]*.py"):
        before = COMMON[: COMMON.index(path.stem)]
        names = {module.split(".")[2] for module in imported(path) if module.startswith("benchmarks.common.")}
        wrong |= {f"{path.stem} imports {name}" for name in names - {*before}}
    assert wrong == set()


@pytest.mark.real_interpreter
@pytest.mark.launches
def test_what_only_reads_tables_needs_no_torch():
    code = "import importlib, sys\nfor name in sys.argv[1:]:\n    importlib.import_module(f'scripts.{name}')\n"
    code += "    if {'torch', 'torchvision'} & sys.modules.keys(): sys.exit(f'{name} imports torch')"
    command = [sys.executable, "-c", code, *READS_RESULTS]
    done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_strategy_is_a_script_a_launcher_and_a_target(name):
    """A script and common/ are all that a reader takes; its docstring has a command that fits."""
    path = ROOT / "benchmarks" / f"{name}.py"
    assert all(module.startswith("benchmarks.common.") for module in imported(path))
    (flags,) = re.findall(rf"(?m) -m benchmarks\.{name} ([^#\n]*)", ast.get_docstring(ast.parse(path.read_text())))
    config = load_config(flags.split())
    check_windows_fit(config, config.steps)
    assert (ROOT / "launchers" / f"{name}.sh").exists()
    planned = subprocess.run(["make", "-n", f"bench-{name}"], cwd=ROOT, capture_output=True, text=True)
    assert f"./bench run {name} " in planned.stdout


def test_plain_steps_are_equal():
    """These strategies differ in how they start and wrap, and not in what a step does."""
    steps = set()
    for name in ["single", "dataparallel", "ddp", "ddp_spawn", "slurm", "horovod_ddp"]:
        tree = ast.parse((ROOT / "benchmarks" / f"{name}.py").read_text())
        text = [ast.unparse(node) for node in ast.walk(tree) if getattr(node, "name", None) == "step"]
        steps |= {re.sub(r"output = \w+\(images\)", "output = model(images)", step) for step in text}
    assert len(steps) == 1


EXAMPLES = sorted(ROOT.glob("examples/*.py"))
TAUGHT = {"apex_ddp": "apex", "horovod_ddp": "horovod"}


def test_an_example_needs_nothing_of_the_suite():
    """torch, torchvision, Python's own modules, and the library that it shows."""
    for path in EXAMPLES:
        nodes = [*ast.walk(ast.parse(path.read_text()))]
        names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
        names |= {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
        ours = {"torch", "torchvision", TAUGHT.get(path.stem)}
        assert {name.split(".")[0] for name in names} - ours <= sys.stdlib_module_names, path


def test_functions_of_one_name_are_equal_in_all_examples():
    """What differs is in main, or has a name of its own."""
    functions: dict[str, set[str]] = {}
    for path in EXAMPLES:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef) and node.name != "main":
                functions.setdefault(node.name, set()).add(ast.dump(node))
    assert len(functions) > 5 and {name for name, found in functions.items() if len(found) > 1} == set()


LINK = re.compile(r"(?m)(?:\]\(|^\[[^\]]+\]: )(?!https?:|#)([^)#\s]+)")


def documents():
    listed = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / name for name in listed.stdout.splitlines()]


def test_links_between_documents_lead_somewhere():
    dead = {
        f"{path.relative_to(ROOT)}: {target}"
        for path in documents()
        for target in LINK.findall(path.read_text())
        if not (path.parent / target).exists()
    }
    assert dead == set()


def test_commands_in_documents_are_taken():
    """The command is there, and its options take the values that stand there."""
    for path in documents():
        text = re.sub(r"(?s)```\w*\n(.*?)```", lambda found: re.sub("(?m)^", "    ", found[1]), path.read_text())
        lines = re.findall(r"(?m)`([^`\n]+)`|^ {4}(.+)$", text.replace("\\\n", " "))
        for found in re.findall(r"(?m)(?:^|\s)\./bench ([^#;|\n]+)", "\n".join(map("".join, lines))):
            words = shlex.split(re.sub(r"<[\w|]+>", "x", found))
            command, rest = find_command(words)
            assert command or words[0] in ("COMMAND", "make", "--help") or path.name == "CHANGELOG.md", found
            if command and rest and "..." not in words:
                parse(command, rest[: rest.index("--")] if "--" in rest else rest)


def test_generated_documents_are_current():
    generate = runpy.run_path(ROOT / "docs/generate.py")
    for name, text in generate["pages"]().items():
        assert (ROOT / "docs" / name).read_text() == text, "python docs/generate.py"


@pytest.mark.parametrize("document", ["docs/faults.md", "SECURITY.md"])
def test_what_a_document_promises_has_its_test(document):
    """A name that no test has protects nothing."""
    tests = {name for path in ROOT.glob("tests/**/*.py") for name in re.findall(r"def (test_\w+)", path.read_text())}
    named = set(re.findall(r"`(test_\w+)`", (ROOT / document).read_text()))
    assert named and named <= tests, named - tests
