"""./bench and the Makefile: help before anything is installed, words and paths, exit codes as a shell sees them."""

import inspect
import json
import os
import shutil
import subprocess
import sys
import typing

import pytest
from result_sets import write_set
from support import ROOT, SYNTHETIC_YAML, environment, put

from scripts.cli.command_table import COMMANDS, find_command
from scripts.cli.run_command import named_below_scripts, parse

pytestmark = pytest.mark.real_interpreter  # which interpreter is started, and where from
BENCH = ROOT / "bench"


def bench(*words, cwd=ROOT, **variables):
    """./bench, started as a shell starts it."""
    env = environment(SETUP="no", **variables)
    return subprocess.run([BENCH, *map(str, words)], cwd=cwd, env=env, capture_output=True, text=True, timeout=300)


MAKE = """
def make(venv):
    print("installed", flush=True)
    (venv / "bin").mkdir(exist_ok=True)
    for name in ("python", "pip"):
        (venv / "bin" / name).unlink(missing_ok=True)
        (venv / "bin" / name).symlink_to(sys.executable)
    (venv / "pyvenv.cfg").write_text(f"executable = {Path(sys.executable).resolve()}")
    (venv / READY).write_text(hash_of_lists())
"""


@pytest.fixture
def fresh_clone(tmp_path):
    """The suite as it is here, with an installer that only says so."""
    folder = tmp_path / "a clone"
    for part in ("benchmarks", "scripts"):
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    for path in [BENCH, *ROOT.glob("requirements*")]:
        shutil.copy(path, folder)
    with open(folder / "scripts/setup/install.py", "a") as file:
        file.write(MAKE)
    failing = "echo horovod; echo no compiler >.venv/horovod.failed; exit 1"
    put(folder / "scripts/setup", **{"horovod.sh": failing, "apex.sh": "exit 1"})
    return folder


def bare(clone, *words):
    """./bench by an interpreter without packages."""
    command = [sys.executable, "-I", "-S", clone / "bench", *words]
    env = {"PATH": os.environ["PATH"]}
    return subprocess.run(command, cwd=clone.parent, env=env, capture_output=True, text=True, timeout=300)


@pytest.mark.launches
def test_one_gpu_compares_the_options_of_one_process():
    """The baseline with each option by itself."""
    done = bench("run", "--one-gpu", "--repeats", "1", "--plan", "--", "--loader", "synthetic", NPROC=4)
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines() if line.startswith("  round")]
    assert {words[2] for words in lines} == {"single,"} and len(lines) > 5
    named = {" ".join(words[3:]).partition(" skipped: ")[0] for words in lines}
    assert {"nothing on", "bf16", "channels_last", "torch.compile", "all together"} <= named
    assert len(named) == len(lines)
    refused = bench("run", "ddp", "--one-gpu", "--plan")
    assert refused.returncode == 2 and "leave the strategies and --nproc out" in refused.stderr


def test_help_is_one_screen_and_needs_nothing_that_is_installed(fresh_clone):
    """A bare python3 prints it."""
    for words in (["--help"], ["run", "--help"]):
        done = bare(fresh_clone, *words)
        assert done.returncode == 0 and not done.stderr, done.stderr
        lines = done.stdout.splitlines()
        assert len(lines) <= 40 and max(map(len, lines)) <= 100
    assert "./bench run single ddp" in done.stdout and "./bench setup" in done.stdout
    assert not (fresh_clone / ".venv").exists()


def test_set_up_is_made_once(fresh_clone):
    """Where .venv is missing, has no interpreter, or has others than the listed packages. A library that fails is tried
    once."""
    first, second = bare(fresh_clone, "setup"), bare(fresh_clone, "setup")
    assert first.stdout == "installed\nhorovod\n" and second.stdout == "", first.stderr
    (fresh_clone / ".venv/bin/python").unlink()
    assert bare(fresh_clone, "setup").stdout == "installed\n"
    (fresh_clone / "requirements.lock").write_text("another")
    assert bare(fresh_clone, "run", "--nonsense").stdout == "installed\n"


def test_help_of_a_command_loads_no_torch():
    code = "import sys; from scripts.cli import run_command\n"
    code += "try:\n    run_command.main(['study', 'allreduce', '--help'], None)\nexcept SystemExit: pass\n"
    code += "print([name for name in ('torch', 'pandas', 'matplotlib', 'scipy') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment(), capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.words)
