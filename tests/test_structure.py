"""The shape of the code, which its two uses need: short scripts to copy, and one engine that knows no strategy.

.venv/bin/python -m pytest tests/test_structure.py
"""

import ast
import graphlib
import importlib
import json
import re
import subprocess
import sys

import pytest
from support import ROOT, STRATEGIES, environment

from benchmarks.common.config.architectures import ARCHITECTURES
from benchmarks.common.config.config import load_config
from benchmarks.common.config.settings import READERS
from benchmarks.common.dist.layout import StrategyFacts
from benchmarks.common.train.clock import check_windows_fit
from scripts.strategies.strategy_list import CORE_STRATEGIES, strategy_facts

SCRIPTS = {name: (ROOT / "benchmarks" / f"{name}.py").read_text() for name in STRATEGIES}


def modules_below(folder: str) -> dict[str, str]:
    """The source text of every module below a folder, by its dotted name from there, such as train.engine."""
    paths = sorted((ROOT / folder).rglob("*.py"))
    return {
        ".".join(path.relative_to(ROOT / folder).with_suffix("").parts): path.read_text()
        for path in paths
        if path.stem != "__init__"
    }


COMMON = modules_below("benchmarks/common")
TOOLS = modules_below("scripts")
# What scripts.studies.peers.overhead compares with, bare of everything, and what runs before tyro is installed.
WITHOUT_FLAGS = {"studies.peers.bare_ddp", "setup.install", "gpu_check.carried", "runner.secret_variables"}
WITHOUT_TORCH = [
    "charts.plot", "studies.predict.report", "studies.compare.compare", "runner.bench", "runner.supervisor",
    "runner.run_plan",
]  # fmt: skip


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
            other for other in COMMON for module in modules if f"{module}.".startswith(f"benchmarks.common.{other}.")
        }
        for name, modules in ((name, imported(text)) for name, text in COMMON.items())
    }
    assert len([*graphlib.TopologicalSorter(graph).static_order()]) == len(COMMON)
    assert graph["train.engine"] >= {"train.meters", "train.record"}


# Folders, the lowest first. A folder imports folders of lower lines only; a folder of studies may import another study.
LAYERS = [
    ["common.system"],
    ["common.config"],
    ["common.store"],
    ["common.dist"],
    ["common.data"],
    ["common.model"],
    ["common.train"],
    ["benchmarks"],
    ["options"],
    ["strategies"],
    ["stats", "setup"],
    ["data_import"],
    ["sets"],
    ["charts", "runner"],
    ["pages"],
    ["proof", "studies"],
    ["publish", "gpu_check", "export"],
    ["commands"],
]
CORE_FOLDERS = ("stats", "sets", "charts", "runner", "pages")  # which import no study
ABOVE_STUDIES = ("publish", "gpu_check", "commands")


def folder_of(module: str) -> str:
    """The folder of a module: common.train, benchmarks, runner or studies.sweep."""
    parts = module.split(".")
    if parts[:2] == ["benchmarks", "common"]:
        return ".".join(parts[1:3])
    if parts[:2] == ["scripts", "studies"]:
        return ".".join(parts[1:3])
    return parts[1] if parts[0] == "scripts" else parts[0]


def imports_between_folders() -> set[tuple[str, str]]:
    """(folder that imports, folder that is imported), for all code that ships."""
    texts = {f"benchmarks.{name}": text for name, text in SCRIPTS.items()}
    texts |= {f"benchmarks.common.{name}": text for name, text in COMMON.items()}
    texts |= {f"scripts.{name}": text for name, text in TOOLS.items()}
    pairs = {
        (folder_of(importer), folder_of(module))
        for importer, text in texts.items()
        for module in imported(text)
        if module.split(".")[0] in ("benchmarks", "scripts")
    }
    return {(importer, module) for importer, module in pairs if importer != module}


