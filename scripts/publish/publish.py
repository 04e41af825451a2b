"""Checks a result set and puts it into results/published/<name>/, with its report; README's figures follow.

    ./bench publish --name cpu2-epyc_torch2.15_202611 --results results/x [--replace]

What goes along: the tables, environment.json, the report and its charts, the same of the sets `scaling`, `sweeps`
and `ablation` inside, and a manifest with checksums; no logs and no checkpoints. Paths of this machine become names,
and hosts numbers. environment.json keeps only what allowlist.py lists. If a file still holds what a set may not say,
such as a password, an address or a host, nothing is published.
All is made in a folder beside the place and renamed, so that a stop leaves the old set or the new one. Exit code: 1
where the set may not be published, with a line for each reason, 2 for a mistake. Needs no torch.
"""

import datetime
import json
import os
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import tyro

from benchmarks.common.store.columns import TABLES
from benchmarks.common.store.output_files import refuse_results_of_others
from benchmarks.common.store.results import write_json, write_text_atomically
from benchmarks.common.store.safe_cells import has_formula_after_semicolon, without_formulas
from benchmarks.common.store.safe_names import file_inside, first_line, read_text, refuse_links
from benchmarks.common.system.commands import bench_command, shell_word
from benchmarks.common.system.errors import UserError
from benchmarks.common.system.files import exchange, home_folder
from benchmarks.common.system.programs import run_main_and_exit
from benchmarks.common.system.repository import ROOT
from scripts.charts.figures import save_chart
from scripts.options.set_options import PublishOptions
from scripts.pages.page import make_report
from scripts.pages.provenance import command_words
from scripts.publish import readme
from scripts.publish.allowlist import (
    AFTER_OPTION,
    MOST_FAULTS,
    allowed_environment,
    is_of_the_system,
    local_names,
    not_allowed,
)
from scripts.publish.manifest import write_manifest
from scripts.publish.public_paths import PATH_FIELDS, public_path, without_dotted_paths
from scripts.publish.publishable import RULE, find_problems, missing_files
from scripts.publish.settings_made_public import publish_settings
from scripts.sets.recorded_settings import identities_by_hash
from scripts.sets.result_set import ResultSet, load_set
from scripts.stats.formatting import printable

NESTED_SETS = ("scaling", "sweeps", "ablation")  # sets in the folder of a set, whose charts are in its report
KEPT = (*(f"{name}.csv" for name in TABLES), "sweep.csv", "scaling.csv", "environment.json")
KEPT += ("ablate.csv",)
EXAMPLE = "--name <hardware>_<torch>_<yyyymm>, such as cpu2-epyc_torch2.15_202611"
TAKE_OUT = "take these out of the set's files, or measure again without them, in a new set"
QUOTED = re.compile(  # a path may have spaces where it is quoted
    r"""(["'])(?:/[^"'\n]*/|(?!\./bench\b)\.\.?/(?:[^"'\n]*/)?)([^"'/\n]*)\1"""
)
OPTION_OR_VARIABLE = re.compile(r"(-?-?[A-Za-z][\w-]*=)(.*)", re.DOTALL)
HIDDEN = {"-H": "HOSTS", "--hosts": "HOSTS"}  # of horovodrun
HIDDEN |= {"--rdzv-endpoint": "RDZV_ENDPOINT", "--rdzv_endpoint": "RDZV_ENDPOINT"}  # of torchrun: a host and a port
HIDDEN |= {"--account": "...", "--qos": "..."}  # of sbatch
"""Options of a run's command, and what stands for their values."""
A_PATH = re.compile(rf"(?:(?<![\w.~:/>-])|{AFTER_OPTION})/(?:[\w.@+~-]+/)+[\w.@+~-]*")


