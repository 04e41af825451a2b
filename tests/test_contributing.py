"""The recipes of CONTRIBUTING.md, followed by a script. Where the code needs a file that a recipe omits, a check fails.

    .venv/bin/python -m pytest tests/test_contributing.py

A recipe is a section "To add ...", whose numbered steps begin with the path of a file. EDITS has an edit for each of
these files. Each test copies the checkout, makes the edits of the files that the recipe names, and then looks whether
the suite knows what was added. A step that begins with "If" is for special cases: only its paths are checked.
"""

import ast
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support import ROOT, environment

TEXT = (ROOT / "CONTRIBUTING.md").read_text()
COPIED = ("benchmarks", "configs", "launchers", "scripts", "tests")
SYNTHETIC = "--loader synthetic --arch resnet18 --image-size 32 --global-batch 4 --steps 8 --warmup-steps 1 --windows 1"


def steps_of(recipe: str) -> list[str]:
    """The numbered steps of a section of CONTRIBUTING.md, a line each."""
    section = re.split(r"(?m)^## ", TEXT.split(f"\n## {recipe}\n")[1])[0]
    steps = re.split(r"(?m)^\d+\. ", section)[1:]
    return [" ".join(step.split("\n\n")[0].split()) for step in steps]


def places_of(recipe: str) -> list[str]:
    """The file that each step is about, without the steps for special cases."""
    return [found[1] for step in steps_of(recipe) if (found := re.match(r"`([^`]+)`", step))]


def insert_before(path: Path, marker: str, text: str) -> None:
    content = path.read_text()
    assert content.count(marker) == 1, f"{path} has {content.count(marker)} times {marker!r}"
    path.write_text(content.replace(marker, text + marker))


def copy_renamed(folder: Path, source: str, target: str) -> None:
    """A copy of a file in which the strategy has its new name."""
    text = (folder / source).read_text()
    (folder / target).write_text(re.sub(r"benchmarks\.ddp\b", "benchmarks.new_strategy", text))
    shutil.copymode(folder / source, folder / target)


def write_new(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)