def test_layers_point_one_way():
    """Protects reading order between folders, and the core from knowing any study: a study registers by being there."""
    level = {folder: number for number, folders in enumerate(LAYERS) for folder in folders}

    def breaks_the_rules(importer: str, module: str) -> bool:
        if module.startswith("studies."):
            return not importer.startswith("studies.") and (importer in CORE_FOLDERS or importer not in ABOVE_STUDIES)
        return level["studies" if importer.startswith("studies.") else importer] <= level[module]

    assert {pair for pair in imports_between_folders() if breaks_the_rules(*pair)} == set()


@pytest.mark.medium
def test_folders_have_no_circle_of_imports():
    """Protects reading order: every folder can be understood after those that it imports."""
    graph = {}
    for importer, module in imports_between_folders():
        graph.setdefault(importer, set()).add(module)
    assert [*graphlib.TopologicalSorter(graph).static_order()]


PARTS_OF_A_STUDY = {"analysis", "chart", "measure", "plan", "report", "section"}


def test_every_folder_of_scripts_has_a_readme():
    """Protects a stranger: a folder says what it answers, and its files in the order in which they are called."""
    folders = {path.parent for path in (ROOT / "scripts").glob("*/__init__.py")} - {ROOT / "scripts/studies"}
    unsaid = []
    for folder in sorted(folders):
        text = (folder / "README.md").read_text() if (folder / "README.md").exists() else ""
        files = [path.name for path in folder.iterdir() if path.suffix in (".py", ".sh") and path.stem != "__init__"]
        unsaid += [f"{folder.name}/{name}" for name in files if f"`{name}`" not in text]
    assert unsaid == []


def test_every_study_has_a_readme():
    """Protects the reader of a study's folder: its README says what is measured, and by which command."""
    studies = {path.parent for path in (ROOT / "scripts/studies").glob("*/__init__.py")}
    assert studies == {path.parent for path in (ROOT / "scripts/studies").glob("*/README.md")}


def test_no_two_files_share_a_name():
    """Protects search: a module's name says which file is meant, but for the parts that studies have."""
    modules = [*SCRIPTS, *COMMON, *TOOLS]
    names = [
        name.split(".")[-1]
        for name in modules
        if not (name.startswith("studies.") and name.split(".")[-1] in PARTS_OF_A_STUDY)
    ]
    assert sorted(names) == sorted({*names})


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_script_imports_common_and_no_other_script(name):
    """Protects copying: a script and common/ are all that a reader has to take."""
    ours = {module for module in imported(SCRIPTS[name]) if module.split(".")[0] in ("benchmarks", "scripts")}
    assert ours and all(module.startswith("benchmarks.common.") for module in ours)


@pytest.mark.real_interpreter
@pytest.mark.medium
def test_what_only_reads_tables_needs_no_torch():
    """Protects a laptop that draws a cluster's results, and half a minute of imports on a slow disk."""
    code = "import importlib, sys\nfor name in sys.argv[1:]:\n    importlib.import_module(f'scripts.{name}')\n"
    code += "    if {'torch', 'torchvision'} & sys.modules.keys(): sys.exit(f'{name} imports torch')"
    command = [sys.executable, "-c", code, *WITHOUT_TORCH]
    done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# --- scripts are short and alike ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_script_says_how_it_is_launched(name):
    """Protects the quickstart: a docstring with the exact command, in which a timed window fits. Without --config it
    would be ResNet-50 with a batch of 256, for which imagenet-mini is too small. Mutant: a command without --config."""
    docstring = ast.get_docstring(ast.parse(SCRIPTS[name]))
    (flags,) = re.findall(rf"(?m) -m benchmarks\.{name} ([^#\n]*)", docstring)
    config = load_config(flags.split())
    assert config.steps
    check_windows_fit(config, config.steps)