def test_every_example_is_a_command_line_whose_function_takes_its_options(command):
    found, rest = find_command(command.example.split())
    assert found == command
    split_at = rest.index("--") if "--" in rest else len(rest)
    parse(command, rest[:split_at])
    assert not rest[split_at:] or command.flags
    function, options_class = map(named_below_scripts, (command.action, command.options))
    options, *others = inspect.signature(function).parameters.values()
    assert typing.get_type_hints(function)[options.name] in (options_class, typing.Any)
    names = [other.name for other in others if other.default is other.empty or other.name == "found"]
    assert names == ["flags"] * bool(command.flags) + ["found"] * hasattr(options_class, "json")


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["study", "loadrs"], "./bench --help"),
        (["compare", "--fail-ovr", "5%"], "--fail-over"),
        (["plot", "--", "--global-batch", "8"], "takes nothing after --"),
    ],
)
def test_a_misspelt_word_is_named(words, hint):
    done = bench(*words)
    assert done.returncode == 2 and hint in done.stderr and "Traceback" not in done.stderr


@pytest.mark.launches
def test_paths_are_of_the_folder_in_which_they_were_typed(tmp_path):
    """Also those with spaces."""
    (tmp_path / "a file.yaml").write_text(SYNTHETIC_YAML)
    words = ["run", "single", "--plan", "--repeats", "2", "--config", "a file.yaml", "--results", "my set"]
    done = bench(*words, "--", "--steps", "3", cwd=tmp_path, DATA="/nowhere", REPEATS="7")
    assert done.returncode == 0, done.stderr
    assert f"2 of 2 runs, in {tmp_path}/my set; none is started" in done.stdout
    latest = bench("plot", "--results", "results/latest", cwd=tmp_path)  # though it is the default
    assert latest.returncode == 2 and str(tmp_path) in latest.stderr


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sets")
    speeds = {"base": {"single": 100, "ddp": 170}, "slow": {"single": 100, "ddp": 140}}
    return {name: write_set(folder / name, speed, 5) for name, speed in speeds.items()}


@pytest.mark.launches
def test_json_is_one_object_on_stdout(sets):
    """All other text is on stderr."""
    words = ["compare", sets["base"], sets["slow"], "--fail-over", "5%", "--day-sd", "0.1%", "--json"]
    done = bench(*words)
    found = json.loads(done.stdout)
    assert done.returncode == found["exit_code"] == 1 and found["command"] == "compare" and "ratio" in done.stderr
    (ddp,) = [each for each in found["comparisons"] if each["comparison"] == "ddp"]
    assert ddp["verdict"] == "slower" and ddp["ratio_low"] < ddp["ratio"] < ddp["ratio_high"] < 0.95
    wrong = bench("compare", sets["base"], "nowhere", "--json")
    assert wrong.returncode == 2 and wrong.stdout == "" and wrong.stderr.startswith("error: ")


# --- the Makefile -----------------------------------------------------------------------------------------------------


def make(*words, **variables):
    env = environment(SETUP="no", **variables)
    return subprocess.run(["make", *words], cwd=ROOT, env=env, capture_output=True, text=True, timeout=300)


def test_makes_help_is_one_screen():
    lines = make("help").stdout.splitlines()
    assert len(lines) <= 24 and max(map(len, lines)) <= 100 and "./bench --help" in lines[-1]


def test_a_misspelt_variable_is_not_ignored():
    """Of the environment, where libraries have theirs, it may be."""
    done = make("bench-ddp", "REPEAT=3")
    assert done.returncode == 2 and "there is no variable REPEAT" in done.stderr
    assert make("-n", "bench-ddp", "REPEATS=3", REPEAT=3).returncode == 0


def test_make_passes_its_variables_on(tmp_path):
    (tmp_path / "an own.yaml").write_text(SYNTHETIC_YAML)
    put(tmp_path / "bin", python3="printf '%s\\n' \"${@:2}\"")  # which ./bench is started by
    path = {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "CONFIG": tmp_path / "an own.yaml"}
    run = make("bench-all", "STRATEGIES=single ddp", "REPEATS=2", "ARGS=--steps 3", **path).stdout.splitlines()
    assert run == ["run", "single", "ddp", "--config", str(path["CONFIG"]), "--repeats", "2", "--", "--steps", "3"]
    assert make("bench-ddp", "NPROC=1", **path).stdout.split()[:2] == ["run", "ddp"]
    plot = make("plot", "RESULTS=a set", "ARGS=--output x", **path).stdout.splitlines()
    assert plot == ["plot", "--results", "a set", "--output", "x"]