PLAN = '''"""The plan of a study that runs the baseline."""

from scripts.runner import run_plan


def plan_runs(variables):
    return run_plan.plan_strategies(variables)


def chart_command(variables):
    return ["scripts.charts.plot"]
'''
SECTION = '''"""The study's part of the report."""

from scripts.pages.study_sections import StudySection

SECTION = StudySection(order=1000)
'''
ACTION = """def new_study(options: run_options.RunOptions, flags: Sequence[str]) -> int:
    return run_with_data("new_study", options, flags)


"""
COMMAND = """    Command(
        "study new", "a new study", "study new --repeats 3", "run_options.RunOptions", "new_study", FLAGS_HELP
    ),
"""
CONFIG = "benchmarks/common/config/config.py"
ARCHITECTURES = "benchmarks/common/config/architectures.py"
DECODE = "benchmarks/common/data/decode.py"
EDITS: dict[str, dict[str, Callable[[Path], None]]] = {
    "To add a strategy": {
        "benchmarks/<name>.py": lambda folder: copy_renamed(folder, "benchmarks/ddp.py", "benchmarks/new_strategy.py"),
        "launchers/<name>.sh": lambda folder: copy_renamed(folder, "launchers/ddp.sh", "launchers/new_strategy.sh"),
    },
    "To add a model": {
        CONFIG: lambda folder: insert_before(folder / CONFIG, '    "vit_b_16",\n]', '    "convnext_small",\n'),
        ARCHITECTURES: lambda folder: insert_before(
            folder / ARCHITECTURES, '    "vit_b_16": dataclasses', '    "convnext_small": CONVNEXT,\n'
        ),
    },
    "To add a column": {
        "benchmarks/common/store/columns.py": lambda folder: insert_before(
            folder / "benchmarks/common/store/columns.py",
            '    Column("options",',
            '    Column("new_column", "number", "a number"),\n',
        ),
        "benchmarks/common/train/engine.py": lambda folder: insert_before(
            folder / "benchmarks/common/train/engine.py",
            '            "images_per_s": images / seconds',
            '            "new_column": 2.5,\n',
        ),
        "results/README.md": lambda folder: insert_before(
            folder / "results/README.md", "| `options` |", "| `new_column` | a number |\n"
        ),
    },
    "To add a decoder": {
        CONFIG: lambda folder: insert_before(folder / CONFIG, '"pillow", "nvimgcodec-gpu"]', '"new_decoder", '),
        DECODE: lambda folder: insert_before(
            folder / DECODE,
            '    "pillow": DecoderLibrary(',
            '    "new_decoder": DecoderLibrary(nvimgcodec_decoder, NVIMGCODEC_MODULE, "nvidia-nvimgcodec-cu13"),\n',
        ),
        "scripts/proof/reference_images.py": lambda folder: insert_before(
            folder / "scripts/proof/reference_images.py",
            '    "torchcodec": decode_by_torchcodec,',
            '    "new_decoder": decode_by_nvimgcodec,\n',
        ),
    },
    "To add a configuration field": {
        CONFIG: lambda folder: insert_before(
            folder / CONFIG,
            "    arch: Arch = ",
            '    new_field: Annotated[int, Range(1)] = 2\n    """A number."""\n',
        ),
    },
    "To add a study": {
        "scripts/studies/<name>/__init__.py": lambda folder: write_new(
            folder / "scripts/studies/new_study/__init__.py", ""
        ),
        "scripts/studies/<name>/plan.py": lambda folder: write_new(folder / "scripts/studies/new_study/plan.py", PLAN),
        "scripts/studies/<name>/section.py": lambda folder: write_new(
            folder / "scripts/studies/new_study/section.py", SECTION
        ),
        "scripts/studies/<name>/README.md": lambda folder: write_new(
            folder / "scripts/studies/new_study/README.md", "# A new study\n"
        ),
        "scripts/commands/actions.py": lambda folder: insert_before(
            folder / "scripts/commands/actions.py", "def run_slurm(", ACTION
        ),
        "scripts/commands/command_table.py": lambda folder: insert_before(
            folder / "scripts/commands/command_table.py", "]\nBY_WORDS", COMMAND
        ),
    },
}


@pytest.fixture
def follow(tmp_path) -> Callable[[str], Path]:
    """follow(recipe): a copy of the checkout, in which the files that the recipe names were edited."""

    def copied_and_edited(recipe: str) -> Path:
        folder = tmp_path / "a checkout"
        for part in COPIED:
            shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
        for path in [*ROOT.glob("*.*"), ROOT / "Makefile", ROOT / "bench"]:
            if path.is_file():
                shutil.copy(path, folder)
        (folder / "results").mkdir()
        shutil.copy(ROOT / "results" / "README.md", folder / "results")
        (folder / "results" / "published").symlink_to(ROOT / "results" / "published")
        for place in places_of(recipe):
            EDITS[recipe][place](folder)
        return folder

    return copied_and_edited