def test_plain_steps_are_equal():
    """Protects the comparison: these strategies differ in how they start and wrap, and not in what a step does."""
    plain = ["single", "dataparallel", "ddp", "ddp_spawn", "slurm", "horovod_ddp"]
    assert len({function(SCRIPTS[name], "step") for name in plain}) == 1
    assert function(SCRIPTS["ddp_amp"], "step") != function(SCRIPTS["ddp"], "step")


# The baseline, and the core list with its order. A study may be about some strategies, and names them.
NAMED = {
    "strategies.strategy_list": {*CORE_STRATEGIES},
    "runner.preflight": {"horovod_ddp", "slurm"},  # which variables of several machines their launchers read
    # which options a strategy reads; a test in tests/benchmarks/test_host.py compares it with the scripts
    "config.settings": {strategy for strategies in READERS.values() for strategy in strategies},
    # words of commands, and the defaults of options
    "commands.command_table": {"slurm"},
    "options.run_options": {"ddp"},
    "options.set_options": {"ddp"},
    "options.study_options": {"single"},
    # a table of commits, and of the strategies that each fixed
    "runner.commit_weaknesses": {"dataparallel", "horovod_ddp", "pipeline_parallel", "slurm", "zero1"},
    # lists of what to try on a GPU, which say what is run and branch on nothing
    "gpu_check.checks": {"ddp"},
    "gpu_check.timed_checks": {"ddp", "ddp_compile", "ddp_compressed"},
}


@pytest.mark.parametrize("name", [name for name in SCRIPTS | COMMON | TOOLS if not name.startswith("studies.")])
def test_no_branch_on_a_strategys_name(name):
    """Protects the design: functions are passed, so that a new strategy changes nothing that exists."""
    text = (SCRIPTS | COMMON | TOOLS)[name]
    words = [node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant)]
    assert set(STRATEGIES) & {word for word in words if isinstance(word, str)} == NAMED.get(name, set())


# Where a model's name may stand: in the table of models, and as a default.
MODELS_NAMED = {
    "config.config": {*ARCHITECTURES},
    "config.architectures": {*ARCHITECTURES},
    "options.study_options": {"resnet18", "resnet34", "resnet50"},
}


@pytest.mark.parametrize("name", [name for name in SCRIPTS | COMMON | TOOLS if not name.startswith("studies.")])
def test_no_branch_on_a_models_name(name):
    """Protects the design: a new model is a line of a table. Mutant: `if config.arch == "vit_b_16"` in any script."""
    text = (SCRIPTS | COMMON | TOOLS)[name]
    words = {node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant)}
    assert {word for word in words if isinstance(word, str)} & {*ARCHITECTURES} == MODELS_NAMED.get(name, set())


def top_level_function(name: str, function_name: str) -> ast.FunctionDef:
    (found,) = [node for node in ast.parse(SCRIPTS[name]).body if getattr(node, "name", None) == function_name]
    return found


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_script_builds_a_strategy(name):
    """Protects probes and studies, which call build(config) and drive what it returns: it trains nothing itself."""
    build = top_level_function(name, "build")
    assert build.args.args[0].arg == "config" and ast.unparse(build.returns) == "Strategy"
    assert "fit" not in {node.id for node in ast.walk(build) if isinstance(node, ast.Name)}


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_step_calls_no_recorder(name):
    """Protects the quickstart, whose step is what a reader copies: the step breakdown is by hooks."""
    names = {node.id for node in ast.walk(ast.parse(SCRIPTS[name])) if isinstance(node, ast.Name)}
    assert not names & {"recorder", "mark", "clock"}


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_script_has_a_layout(name):
    """Protects the memory check, which asks each strategy itself."""
    layout = top_level_function(name, "layout")
    assert [argument.arg for argument in layout.args.args] == ["config", "num_devices"]


@pytest.mark.parametrize("name", STRATEGIES)
def test_facts_are_read_without_torch_as_they_are(name):
    """Protects the plan, which reads FACTS without importing the script, and the launchers, which say it once more."""
    module = importlib.import_module(f"benchmarks.{name}")
    facts = strategy_facts(name)
    assert facts == getattr(module, "FACTS", StrategyFacts())
    launcher = (ROOT / "launchers" / f"{name}.sh").read_text().splitlines()
    assert facts.one_node == ("on_one_node" in launcher)


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


