"""Commands that are printed for people to paste: names in them may be somebody else's, and run nothing.

.venv/bin/python -m pytest tests/test_printed_commands.py
"""

import ast
import re
from pathlib import Path

import pytest
from pasting import EVIL, paste
from support import ROOT

from benchmarks.common.config.config import Config
from benchmarks.common.data.packed import open_pack
from benchmarks.common.system.commands import NOT_SHOWN, bench_command, make_assignment, shell_word
from benchmarks.common.system.errors import UserError
from scripts.publish import publish
from scripts.publish.publishable import missing_files
from scripts.studies.ablation.analysis import OPTIONS
from scripts.studies.ablation.plan import missing
from scripts.studies.predict.gradient_times import baseline_config

TARGETS = re.search(r"(?m)^CALLS := (.*)$", (ROOT / "Makefile").read_text())[1].split()
STARTS = rf"make (?:{'|'.join(TARGETS)}|bench-)|git (?!cannot)[a-z]+|python -m [\w.]+|rm -|fuser |python3 "
COMMAND = rf"(?:\./bench [a-z]+|\b(?:{STARTS}))"
CLAUSE = r"[^;,:()]*"
MAKE = re.compile(r"\bmake (?:-\w+ )*(setup|data|bench|slurm|plot|report|compare|verify|gallery|gpu-check|help)\b")
"""A target that ./bench has, too. It has none of test, lint, fuzz and clean."""
OF_EVERY_COMMIT = {"provenance.py": {"make report"}}
"""What is typed after `git checkout` of a set's commit, which may be older than ./bench."""
QUOTING = {"shell_word", "make_assignment", "bench_command"}


@pytest.mark.parametrize("value", [EVIL, "$", "$$", "a  b", "--x=1 --y=$(id)", "$(shell touch ran)", "'\\''", "-n"])
def test_a_pasted_variable_arrives_whole_and_runs_nothing(tmp_path, value):
    """Protects who pastes a command from a report or a message. Mutants: shlex alone; $ doubled but not quoted."""
    assert paste(f"make bench-all {make_assignment('ARGS', value)}", tmp_path)["bench-all"]["ARGS"] == value
    words = paste(bench_command("data pack", value, data=value, values=["1", value]), tmp_path)["bench"]
    assert ([*words.values()][2:3] == [value] and f"--data={value}" in words.values()) or value == words["4"]


@pytest.mark.parametrize("value", ["a\nb", " a", "a ", "a\tb", "\x1b[31m", "a\u2028b", "a\nmake evil"])
def test_what_make_cannot_carry_is_left_out(value):
    assert make_assignment("ARGS", value) == ""
    assert shell_word(value) == (NOT_SHOWN if value.strip() != "a" or "\t" in value else f"'{value}'")


def error_of(function, *arguments) -> str:
    with pytest.raises(UserError) as raised:
        function(*arguments)
    return str(raised.value)


PACKED = next(option for option in OPTIONS if option.needs == "pack")
MESSAGES = {
    "of a missing pack": lambda folder: error_of(open_pack, Config(data=str(folder)), "train"),
    "of ./bench study ablation": lambda folder: missing(PACKED, Config(data=str(folder)), 1),
    "of ./bench publish": lambda folder: missing_files(folder)[0],
    "of a README that lacks a sweep": lambda folder: publish._remedy(folder, "sweeps/sweep.csv"),
    "of a README that lacks a chart": lambda folder: publish._remedy(folder, "charts/x.png"),
    "of ./bench study predict": lambda folder: error_of(baseline_config, folder),
}


@pytest.mark.parametrize("message", MESSAGES)
def test_a_command_in_a_message_runs_nothing_of_a_name(tmp_path, message):
    """Protects who pastes what a message says of a folder with a hostile name. Mutant: an f-string in one of them."""
    (folder := tmp_path / EVIL.replace("/", "-")).mkdir()
    (folder / "runs.csv").write_text("run_id,strategy\n")
    (folder / "settings.csv").write_text("settings\n")
    output = MESSAGES[message](folder)
    command = output[re.search(r"(\./bench|\bmake|\bgit) [a-z]", output).start() :]
    (pasted := tmp_path / "pasted").mkdir()
    arrived = [value for variables in paste(command, pasted).values() for value in variables.values()]
    assert command.startswith("git checkout") or any(str(folder) in value for value in arrived)


