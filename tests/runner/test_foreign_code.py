"""Whose code a launcher or make runs: the checkout's, whatever the environment says of other folders.

.venv/bin/python -m pytest tests/runner/test_foreign_code.py
"""

import encodings
import importlib.util
import marshal
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from support import ROOT, environment, put

from benchmarks.common.system import source_version
from scripts.runner.commit_weaknesses import WEAKNESSES, weaknesses
from scripts.studies.ab import worktrees

pytestmark = pytest.mark.real_interpreter  # where modules are imported from

SCRIPTS = sorted([*ROOT.glob("launchers/*.sh"), *ROOT.glob("scripts/**/*.sh"), ROOT / ".ci/run"])
LINE = "unset CDPATH PYTHONSAFEPATH PYTHONPYCACHEPREFIX PYTHONINSPECT"
LIBRARIES = ("lib.sh", "install_lib.sh")  # which have the line, and are sourced first


def folder_of_others(folder):
    """A folder that looks like the checkout, and notes where its code is run."""
    ran = folder / "ran"
    code = f"open({str(ran)!r}, 'w')\nraise SystemExit(1)\n"
    programs = [f"scripts/runner/{name}.py" for name in ("bench", "run_plan", "supervisor")]
    for name in (*programs, "sitecustomize.py"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(code)
    put(
        folder / "launchers", **{"all.sh": f"touch '{ran}'", "lib.sh": f"touch '{ran}'", "cluster.sh": f"touch '{ran}'"}
    )
    put(folder / ".venv", python=f"touch '{ran}'")
    return folder, ran


@pytest.mark.parametrize(
    "command",
    [
        "launchers/all.sh",
        'make -s SETUP=no PYTHON="$PYTHON" bench-all',
        pytest.param("launchers/single.sh", marks=pytest.mark.slow),
    ],
)
def test_only_the_checkouts_code_is_run(tmp_path, tiny_data, tiny_config, command):
    """Protects whose shell has CDPATH, PYTHONSAFEPATH or an empty element in PYTHONPATH from a folder like this one,
    and lets each of them be set."""
    folder, ran = folder_of_others(tmp_path / "foreign")
    user_variables = {"CDPATH": folder, "PYTHONSAFEPATH": "1", "PYTHONPATH": ":", "PLAN": "yes", "STRATEGIES": "single"}
    user_variables |= {"CONFIG": tiny_config, "DATA": tiny_data, "RESULTS": tmp_path / "a set"}
    words = ["bash", "-c", command]
    done = subprocess.run(
        words, cwd=ROOT, env=environment(**user_variables), capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0 and "single" in done.stdout + done.stderr, done.stdout + done.stderr
    assert not ran.exists()


def test_a_launcher_is_started_from_anywhere(tmp_path):
    """Protects from the current folder: an empty element of PYTHONPATH is that folder, and a launcher leaves it."""
    folder, ran = folder_of_others(tmp_path / "foreign")
    (folder / "sitecustomize.py").unlink()
    user_variables = {"PLAN": "yes", "STRATEGIES": "single", "CDPATH": folder, "PYTHONPATH": ":", "DATA": "none"}
    words = [ROOT / "launchers/all.sh"]
    done = subprocess.run(
        words, cwd=folder, env=environment(**user_variables), capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 2 and "'none'" in done.stderr and not ran.exists()


@pytest.mark.parametrize("safe_path", ["", "1"])
@pytest.mark.parametrize("search_path", ["/opt/x:src:", ":/opt/x", "src:/opt/x"])
@pytest.mark.parametrize("program", ["bench", "scripts/gpu_check/carried.py"])
def test_the_command_takes_no_module_of_the_current_folder(tmp_path, program, search_path, safe_path):
    """Protects who asks for help in a folder that was downloaded, where PYTHONPATH has an empty part, as
    `PYTHONPATH=/opt/x:$PYTHONPATH` leaves one, or a relative one. With PYTHONSAFEPATH it may be the first of sys.path,
    where the program's own folder is otherwise. Mutants: sys.path as Python makes it; the empty part alone left out;
    the first of sys.path kept."""
    (tmp_path / "src").mkdir()
    for name in ("signal", "functools", "pathlib", "fcntl", "contextlib", "hashlib", "json", "subprocess"):
        for folder in (tmp_path, tmp_path / "src"):
            (folder / f"{name}.py").write_text("open('ran', 'w')\n")
    env = environment(PYTHONPATH=search_path, PYTHONSAFEPATH=safe_path)
    words = [sys.executable, "-S", ROOT / program, "--help"]
    done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0 and not (tmp_path / "ran").exists() and "Traceback" not in done.stderr, done.stderr


def test_a_makefile_of_another_folder_is_refused(tmp_path):
    """Protects from `make -f`, by which the current folder's programs would be run as if they were the checkout's."""
    folder, ran = folder_of_others(tmp_path / "foreign")
    words = ["make", "-f", ROOT / "Makefile", "bench-all"]
    done = subprocess.run(words, cwd=folder, env=environment(SETUP="no"), capture_output=True, text=True)
    assert done.returncode == 2 and "use make -C FOLDER, not make -f" in done.stderr and not ran.exists()
    (tmp_path / "a link").symlink_to(ROOT)
    assert subprocess.run(["make", "-C", tmp_path / "a link", "-n", "help"], capture_output=True).returncode == 0


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_every_script_drops_cdpath(path):
    """Protects the next script that says `cd`: the line comes before it, or the library that has it does."""
    if path.name == "cluster.sh":
        return  # functions only, for scripts that have the line
    lines = path.read_text().splitlines()
    sourced = [f'source "$(dirname "$0")/{name}"' for name in LIBRARIES]
    first = next(number for number, line in enumerate(lines) if line == LINE or line in sourced)
    assert not [line for line in lines[:first] if line.strip().startswith(("cd ", "source "))]


def test_make_drops_it_too():
    words = ["make", "-s", "--eval", "shown:; @env", "shown"]
    env = environment(CDPATH="/x", PYTHONSAFEPATH="1", PYTHONPYCACHEPREFIX="/x", PYTHON=sys.executable)
    done = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True, check=True)
    assert "PYTHON=" in done.stdout and "CDPATH" not in done.stdout and "SAFEPATH" not in done.stdout
    assert "PYCACHEPREFIX" not in done.stdout


def test_no_compiled_module_of_a_chosen_folder_is_run(tmp_path, monkeypatch):
    """Protects whose PYTHONPYCACHEPREFIX names a folder that another user has made: Python looks at the size and the
    time of the source alone. Mutants: bench without its line; the variable handed on."""
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path))
    for source in (ROOT / "scripts/setup/first_minute.py", ROOT / "scripts/commands/start.py"):
        code = compile(f"open({str(tmp_path / 'ran')!r}, 'w')", str(source), "exec")
        status, kept = source.stat(), Path(importlib.util.cache_from_source(str(source)))
        kept.parent.mkdir(parents=True, exist_ok=True)
        head = importlib.util.MAGIC_NUMBER + struct.pack("<III", 0, int(status.st_mtime), status.st_size)
        kept.write_bytes(head + marshal.dumps(code))
    for words in ([ROOT / "bench", "--help"], [ROOT / "bench", "power", "--help"]):
        env = environment(PYTHONPYCACHEPREFIX=tmp_path, PYTHON=sys.executable, SETUP="no")
        done = subprocess.run([sys.executable, *words], env=env, capture_output=True, text=True)
        assert done.returncode == 0 and not (tmp_path / "ran").exists(), done.stderr