def main(options: PublishOptions) -> int:
    place = _target_folder(options)
    _check_folder(options)
    lines = missing_files(options.results)
    if not (options.results / "runs.csv").is_file():  # without it nothing more can be said
        return _refuse(options, lines)
    results = load_set(options.results)
    kind = "cpu" if (results.ok_runs.device == "cpu").all() else "gpu"
    if lines := [*lines, *find_problems(results), *_missing_sweeps(options.results, kind)]:
        return _refuse(options, lines)
    refuse_results_of_others(readme.PUBLISHED)
    with tempfile.TemporaryDirectory(prefix=".publishing-", dir=readme.PUBLISHED) as scratch:
        refuse_results_of_others(Path(scratch))
        new = Path(scratch) / options.name
        names = local_names() | _hosts(results)
        copy_set(options.results, new, _private(results, options.name), names)
        publish_settings(new)
        if lines := [*not_allowed(new, names), *formulas_left(new)]:  # before minutes of drawing
            return _refuse(options, [*lines, TAKE_OUT])
        write_report(new, results)
        if lines := not_allowed(new, names):
            return _refuse(options, [*lines, TAKE_OUT])
        shown = readme.shown_sets(readme.PUBLISHED)
        texts = _readmes(options, shown, kind, new)
        if isinstance(texts, str):
            return _refuse(options, [texts])
        replace_set(new, place, Path(scratch) / "before")
    write_json(readme.PUBLISHED / readme.SHOWN, shown | {kind: options.name})
    for path, text in texts.items():
        if text != path.read_text():
            write_text_atomically(path, text)
            print(f"{path} has new figures")
    print(f"published: {place}; next: git add {shell_word(place)} and the READMEs, and commit")
    return 0


def _target_folder(options: PublishOptions) -> Path:
    """Where the set goes. Raises UserError for a name that is none, or that is taken."""
    if not options.name:
        raise UserError(f"--name is not given; ./bench publish {EXAMPLE}")
    if not re.fullmatch(r"[A-Za-z0-9][\w.+-]*", options.name) or options.name == readme.MEASURED.name:
        raise UserError(f"{options.name} cannot be a folder of results/published; {EXAMPLE}")
    place = readme.PUBLISHED / options.name
    if place.exists() and not options.replace:
        raise UserError(f"{place} is there already; another --name, or --replace to put the new set in its place")
    return place


def _check_folder(options: PublishOptions) -> None:
    if not options.results.is_dir():
        raise UserError(
            f"--results {options.results} is no folder; ./bench run makes one, results/latest is the newest"
        )
    if options.results.resolve().parent == readme.PUBLISHED.resolve():
        raise UserError(f"{options.results} is published already; --results is a set that was measured here")
    refuse_links(options.results)


def _refuse(options: PublishOptions, lines: list[str]) -> int:
    reasons = (f"  {printable(line)}" for line in lines)
    print(f"error: {options.results} cannot be published:", *reasons, sep="\n", file=sys.stderr)
    return 1


def copy_set(source: Path, target: Path, private: dict[str, str], names: set[str]) -> None:
    """What is kept of the set in `source`, and of the sets inside it, without private paths and variables, and without
    what a spreadsheet would run: some rows may be somebody else's."""
    target.mkdir()
    for name in KEPT:
        if path := file_inside(source, name):
            text = without_paths(read_text(path), private)
            text = _allowed(path, text, names) if name == "environment.json" else without_formulas(text)
            write_text_atomically(target / name, text)
    for name in NESTED_SETS:
        if (source / name / "runs.csv").is_file():
            copy_set(source / name, target / name, private, names)


def formulas_left(folder: Path) -> list[str]:
    """A line for each line of a table that a spreadsheet would run where semicolons or tabs, not commas, separate its
    cells. copy_set marks whole cells only. The gallery leaves out a set with such a line."""
    what = "a spreadsheet may run what follows a semicolon or a tab, since it begins with =, +, - or @"
    found = [
        f"{path.relative_to(folder).as_posix()}, line {number}: {what}"
        for path in sorted(folder.rglob("*.csv"))
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").split("\n"), 1)
        if has_formula_after_semicolon(line)
    ]
    more = [f"and {len(found) - MOST_FAULTS} more"] if len(found) > MOST_FAULTS else []
    return found[:MOST_FAULTS] + more