def run_in(folder: Path, *command: str | Path, **variables: object) -> str:
    """stdout of a command in the copy, which must end with 0."""
    env = environment(SETUP="no", PYTHONPATH=None, **variables)
    done = subprocess.run([*map(str, command)], cwd=folder, env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


def python_in(folder: Path, code: str) -> str:
    return run_in(folder, sys.executable, "-c", code)


def run_tests(folder: Path, *args: str) -> None:
    """Run tests of the copy, which start what we start: sys.executable is the client of our server."""
    run_in(folder, sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", *args, PRELOADED="no")


@pytest.mark.parametrize("recipe", EDITS)
def test_a_recipe_names_the_files_that_are_edited(recipe):
    """Protects from a recipe that names a file which is not there, and from an edit that no recipe asks for."""
    assert places_of(recipe) == [*EDITS[recipe]]
    for step in steps_of(recipe):
        for path in re.findall(r"`([\w./<>-]+/[\w./<>-]+\.\w+)`", step):
            assert [*ROOT.glob(path.replace("<name>", "*"))], path


def is_defined(path: str, name: str) -> bool:
    """Whether a file defines a function, a class, a constant or, as `Class.method`, a member; in bash: a function or a
    variable."""
    text = (ROOT / path).read_text()
    if not path.endswith(".py"):
        return bool(re.search(rf"(?m)^{name}\(\) \{{|^{name}=", text))
    body = ast.parse(text).body
    for part in name.split("."):
        found = [node for node in body if part in defined_names(node)]
        body = getattr(found[0], "body", []) if found else []
        if not found:
            return False
    return True


def defined_names(node: ast.stmt) -> set[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return {node.name}
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return {target.id for target in targets if isinstance(target, ast.Name)}


def test_the_path_of_a_run_is_the_codes():
    """Protects the reader of the path: every function is in its file, or called there by a launcher."""
    for step in steps_of("The path of a run"):
        path, name = re.match(r"`([^`]+)` `([^`]+)`: ", step).groups()
        calls = path.endswith(("Makefile", ".sh")) and name in (ROOT / path).read_text()
        assert is_defined(path, name) or calls, step


def answers() -> list[tuple[str, str]]:
    """(file, name) of every answer in the table of questions."""
    found = []
    for line in re.split(r"(?m)^## ", TEXT.split("\n## Where is what\n")[1])[0].splitlines():
        path = ""
        for word in re.findall(r"`([^`]+)`", line.split(" | ")[1] if line.count(" | ") == 1 else ""):
            path, name = (word, "") if "/" in word else (path, word)
            found += [(path, name)] if name else []
    return found


@pytest.mark.parametrize("path, name", answers())
def test_where_is_what_is_there(path, name):
    """Protects the reader who opens the file that the table names. Mutant: any name of the table misspelt."""
    assert is_defined(path, name)


def test_every_question_has_an_answer():
    """Protects the test above from a table that it does not read."""
    lines = [line for line in TEXT.splitlines() if line.count(" | ") == 1 and line.endswith("` |")]
    assert len(lines) >= 25 and len(answers()) > len(lines)
    assert not is_defined("scripts/sets/result_set.py", "ResultSet.no_such_name")
    assert not is_defined("scripts/sets/result_set.py", "no_such_name")


@pytest.mark.medium
def test_a_strategy(follow):
    """Protects the recipe: Make, the plan, the help and the tests of structure know the new strategy."""
    folder = follow("To add a strategy")
    planned = run_in(folder, "make", "bench-new_strategy", "PLAN=yes", ARGS=SYNTHETIC, DATA=folder)
    assert "round 3  new_strategy" in planned
    help_text = run_in(folder, sys.executable, "-m", "benchmarks.new_strategy", "--help")
    assert "-m benchmarks.new_strategy" in help_text and "--global-batch" in help_text
    run_tests(folder, "tests/test_structure.py", "-k", "not help and not torch")
    run_tests(folder, "tests/benchmarks/test_strategies.py", "-k", "launcher")


@pytest.mark.slow
def test_a_strategy_trains_is_proved_and_drawn(follow):
    """Protects the same with real ranks: rows, every check of a trained strategy, charts and the proof."""
    folder = follow("To add a strategy")
    run_tests(folder, "tests/benchmarks/test_strategies.py", "tests/benchmarks/test_fake_gpus.py", "-k", "new_strategy")
    variables = {"NPROC": 2, "ARGS": SYNTHETIC, "RESULTS": "results/new", "REPEATS": 1}
    run_in(folder, "make", "bench-all", STRATEGIES="single new_strategy", **variables)
    assert "new_strategy" in (folder / "results/new/charts/throughput.svg").read_text()


@pytest.mark.medium
def test_a_model(follow):
    """Protects the recipe: the flag takes the new model with its defaults, and it is torchvision's."""
    folder = follow("To add a model")
    code = "from benchmarks.common.config.config import load_config; "
    code += "config = load_config(['--arch', 'convnext_small']); print(config.lr, config.lr_batch)"
    assert python_in(folder, code).split() == ["0.004", "4096"]
    run_tests(folder, "tests/benchmarks/test_architectures.py", "-k", "table or (published and convnext_small)")


COLUMN = """
from pathlib import Path
from benchmarks.common.store.results import append_rows, read_table
from scripts.sets.result_set import load_set
append_rows(Path("results/new"), "runs", [{"run_id": "a", "status": "ok", "new_column": 2.5}])
print(read_table(Path("results/new"), "runs").new_column.tolist())
published = next(Path("results/published").glob("*/manifest.json")).parent
print(read_table(published, "runs").new_column.isna().all() and len(load_set(published).groups) > 1)
"""


@pytest.mark.medium
def test_a_column(follow):
    """Protects the recipe: the column is written, read and documented, and a set without it still loads."""
    folder = follow("To add a column")
    (folder / "results/new").mkdir()
    assert python_in(folder, COLUMN).split() == ["[2.5]", "True"]
    run_tests(folder, "tests/publish/test_readme.py", "-k", "every_column")


@pytest.mark.slow
def test_a_column_is_filled_by_a_run(follow):
    """Protects the same, from the training process to runs.csv, and the settings from a measured value."""
    folder = follow("To add a column")
    run_in(folder, "launchers/single.sh", ARGS=SYNTHETIC, RESULTS="results/new", DATA=folder)
    code = "from pathlib import Path; from benchmarks.common.store.results import read_table; "
    code += "print(read_table(Path('results/new'), 'runs').new_column.tolist())"
    assert python_in(folder, code).strip() == "[2.5]"
    (settings,) = folder.glob("results/new/logs/*/settings.json")
    assert "new_column" not in json.loads(settings.read_text())["met"]


@pytest.mark.medium
def test_a_decoder(follow):
    """Protects the recipe: the field takes the new decoder, its pixels are right, and the proof can read them."""
    folder = follow("To add a decoder")
    code = "from benchmarks.common.config.config import load_config; "
    code += "from benchmarks.common.data.decode import import_problem, resolve_decoder; "
    code += "print(import_problem('new_decoder') or resolve_decoder(load_config(['--decoder', 'new_decoder'])))"
    if "does not load" in (output := python_in(folder, code)):
        pytest.skip(output)
    assert output.strip() == "new_decoder"
    run_tests(
        folder,
        "tests/benchmarks/test_decode.py",
        "-k",
        "everywhere or (pixels_are_torchvisions and new_decoder and 224)",
    )
    run_tests(folder, "tests/proof/test_reference_images.py", "-k", "new_decoder")


FIELD = """
import dataclasses
from pathlib import Path
from benchmarks.common.config.config import load_config
from benchmarks.common.config.settings import requested_settings, settings_hash
from scripts.sets.result_set import load_set
configs = [load_config(["--new-field", text]) for text in "34"]
hashes = {settings_hash(requested_settings(config, "ddp", 2, 1, 1, "")) for config in configs}
print(configs[0].new_field, len(hashes))
published = next(Path("results/published").glob("*/manifest.json")).parent
print(len(load_set(published).groups) > 1)
"""


@pytest.mark.medium
def test_a_configuration_field(follow):
    """Protects the recipe: the field has a flag, a range and a help text, and runs that differ in it are not pooled."""
    folder = follow("To add a configuration field")
    assert python_in(folder, FIELD).split() == ["3", "2", "True"]
    assert "--new-field" in run_in(folder, sys.executable, "-m", "benchmarks.single", "--help")
    files = "tests/benchmarks/test_config.py", "tests/benchmarks/test_run_folder.py"
    run_tests(folder, *files, "-k", "not random_files and not a_script_reads")


STUDY = """
from scripts.pages.study_sections import load_sections
from scripts.runner.bench import find_plan
print(load_sections()[-1].order, find_plan("new_study").plan_runs.__module__)
"""


@pytest.mark.medium
def test_a_study(follow):
    """Protects the recipe: Make, the runner and the report find the new folder."""
    folder = follow("To add a study")
    assert python_in(folder, STUDY).split() == ["1000", "scripts.studies.new_study.plan"]
    assert "study new" in run_in(folder, "./bench", "--help")
    words = ["--plan", "--data", folder, "--", *SYNTHETIC.split()]
    assert "single" in run_in(folder, "./bench", "study", "new", *words)
    run_tests(folder, "tests/test_structure.py", "-k", "layers or circle or share_a_name or study")