@pytest.mark.parametrize("program", ["bench", "a link"])
def test_the_command_starts_by_no_compiled_module_of_a_chosen_folder(tmp_path, program):
    """Protects from the same, before the first line of bench: Python starts by its module `encodings`, and a compiled
    one may say that its source is not to be looked at. Mutant: `#!/usr/bin/env python3`."""
    ran, source = tmp_path / "ran", Path(encodings.__file__)
    planted = f"import posix\nposix.close(posix.open({str(ran)!r}, posix.O_CREAT))\n"
    find = "import importlib.util, sys; print(importlib.util.cache_from_source(sys.argv[1]))"
    words, env = [sys.executable, "-c", find, source], environment(PYTHONPYCACHEPREFIX=tmp_path)
    kept = Path(subprocess.run(words, env=env, capture_output=True, text=True, check=True).stdout.strip())
    kept.parent.mkdir(parents=True, exist_ok=True)
    code = marshal.dumps(compile(planted + source.read_text(), str(source), "exec"))
    kept.write_bytes(importlib.util.MAGIC_NUMBER + struct.pack("<I", 1) + bytes(8) + code)
    subprocess.run([sys.executable, "-c", ""], env=env, check=True)
    assert ran.exists()  # else nothing is shown by what follows
    ran.unlink()
    (tmp_path / "a link").symlink_to(ROOT / "bench")
    put(tmp_path / "bin", python3=f'exec "{sys.executable}" "$@"')
    env |= {"PATH": f"{tmp_path / 'bin'}:{env['PATH']}", "SETUP": "no"}
    command = [ROOT / "bench" if program == "bench" else tmp_path / program, "--help"]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0 and "./bench" in done.stdout and not ran.exists(), done.stderr


TARGETS = """data bench-all bench-ddp slurm-all plot compare report verify gallery gpu-check fuzz test test-medium
test-slow test-all clean""".split()
VARIABLES = (
    "RESULTS DATA A B FAIL_OVER ARGS CONFIG TESTS STRATEGIES REPEATS UNTIL BUDGET SEEDS RETRY NPROC TORCH".split()
)