def unquoted(source: str) -> list[str]:
    """The values that an f-string puts into a command for bash without quoting them, as source text."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.JoinedStr):
            continue
        texts = [part.value if isinstance(part, ast.Constant) else "{}" for part in node.values]
        for place, part in enumerate(node.values):
            if isinstance(part, ast.Constant) or is_safe(part):
                continue
            before, after, value = "".join(texts[:place]), "".join(texts[place + 1 :]), ast.unparse(part.value)
            assigned = re.search(r"\b[A-Z_]+=$", before) and re.match(CLAUSE + COMMAND, after)
            run = value == "sys.executable" and after.startswith(" -")
            if assigned or run or re.search(COMMAND + CLAUSE + "$", before):
                found.append(value)
    return found


def is_safe(part: ast.FormattedValue) -> bool:
    """Whether it is quoted, a constant of the module, or a number (it has a format)."""
    value = part.value
    if isinstance(value, ast.Call):
        return isinstance(value.func, ast.Name) and value.func.id in QUOTING
    return part.format_spec is not None or (isinstance(value, ast.Name) and value.id.isupper())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("f'{a} is wrong; ./bench data pack --data {b} writes it'", ["b"]),
        ("f'run: RESULTS={results.path} make verify'", ["results.path"]),
        ("f'make bench-{BASELINE} RESULTS={shell_word(a)}; {b} is old'", []),
        ("f'{before}make setup TORCH={version}'", ["version"]),
        ("f'git checkout {path}'", ["path"]),
        ("f'end it (fuser {lock} names it); OUTPUT=x python3 {file.name}'", ["lock", "file.name"]),
        ("f'./bench study sweep --strategy {s} --key {k}'", ["s", "k"]),
        ("f'FAIL_OVER={100 * limit:g}% of make compare'", []),
        ("f'RESULTS={results} is no folder; make bench-all makes one'", []),
        ("f'{sys.executable} -m pip install torch'", ["sys.executable"]),
    ],
)
def test_the_rule_of_commands_finds_what_is_not_quoted(text, expected):
    assert unquoted(text) == expected


def test_every_printed_command_quotes_its_names():
    """Protects every message with a command, also the next one. Mutant: any bench_command as an f-string again."""
    paths = [*ROOT.glob("benchmarks/**/*.py"), *ROOT.glob("scripts/**/*.py")]
    found = {str(path.relative_to(ROOT)): names for path in paths if (names := unquoted(path.read_text()))}
    assert found == {}


def printed_texts(path: Path) -> list[str]:
    """What a file may print: the strings of a module that are no docstrings, the lines of a script or a template."""
    text = path.read_text()
    if path.suffix != ".py":
        return [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    tree = ast.parse(text)
    bodies = [body for node in ast.walk(tree) if isinstance(body := getattr(node, "body", None), list)]
    documents = {id(each.value) for body in bodies for each in body if isinstance(each, ast.Expr)}
    strings = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return [node.value for node in strings if id(node) not in documents]


def test_messages_and_pages_print_commands_of_bench():
    """Protects who pastes a command from one line that mixes two front doors, make and ./bench, whose options are
    written differently. Mutant: `make verify` in the cell of a strategy without a proof."""
    patterns = ("benchmarks/**/*.py", "scripts/**/*.py", "scripts/**/*.sh", "scripts/**/*.j2", "launchers/*.sh")
    found = {
        f"{path.relative_to(ROOT)}: {text}"
        for pattern in patterns
        for path in ROOT.glob(pattern)
        for text in printed_texts(path)
        if MAKE.search(text) and text not in OF_EVERY_COMMIT.get(path.name, ())
    }
    assert found == set()


def test_readmes_use_make_for_the_first_minutes_and_the_tests():
    """Protects the same in documents: after its three commands README has `make` for setup, bench-all, bench-NAME,
    tests and lint only. Mutant: `make verify` in any README."""
    found = {}
    for path in [ROOT / "README.md", *ROOT.glob("*/**/README.md")]:
        text = path.read_text()
        text = text.partition("## I have")[2] if path.parent == ROOT else text
        names = set(re.findall(r"\bmake (?:-\w+ )*(slurm-all|plot|report|compare|verify|gallery|gpu-check)\b", text))
        found |= {str(path.relative_to(ROOT)): names} if names else {}
    assert found == {}
