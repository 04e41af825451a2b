"""Messages name an option as their reader typed it: --until after ./bench, UNTIL with make and launchers.

.venv/bin/python -m pytest tests/commands/test_options_as_typed.py
"""

import subprocess

import pytest
from support import ROOT, SYNTHETIC_YAML, environment, few_fast

from benchmarks.common.config import load_config
from scripts.shared.options_as_typed import (
    option_as_typed,
    remember_options,
)


@pytest.mark.parametrize(
    ("command", "words"),
    few_fast(
        [
            (["./bench", "run", "single", "--until", "0%"], "--until is 0%"),
            (["make", "-s", "bench-single", "UNTIL=0%"], "UNTIL is 0%"),
            (["launchers/all.sh"], "UNTIL is 0%"),
            (
                ["./bench", "run", "single", "ddp", "--seeds", "9"],
                "--seeds 9 needs a round for each seed; give --repeats 9",
            ),
            (["make", "-s", "bench-ddp", "SEEDS=9"], "SEEDS=9 needs a round for each seed; give REPEATS=9"),
            (["./bench", "run", "single", "--results", "results"], "--results results is the folder of all sets"),
            (["./bench", "study", "sweep", "--strategy", "ddp"], "--key is not set"),
            (["./bench", "study", "scaling", "--strategy", "ddp", "--ranks", "x"], "--ranks is 'x'"),
        ],
        {0, 1},
    ),
)
@pytest.mark.real_interpreter
def test_a_message_names_what_was_typed(tmp_path, command, words):
    """Protects who typed a flag from a message about a variable, and the other way round. Mutant: ./bench make
    remembers options, too."""
    (tmp_path / "own.yaml").write_text(SYNTHETIC_YAML)
    variables = {"SETUP": "no", "CONFIG": tmp_path / "own.yaml", "DATA": tmp_path, "STRATEGIES": "single"}
    variables |= {"UNTIL": "0%"} if command[0].startswith("launchers") else {}
    if command[0] == "./bench":
        command = [*command, "--config", tmp_path / "own.yaml", "--data", tmp_path]
    env = environment(**variables)
    done = subprocess.run([*map(str, command)], cwd=ROOT, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and f"error: {words}" in done.stderr, done.stderr


def test_an_option_is_written_as_it_is_typed(monkeypatch):
    """Protects the four forms, and a variable for which the typed command has no option."""
    monkeypatch.setenv("TYPED_OPTIONS", "")
    assert (option_as_typed("RESULTS"), option_as_typed("RESULTS", "x")) == ("RESULTS", "RESULTS=x")
    remember_options(["results", "plan", "measure", "limit_s"])
    forms = [("RESULTS", "x"), ("PLAN", "yes"), ("MEASURE", "no"), ("TIMEOUT", 9), ("NNODES", 2), ("ARGS", None)]
    expected = ["--results x", "--plan", "--no-measure", "--limit-s 9", "NNODES=2", "the options after --"]
    assert [option_as_typed(*form) for form in forms] == expected


def test_a_misspelt_field_names_the_command_that_lists_all(capsys):
    """Protects the reader from the help of ./bench, which lists no fields."""
    with pytest.raises(SystemExit) as stopped:
        load_config(["--globl-batch", "3"])
    assert stopped.value.code == 2 and "run ./bench flags --help" in capsys.readouterr().err