def _allowed(path: Path, text: str, names: set[str]) -> str:
    """The text of environment.json with only what a set may say. Raises UserError where it is no JSON object."""
    try:
        environment = json.loads(text)
    except ValueError:
        environment = None
    if not isinstance(environment, dict):
        raise UserError(f"{path} is no JSON object with facts of the machine; measure again, in a new set")
    return json.dumps(allowed_environment(environment, names), indent=1) + "\n"


def _hosts(results: ResultSet) -> set[str]:
    """Names of the machines that HOSTS and RDZV_ENDPOINT listed."""
    variables = results.environment.get("variables", {})
    words = re.split(r"[\s,]+", f"{variables.get('HOSTS', '')} {variables.get('RDZV_ENDPOINT', '')}")
    return {host for word in words if (host := word.partition(":")[0]) not in ("", "localhost")}


def _private(results: ResultSet, name: str) -> dict[str, str]:
    """Paths that this machine or these runs chose, and what stands for each: the longest first."""
    variables = results.environment.get("variables", {})
    sources = [variables, *_requested_settings(results)]
    paths = {text for half in sources for text in half.values() if isinstance(text, str) and text.startswith("/")}
    typed = [half.get(name) for half in sources for name in (*PATH_FIELDS, *map(str.upper, PATH_FIELDS))]
    relative = {text for text in typed if isinstance(text, str) and "/" in text} - paths
    images = {half.get(name) for half in sources for name in ("CONTAINER", "container")}
    paths |= {text for text in images if isinstance(text, str) and "/" in text}
    stands = {path: Path(path).name for path in paths if path.rstrip("/")}
    stands |= {path: public_path(path) for path in relative if public_path(path) not in ("", path)}
    dropped = {name: variables.get(name) for name in ("HOSTS", "RDZV_ENDPOINT")}
    stands |= {text: name for name, text in dropped.items() if isinstance(text, str) and ":" in text}
    stands |= {f"{ROOT}/": "", f"{ROOT}": "."}
    if (folder := home_folder()) not in (None, Path("/")):  # containers have HOME=/
        stands |= {f"{folder}/": "", str(folder): "~"}
    places = (results.path, results.path.resolve())
    stands |= {str(path): f"results/{name}" for path in places if "/" in str(path)}
    stands |= {json.dumps(path)[1:-1]: word for path, word in stands.items()}  # as JSON writes what is beyond ASCII
    return dict(sorted(stands.items(), key=lambda pair: -len(pair[0])))


def _requested_settings(results: ResultSet) -> list[dict]:
    known, _ = identities_by_hash(results.table("settings"))
    return [identity.requested for identity in known.values()]


def without_paths(text: str, private: dict[str, str]) -> str:
    """`text` with what stands for each private path, and of every other path but the system's its last name. A relative
    path can be told from other words where it is private, or begins with ./ or ../."""
    relative = [path for path in private if "/" in path and not path.startswith("/") and ":" not in path]
    for path in [path for path in private if path not in relative]:
        text = text.replace(path, private[path])
    for path in relative:  # by whole names: in x/a/b, a/b is no path that the user typed
        stands = private[path].replace("\\", "\\\\")
        text = re.sub(rf"(?<![\w./~-]){re.escape(path)}(?![\w-])", stands, text)
    text = QUOTED.sub(
        lambda found: found[0] if is_of_the_system(found[0][1:]) else f"{found[1]}{found[2]}{found[1]}", text
    )
    text = A_PATH.sub(lambda found: found[0] if is_of_the_system(found[0]) else Path(found[0]).name, text)
    return without_dotted_paths(text)


def copy_commands(new: Path, source: ResultSet) -> None:
    """The first line of each run's log, which is its command, without hosts and without Slurm's account.
    A set may name any file as a log: nothing but logs/ is written."""
    private = _private(source, new.name)
    for log_path in source.ok_runs.log_path:
        if log_path.startswith("logs/") and (log := file_inside(source.path, log_path)):
            (new / log_path).parent.mkdir(parents=True, exist_ok=True)
            line = first_line(log)
            for path in private:  # before words are told apart: older code has written a path with a space unquoted
                line = line.replace(path, private[path]) if path.startswith("/") else line
            words = public_words(command_words(line), private)
            (new / log_path).write_text(f"$ {shlex.join(words)}\n", encoding="utf-8")