@pytest.mark.parametrize("as_variable", [True, False])
@pytest.mark.medium
def test_no_text_of_a_variable_is_run_by_a_recipe(tmp_path, as_variable):
    """Protects who completes the name of a folder that somebody else has named.

    Mutant: any recipe that has $(RESULTS), say, in place of "$$RESULTS". The interpreter's path has a space.
    """
    ran, python = tmp_path / "ran", tmp_path / "an interpreter"
    python.write_text("#!/bin/bash\n")
    python.chmod(0o755)
    user_variables = dict.fromkeys(VARIABLES, f"x`touch {ran}`;touch {ran};")
    words = [
        "make",
        "-k",
        "SETUP=no",
        *TARGETS,
        *(f"{name}={text}" for name, text in user_variables.items() if as_variable),
    ]
    env = environment(**({} if as_variable else user_variables)) | {"PYTHON": str(python)}
    done = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True, timeout=120)
    assert "No rule to make" not in done.stderr and not ran.exists()


@pytest.mark.parametrize("name", ["DATA", "RESULTS", "A", "name", "each"])
def test_no_text_of_the_command_line_is_run_by_make(tmp_path, name):
    """Protects who completes such a name: make expands what its command line says before any recipe.

    A doubled $, which the commands in reports have, is one. In the environment make leaves it alone. Mutant: no look.
    """
    ran, text = tmp_path / "ran", f"a $(shell touch {tmp_path}/ran) folder"
    show = ["make", "-s", "--eval", f"shown:; @printf '%s' \"$${name}\"", "shown"]

    def say(*words, **variables):
        return subprocess.run([*show, *words], cwd=ROOT, env=environment(**variables), capture_output=True, text=True)

    refused = say(f"{name}={text}")
    assert refused.returncode == 2 and f"{name} has a $ in it" in refused.stderr and not ran.exists()
    assert say(f".each={text}").returncode == 2 and not ran.exists()  # the loop's own variable
    doubled = text.replace("$", "$$")
    assert say(f"{name}={doubled}").stdout == say(**{name: text}).stdout == text and not ran.exists()


def test_no_text_of_the_environment_is_run_by_make(tmp_path):
    """Protects from what make expands in its own conditions: YES alone. Mutant: no look."""
    env = environment(YES=f"$(shell touch {tmp_path}/ran)")
    done = subprocess.run(["make", "-n", "clean", "setup"], cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 2 and "YES has a $ in it" in done.stderr and not (tmp_path / "ran").exists()


@pytest.mark.parametrize("weakness", WEAKNESSES, ids=lambda weakness: f"{weakness.mended_by[:7]} {weakness.nodes}")
def test_an_earlier_commit_is_known_by_its_weaknesses(weakness):
    """Protects who runs an old set again: its code lets others in. Mutants: the two commits of merge-base swapped;
    every strategy; one node and several alike."""
    if not worktrees.git_succeeds("cat-file", "-e", f"{weakness.mended_by}^{{commit}}"):
        pytest.skip("this clone does not have that history")
    before, what = f"{weakness.mended_by}^", weakness.what
    for strategy in weakness.strategies or ("single", "ddp"):
        for num_nodes, not_these in ((1, "several"), (2, "one")):
            assert (what in weaknesses(before, strategy, num_nodes)) == (weakness.nodes != not_these)
            assert what not in weaknesses(weakness.mended_by, strategy, num_nodes)
            assert weaknesses("HEAD", strategy, num_nodes) == []
        found = weaknesses(before, strategy, 2 if weakness.nodes == "several" else 1, in_worktree=True)
        assert (what in found) != weakness.is_prevented_in_worktrees
        found = weaknesses(before, strategy, 2 if weakness.nodes == "several" else 1, foreign_images=False)
        assert (what in found) != weakness.needs_foreign_images
    if weakness.strategies:
        assert what not in weaknesses(before, "ddp", 1)


def test_a_shallow_clone_knows_of_no_mend(monkeypatch):
    """Protects from a set whose commit is weak and here, while the fix is on a side branch that is not. In another
    history nobody has chosen these commits. Mutant: a fix that is not here is in every commit."""
    monkeypatch.setattr(source_version, "git", lambda *words: None)
    for is_shallow in (True, False):
        monkeypatch.setattr(source_version, "is_shallow", lambda is_shallow=is_shallow: is_shallow)
        found = weaknesses("0" * 40, "ddp", 1)
        assert bool(found) == is_shallow and all(text.endswith("git fetch --unshallow)") for text in found)


@pytest.mark.real_interpreter
def test_pythoninspect_changes_no_exit_code():
    """Protects gates: with PYTHONINSPECT=1 every exit code was 1, which for `ab` and `compare` means slower. Mutant:
    bench without the variable in its first line."""
    env = environment(PYTHONINSPECT="1", PYTHON=sys.executable, SETUP="no")
    done = subprocess.run([ROOT / "bench", "nosuch"], env=env, stdin=subprocess.DEVNULL)
    assert done.returncode == 2