# What a library documents as a setting, to be assigned.
SETTINGS = re.compile(r"torch\.backends\..*|tempfile\.tempdir|sys\.(argv|stdout|stderr|pycache_prefix)")


def foreign_names(tree: ast.Module) -> set[str]:
    """Names in a module that stand for another module, or for what was imported from one."""
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    return {(alias.asname or alias.name).split(".")[0] for node in imports for alias in node.names}


def assigned_attributes(tree: ast.Module) -> list[tuple[ast.Attribute, ast.expr | None]]:
    """Every attribute that a module assigns or deletes, with the value that it gets, if there is one alone."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load):
            found.append((node, None))
        if isinstance(node, ast.Assign):
            found += [(target, node.value) for target in node.targets if isinstance(target, ast.Attribute)]
    return found


def patches(text: str) -> list[str]:
    """What a module replaces in other modules, in imported classes and in objects of others."""
    tree = ast.parse(text)
    foreign, own_functions = foreign_names(tree), {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)}
    found = []
    for target, value in assigned_attributes(tree):
        name = ast.unparse(target)
        root = name.split(".")[0].split("[")[0].split("(")[0]
        is_function = isinstance(value, ast.Lambda) or (isinstance(value, ast.Name) and value.id in own_functions)
        if (root in foreign and not SETTINGS.fullmatch(name)) or (is_function and root != "self"):
            found.append(name)
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    return found + [ast.unparse(call) for call in calls if call.func.id in ("setattr", "delattr")]


@pytest.mark.medium
def test_nothing_that_ships_patches_anything():
    """Protects what users run: no function of a library or of another module is replaced. Settings may be assigned."""
    for name, text in (SCRIPTS | COMMON | TOOLS).items():
        assert not any(module.split(".")[0] == "unittest" for module in imported(text)), name
        assert patches(text) == [], name


@pytest.mark.parametrize(
    "text",
    [
        "import torch\ntorch.autograd.backward = lambda *_: None",
        "from torch import Tensor\nTensor.backward = None",
        "import torch\nbefore, torch.save = torch.save, print",
        "def marking(): pass\ndef f(loader): loader.fetch = marking",
        "def f(loader): setattr(loader, 'fetch', print)",
    ],
)
def test_a_patch_is_seen(text):
    assert patches(text)


HELPS = """
import contextlib, io, json, runpy, sys, warnings
warnings.simplefilter("ignore")
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


@pytest.mark.medium
def test_every_script_has_a_help():
    """Protects --help: exit code 0, a strategy's own docstring and command, and every flag of a tool."""
    modules = [f"benchmarks.{name}" for name in STRATEGIES]
    programs = {name for name, text in TOOLS.items() if '__name__ == "__main__"' in text} - WITHOUT_FLAGS
    modules += [f"scripts.{name}" for name in sorted(programs)]
    command = [sys.executable, "-c", HELPS, *modules]
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


@pytest.mark.medium
def test_every_child_dies_with_its_parent():
    """Protects the machine from ranks that go on after `./bench study peers` or any other was killed, and time beside
    whatever comes next. Mutants: a Popen without it; an executor without it."""
    # pip, which may finish; nvidia-smi, which has its own end; what has the standard library alone
    without = {"setup.install", "common.system.gpus", "gpu_check.carried"}
    modules = TOOLS | {f"common.{name}": text for name, text in COMMON.items()}
    found = set()
    for name, text in modules.items():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("Popen", "ProcessPoolExecutor")):
                arguments = [*node.args, *(word.value for word in node.keywords)]
                if "die_with_parent()" not in map(ast.unparse, arguments):
                    found.add(name)
    assert found == without