def public_words(words: Sequence[str], private: dict[str, str]) -> list[str]:
    """The words of a run's command without hosts, without Slurm's account and without paths of this machine."""
    public, before = [], ""
    for word in words:
        found = OPTION_OR_VARIABLE.fullmatch(word)
        name, value = found.groups() if found else ("", word)
        option = name.removesuffix("=") or before
        if option in HIDDEN and not value.startswith("/"):
            value = HIDDEN[option]
        elif '"' not in value and "\n" not in value:
            value = without_paths(f'"{value}"', private)[1:-1]  # quoted, since a path may have spaces
        else:
            value = without_paths(value, private)
        public.append(name + value)
        before = word
    return public


def write_report(new: Path, source: ResultSet) -> None:
    """Report and charts of the copy in `new`; the logs of `source` are there only while it is written."""
    copy_commands(new, source)
    copied = load_set(new)
    report = make_report(copied)
    shutil.rmtree(new / "logs", ignore_errors=True)
    for name, text in report.texts.items():
        write_text_atomically(new / name, text.replace(str(new), f"results/published/{new.name}"))
    for name, figure in report.figures.items():
        save_chart(figure, new / "charts", name)
    write_json(new / "published.json", {"rule": RULE, "at": f"{datetime.date.today():%Y-%m-%d}"})
    write_manifest(new, copied)


def _readmes(options: PublishOptions, shown: dict[str, str], kind: str, new: Path) -> dict[Path, str] | str:
    """The READMEs with the figures and links of the new set; or what the set lacks for them."""
    sets = {each: readme.PUBLISHED / name for each, name in shown.items()} | {kind: new}
    before, texts = shown.get(kind), {}
    try:
        made = readme.all_figures(sets, readme.MEASURED)
        for path in readme.READMES:
            text = path.read_text()
            if before and before != options.name:
                text = re.sub(rf"(results/published/){re.escape(before)}(?![\w.+-])", rf"\g<1>{options.name}", text)
            texts[path] = readme.fill_marks(text, made)
            for target in re.findall(rf"results/published/{re.escape(options.name)}/([\w./+-]+)", texts[path]):
                if not (new / target).exists():
                    return f"{path.name} links to its {target}, which it lacks; {_remedy(options.results, target)}"
    except UserError as error:
        return f"README: {error}"
    return texts


def _missing_sweeps(results: Path, kind: str) -> list[str]:
    """A line for each sweep that the READMEs show and the set in `results` lacks. kind: of its devices, cpu or gpu."""
    prefix = {"cpu": "", "gpu": "gpu."}[kind]
    texts = "".join(path.read_text() for path in readme.READMES)
    shown = dict.fromkeys(re.findall(rf"<!--{re.escape(prefix)}(sweep\.(\w+)\.(\w+))-->", texts))
    measured = readme.sweep_figures(results / "sweeps") if shown else {}
    return [
        f"the READMEs show a sweep of {key}, which it lacks; {_sweep(results, strategy, key)}"
        for name, strategy, key in shown
        if name not in measured
    ]


def _remedy(results: Path, target: str) -> str:
    return (
        f"{bench_command('report', results=results)}, or take the link out"
        if "sweep" not in target
        else _sweep(results)
    )


def _sweep(results: Path, strategy: str = "...", key: str = "...") -> str:
    sweeps = str(results / "sweeps")
    return bench_command("study sweep", strategy=strategy, key=key, values="...", results=sweeps)


def replace_set(new: Path, place: Path, aside: Path) -> None:
    """Move the set in `new` to `place`. What was there goes to `new` in one step, so that a kill leaves one of the two.

    Where the file system cannot do that, it goes to `aside`, and back where an exception ends the move.
    """
    if not place.exists():
        os.replace(new, place)
        return
    if exchange(new, place):
        return
    try:
        os.replace(place, aside)
        os.replace(new, place)
    except BaseException:
        if not place.exists():
            os.replace(aside, place)
        raise


if __name__ == "__main__":
    run_main_and_exit(lambda: main(tyro.cli(PublishOptions)))
