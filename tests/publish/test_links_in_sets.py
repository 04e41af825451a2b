"""Sets of somebody else, with links, pipes, markup and paths: what writes into a set writes nowhere else, and no
command waits for ever.

.venv/bin/python -m pytest tests/publish/test_links_in_sets.py
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import yaml
from matplotlib.figure import Figure
from support import environment, few_fast, make_run_folder, recorded
from test_hostile_sets import edit

from benchmarks.common.config.config import load_config
from benchmarks.common.store.output_files import refuse_output_of_others, write_output
from benchmarks.common.store.results import append_rows
from benchmarks.common.store.run_folder import RunFolder
from benchmarks.common.store.safe_names import refuse_links
from benchmarks.common.system.errors import UserError
from benchmarks.common.system.folders_of_others import make_own_folder
from benchmarks.common.system.repository import ROOT
from scripts.charts import plot
from scripts.charts.figures import save_chart
from scripts.commands import actions, measure_missing
from scripts.pages import page
from scripts.pages.markdown import code_span, escape_markdown
from scripts.proof.allowed_settings import why_not_allowed
from scripts.publish import publish, readme
from scripts.publish.manifest import read_manifest
from scripts.publish.markdown_tables import read_cells
from scripts.runner import preflight
from scripts.sets.own_set import refuse_foreign_set
from scripts.sets.result_set import load_set
from scripts.studies.ablation import chart as ablation_chart
from scripts.studies.measured_csv import read_whole_rows
from scripts.studies.scaling import chart as scaling_chart
from scripts.studies.sweep import chart as sweep_chart

SET = readme.PUBLISHED / "cpu2-epyc_torch2.15_202611b"
COMMANDS = {
    "plot": lambda path: plot.main(plot.PlotOptions((path,))),
    "report": lambda path: page.main(page.ReportOptions(path)),
    "report that measures": lambda path: actions.write_report(path, measure=True),
    "sweep": lambda path: sweep_chart.main(sweep_chart.SweepChartOptions(strategy="ddp", key="workers", results=path)),
    "scaling": lambda path: scaling_chart.main(scaling_chart.StudyChartOptions(strategy="ddp", results=path)),
    "ablate": lambda path: ablation_chart.main(ablation_chart.StudyChartOptions(strategy="ddp", results=path)),
    "publish": lambda path: publish.main(publish.PublishOptions(name="x", results=path)),
    "suite": preflight.open_result_set,
}


# A file of a set is read by read_set_file, open_set_file, read_text, first_line or read_table.
READS = re.compile(r"(?<![\w.])open\(|\.read_(?:text|bytes)\(|read_csv\((?!io\.)|(?:read|open)_regular_file\(")
# They read the READMEs, what this process has just made, or a copy whose links allowlist.py has refused.
READ_NO_SET = {"allowlist.py", "latex.py", "publish.py", "readme.py", "settings_made_public.py"}


@pytest.fixture
def theirs(tmp_path):
    """A copy of the small set in a published one."""
    return Path(shutil.copytree(SET / "scaling", tmp_path / "theirs"))


@pytest.mark.parametrize("command", COMMANDS)
def test_nothing_is_written_through_a_link_in_a_set(theirs, tmp_path, command):
    """Protects files outside of a set, which its author chose by a link. Mutants: the check left out of a command."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (theirs / "charts").symlink_to(outside)
    with pytest.raises(UserError, match="theirs/charts is a link, and no link in a set is followed"):
        COMMANDS[command](theirs)
    assert not any(outside.iterdir())


@pytest.mark.skipif(os.geteuid() != 0, reason="makes a folder of another user")
@pytest.mark.parametrize("command", sorted(COMMANDS.keys() - {"publish", "suite"}))
def test_nothing_is_written_into_a_set_that_another_user_could_replace(theirs, tmp_path, command):
    """Protects the user's own files: the set lay in a folder of its author, who put a link to one of the user's folders
    in its place while the charts were drawn. Mutants: the look left out of a command."""
    above = tmp_path / "of another user"
    above.mkdir()
    os.chown(above, 12345, -1)
    results = theirs.rename(above / "a set")
    before = sorted(results.rglob("*"))
    with pytest.raises(
        UserError, match=r"belongs to another user \(12345\); copy the set to a folder that you have made"
    ):
        COMMANDS[command](results)
    assert sorted(results.rglob("*")) == before


LOOKS = {
    "a set": "from benchmarks.common.store.safe_names import refuse_links; refuse_links(folder)",
    "a download": "from scripts.data_import import find_source; find_source.find_source(folder, None)",
    "strategies": "from scripts.strategies.external import source_hash; source_hash(folder)",
}


@pytest.mark.real_interpreter  # which setpriv starts with fewer rights
@pytest.mark.parametrize("look", LOOKS)
def test_a_folder_that_cannot_be_listed_is_named(tmp_path, look):
    """Protects the user's own files: a set from a tar had a folder of mode 0311 with a link, through which a command
    wrote. Of a download, shards were left out; of strategies, modules. Mutant: os.walk without onerror."""
    (hidden := tmp_path / "hidden").mkdir()
    (tmp_path / "a.tar").touch()
    hidden.chmod(0o311)
    code = f"import sys; from pathlib import Path; folder = Path(sys.argv[1]); {LOOKS[look]}"
    words = [sys.executable, "-c", code, tmp_path]
    if os.geteuid() == 0:  # who lists everything
        caps = "-dac_override,-dac_read_search"
        words = ["setpriv", f"--bounding-set={caps}", f"--inh-caps={caps}", *words]
    done = subprocess.run(words, cwd=ROOT, env=environment(), capture_output=True, text=True)
    hidden.chmod(0o755)
    assert f"UserError: {str(hidden)!r} cannot be listed" in done.stderr.replace(f": {hidden} ", f": {str(hidden)!r} ")


@pytest.mark.parametrize("name", ["scaling", "verify", "sweeps", "logs", "logs/x", "runs.csv", "builds", "a/b/stop-1"])
def test_a_link_anywhere_in_a_set_is_named(tmp_path, name):
    """Mutants: only the set's own folder looked at; links of files only; each name of a stopped run let through."""
    path = tmp_path / "set" / name
    path.parent.mkdir(parents=True)
    path.symlink_to(tmp_path)
    with pytest.raises(UserError, match=f"set/{name} is a link"):
        refuse_links(tmp_path / "set")
    assert plot.run_command_line(["--results", str(tmp_path / "set")]) == 2


@pytest.mark.parametrize("name", ["runs.csv", "logs/x/run.log", "logs/stop-1", "charts/speedup.png"])
def test_a_hard_link_anywhere_in_a_set_is_named(tmp_path, name):
    """Protects the text of a user's file: an archive that is unpacked in the home folder can bring a hard link to one,
    and a report quotes logs. Mutant: symbolic links alone."""
    (tmp_path / "precious").write_text("secret")
    path = tmp_path / "set" / name
    path.parent.mkdir(parents=True)
    os.link(tmp_path / "precious", path)
    with pytest.raises(UserError, match=f"set/{name} is a hard link: .* copy the set"):
        refuse_links(tmp_path / "set")
    assert plot.run_command_line(["--results", str(tmp_path / "set")]) == 2


READ_BY_COMMANDS = ["runs.csv", "settings.csv", "steps.csv", "environment.json", "sweep.csv", "ablate.csv"]
READ_BY_COMMANDS += ["charts/speedup.png", "sweeps", "scaling", "logs/ddp-1/settings.json"]


@pytest.mark.parametrize("name", READ_BY_COMMANDS)
def test_no_table_is_read_through_a_link(theirs, tmp_path, name):
    """Protects files outside of a set from the commands that only read one, such as compare and export. A folder that
    is a link stays fine. Mutants: links followed; tables of the schema alone; links to folders followed; the folder
    refused."""
    (tmp_path / "latest").symlink_to(theirs)
    assert load_set(tmp_path / "latest").groups
    (theirs / name).unlink(missing_ok=True)
    (theirs / name).parent.mkdir(parents=True, exist_ok=True)
    (theirs / name).symlink_to(SET / name)
    for path in (theirs, tmp_path / "latest"):
        with pytest.raises(UserError, match=f"/{name} is a link, and no link in a set is followed"):
            load_set(path)


def test_a_pipe_in_a_set_is_named(tmp_path):
    """Protects from a reader that waits without end. Mutant: links only."""
    (tmp_path / "checks").mkdir()
    os.mkfifo(tmp_path / "checks/a.json")
    with pytest.raises(UserError, match=r"checks/a.json is neither a file nor a folder"):
        refuse_links(tmp_path)


def test_a_file_that_another_process_has_just_removed_is_no_fault(tmp_path, monkeypatch):
    """Protects a second suite in a set, and `./bench plot` beside a run: the temporary file of a table was listed, then
    renamed, and then called neither a file nor a folder. Mutant: is_file() of what is gone."""
    monkeypatch.setattr(os, "walk", lambda folder, onerror: [(folder, ["gone"], [".windows.csv.c71d1d5c68a15359"])])
    refuse_links(tmp_path)


def test_no_folder_of_a_set_is_left_out(tmp_path):
    """Protects from interpreters in a foreign set of make gpu-check. Mutant: links in builds/ let through."""
    (tmp_path / "builds/horovod/bin").mkdir(parents=True)
    (tmp_path / "builds/horovod/bin/python").symlink_to("/bin/true")
    with pytest.raises(UserError, match="python is a link"):
        refuse_links(tmp_path)


def test_links_above_a_set_and_those_of_a_stopped_run_stay_fine(tmp_path):
    """Protects results/latest, a results folder on another disk, and sets with a run that was stopped."""
    folder = RunFolder.create(tmp_path / "disk/set", "ddp", 1)
    folder.post_stop(0, 12)
    folder.decide_stop(-1)
    (tmp_path / "results").symlink_to(tmp_path / "disk")
    (tmp_path / "disk/latest").symlink_to("set")
    assert preflight.open_result_set(tmp_path / "results/latest") and preflight.open_result_set(
        tmp_path / "results/set"
    )
    refuse_links(tmp_path / "missing")


@pytest.mark.parametrize("place", ["", "logs"])
def test_nothing_is_measured_into_a_folder_that_another_user_may_change(tmp_path, place):
    """Protects the user's own files: another user had made RESULTS, and put a link to one in the place of a run's log.
    One that a group may write to stays fine, and one of the user's own in a folder that somebody else shares with the
    user's group. One that is sticky and everybody's is not: charts/ in it could become a link. Mutants: the mode not
    looked at; the owner not looked at; logs/ not looked at; the sticky bit enough."""
    results = tmp_path / "a project/a set"
    (results / "logs").mkdir(parents=True)
    results.parent.chmod(0o1777)
    (results / place).chmod(0o2775)
    preflight.open_result_set(results)
    (results / place).chmod(0o777)
    with pytest.raises(UserError, match=r"^everybody may write to .*a project/a set.*; run: chmod o-w "):
        preflight.open_result_set(results)
    (results / place).chmod(0o1777)
    with pytest.raises(UserError, match=r"^everybody may write to .*; choose a folder that you have made"):
        preflight.open_result_set(results)
    (results / place).chmod(0o2775)
    if not os.geteuid():
        results.parent.chmod(0o2775)
        os.chown(results.parent, 12345, -1)
        preflight.open_result_set(results)
        os.chown(results / place, 12345, -1)
        with pytest.raises(UserError, match=r"belongs to another user \(12345\); choose a folder that you have made"):
            preflight.open_result_set(results)


@pytest.mark.skipif(os.geteuid() != 0, reason="makes a folder of another user")
def test_no_run_is_started_where_another_user_owns_tmpdir(tmp_path, monkeypatch):
    """Protects from another store of torchrun, which unpickles it: the owner of TMPDIR renamed the folder of the store
    and made one of its name. Mutant: no look at TMPDIR."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "their"))
    monkeypatch.setenv("TMPDIR", "is set here, and restored")
    (tmp_path / "their").mkdir()
    preflight.open_result_set(tmp_path / "a set")
    os.chown(tmp_path / "their", 12345, -1)
    with pytest.raises(
        UserError, match=r"belongs to another user \(12345\); set TMPDIR to a folder that you have made"
    ):
        preflight.open_result_set(tmp_path / "a set")


def test_all_programs_of_a_run_use_the_temporary_folder_that_was_looked_at(tmp_path, monkeypatch):
    """Protects from a TMPDIR that is not there: Python looked at /tmp, and bash made torchrun's store in a folder that
    another user had made by then. Mutants: TMPDIR as it stands; a launcher by hand without it."""
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "gone"))
    preflight.open_result_set(tmp_path / "a set")
    assert os.environ["TMPDIR"] == tempfile.gettempdir() != str(tmp_path / "gone")


def test_a_set_that_is_not_there_is_refused(tmp_path):
    """Protects from an owner of the folder above who moves the set away while it is looked at. Mutant: a set that is
    not there passes."""
    with pytest.raises(UserError, match="is not a folder of results"):
        refuse_foreign_set(tmp_path / "moved away")


def test_the_folder_of_a_named_file_must_be_there(tmp_path):
    """Protects `gpu-check-file /tmp/x/gpu-check.pyz`: during its downloads another user made the folder, and put
    another program in the place of the file. Mutant: a folder that is yet to be made passes."""
    file = tmp_path / "new" / "gpu-check.pyz"
    with pytest.raises(UserError, match=r"cannot write .*: No such file or directory; name another file: FILE"):
        refuse_output_of_others(file, "FILE")
    refuse_output_of_others(file, "FILE", makes_folder=True)
    assert file.parent.stat().st_uid == os.geteuid()


def test_charts_are_drawn_into_no_folder_of_everybody(tmp_path):
    """Protects the user's own charts: in a set below which everybody may write, charts/ became a link to their folder.
    And a link that another user has made is not followed. Mutants: the sticky bit enough; --output not looked at."""
    (tmp_path / "a set").mkdir()
    (tmp_path / "a set").chmod(0o1777)
    with pytest.raises(UserError, match=r"^everybody may write to .*a set.*; copy the set to a folder"):
        refuse_foreign_set(tmp_path / "a set")
    (tmp_path / "mine").mkdir()
    (tmp_path / "theirs").symlink_to("mine")
    make_own_folder(tmp_path / "theirs", "name another")
    if not os.geteuid():
        os.lchown(tmp_path / "theirs", 12345, -1)
        with pytest.raises(
            UserError, match=r"theirs belongs to another user \(12345\); name a folder that you have made"
        ):
            save_chart(Figure(), tmp_path / "theirs", "throughput")


def test_nothing_is_measured_into_a_folder_that_another_user_may_replace(tmp_path):
    """Protects the user's other sets: the owner of the folder above put a link to one in the place of RESULTS, and the
    runs wrote there. Mutants: the folders above not looked at; the sticky bit enough, whoever owns the folder."""
    results = tmp_path / "team/above/a set"
    results.mkdir(parents=True)
    (tmp_path / "team").chmod(0o777)
    with pytest.raises(UserError, match=r"^everybody may write to .*team; run: chmod o-w "):
        preflight.open_result_set(results)
    (tmp_path / "team").chmod(0o1777)
    preflight.open_result_set(results)
    if not os.geteuid():
        os.chown(tmp_path / "team", 12345, -1)
        with pytest.raises(UserError, match=r"^\S*team belongs to another user \(12345\)"):
            preflight.open_result_set(results)


@pytest.mark.parametrize("named", ["results/new/er", ""])
def test_a_new_set_is_not_made_where_another_user_may_replace_it(tmp_path, monkeypatch, named):
    """Protects a new set, named or not: results/ may be a link to a disk of many users. Nothing is made there.
    Mutants: only named sets looked at; the folders made before the look; results/ itself left out."""
    (above := tmp_path / "disk").mkdir()
    (above / "of all").mkdir()
    (tmp_path / "results").symlink_to(above / "of all")
    monkeypatch.chdir(tmp_path)
    above.chmod(0o777)
    with pytest.raises(UserError, match=r"^everybody may write to .*disk; run: chmod o-w "):
        preflight.open_result_set(Path(named) if named else None)
    above.chmod(0o755)
    if not os.geteuid():
        os.chown(above, 12345, -1)
        words = r"disk belongs to another user \(12345\); .*, or set TRUSTED_OWNERS=12345 if"
        with pytest.raises(UserError, match=words):
            preflight.open_result_set(Path(named) if named else None)
        assert [*(above / "of all").iterdir()] == []
        monkeypatch.setenv("TRUSTED_OWNERS", "12345")
    assert preflight.open_result_set(Path(named) if named else None).is_dir()


def test_a_folder_of_all_sets_that_leads_nowhere_is_named(tmp_path, monkeypatch):
    """Protects a user whose results/ is a link to a disk that is not mounted from a traceback. Mutant: the folder made
    in the search for a free name."""
    (tmp_path / "results").symlink_to("not mounted")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"^results/ cannot be written: File exists; name another folder: RESULTS="):
        preflight.open_result_set(None)


def test_charts_are_drawn_into_a_set_that_a_link_leads_to(theirs, tmp_path):
    """Protects make plot of results/latest. Mutant: the set's own folder refused for being a link."""
    (tmp_path / "latest").symlink_to(theirs)
    figure = plot.throughput.throughput_chart([load_set(tmp_path / "latest")])
    refuse_links(tmp_path / "latest")
    assert all(path.is_file() for path in plot.figures.save_chart(figure, tmp_path / "latest/charts", "x"))


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("sweep.csv", lambda path: read_whole_rows(path / "sweep.csv")),
        ("sweep.csv", lambda path: read_cells(path / "sweep.csv", ["a"])),
        ("loader.csv", lambda path: append_rows(path, "loader", [{"run_id": "x"}])),
        ("settings.json", lambda path: RunFolder(path).settings()),
        ("manifest.json", read_manifest),
    ],
)
@pytest.mark.parametrize("kind", ["a pipe", "a link"])
def test_no_reader_waits_for_a_pipe_or_follows_a_link(tmp_path, name, read, kind):
    """Protects from waiting for ever for a writer, and a file that a set's author named by a link. Mutants: a plain
    open; read_regular_file in place of read_set_file."""
    (tmp_path / "private").write_text("a,b\n1,2\n")
    os.mkfifo(tmp_path / name) if kind == "a pipe" else (tmp_path / name).symlink_to(tmp_path / "private")
    with pytest.raises(UserError, match=f"{name}|is not a regular file|is a link, which is not followed"):
        read(tmp_path)


def test_nothing_reads_a_set_but_by_the_functions_that_follow_no_link():
    """Protects files outside of a set from the next reader. Mutants: open, read_text or read_csv in scripts/sets."""
    folders = [ROOT / "scripts" / name for name in ("sets", "pages", "charts", "export", "publish")]
    readers = [path for folder in folders for path in folder.rglob("*.py") if READS.search(path.read_text())]
    assert {path.name for path in readers} == READ_NO_SET


def test_a_sets_configuration_writes_nowhere_and_listens_for_nobody(tmp_path):
    """Protects last.pt of another training, and the network, from a config.yaml in a set. DATA is the user's.
    Mutant: the file as it stands."""
    fields = {"checkpoint_dir": "/elsewhere", "checkpoint_steps": 5, "checkpoint_keep": True, "resume": True}
    row = recorded(tmp_path, {"run_id": "single-1", "strategy": "single", "repeat": 1, "status": "ok"})
    append_rows(tmp_path, "runs", [row])
    config = RunFolder(tmp_path / "logs/single-1").config
    config.parent.mkdir(parents=True, exist_ok=True)
    config.write_text(yaml.safe_dump(fields | {"rendezvous": "address", "image_size": 48}))
    variables = measure_missing.usual_settings(tmp_path)
    made = load_config(["--config", variables["CONFIG"], *variables["ARGS"].split()])
    assert (made.checkpoint_dir, made.checkpoint_steps, made.checkpoint_keep, made.resume) == ("", 0, False, False)
    assert made.rendezvous == "file" and made.image_size == 48
    config.write_text("image_size: 48\n")
    assert measure_missing.usual_settings(tmp_path)["ARGS"] == "", "an ordinary set is measured as it was"
    config.write_text("checkpoint_dir: [/elsewhere\n")
    assert "--checkpoint-dir=" in measure_missing.usual_settings(tmp_path)["ARGS"].split()


def test_no_configuration_file_makes_a_rank_listen(tmp_path, monkeypatch):
    """Protects the network from somebody else's YAML: only a typed flag chooses `address`, and the file that the plan
    wrote of it. RUN_DIR may be another program's. Mutants: no refusal; a refusal of the run's own file; any folder that
    RUN_DIR names."""
    (config := tmp_path / "config.yaml").write_text("rendezvous: address\n")
    with pytest.raises(UserError, match="rank 0 listen on the network, which no file may choose"):
        load_config(["--config", str(config)])
    monkeypatch.setenv("RUN_DIR", str(tmp_path / "another run"))
    with pytest.raises(UserError, match="which no file may choose"):
        load_config(["--config", str(config)])
    assert load_config(["--config", str(config), "--rendezvous", "file"]).rendezvous == "file"
    assert load_config(["--config", str(config), "--rendezvous", "address"]).rendezvous == "address"
    monkeypatch.setenv("RUN_DIR", str(tmp_path))
    with pytest.raises(UserError, match="which no file may choose"):
        load_config(["--config", str(config)])
    make_run_folder(tmp_path)
    assert load_config(["--config", str(config)]).rendezvous == "address"


def test_a_set_may_not_make_slurm_listen():
    """Protects the network: by `address` the first rank's store listens on every one. Mutant: any word let through."""
    asked = {"strategy": "slurm", "ranks": 2, "nodes": 1, "threads_per_rank": 1, "fingerprint": "1", "seed": 0}
    assert why_not_allowed(asked | {"rendezvous": "file"}, {}) == "" == why_not_allowed(asked, {})
    assert why_not_allowed(asked | {"rendezvous": "address"}, {}).startswith(
        "rendezvous is 'address', by which it would listen"
    )


MARKUP = "EPYC<!--/--><img src=//evil.example/x.png>[cheap](//evil.example)`|`<!--hardware-->"


@pytest.mark.medium
def test_texts_of_a_set_are_text_in_the_readme(tmp_path):
    """Protects README's readers and its marks from markup in a set. Mutants: fill without escaping; a figure as it
    stands."""
    theirs = shutil.copytree(SET, tmp_path / "theirs")
    plain = readme.run_figures(load_set(theirs))
    edit(theirs / "runs.csv", device_name=MARKUP, backend=MARKUP, torch=MARKUP)
    (theirs / "ablation").mkdir()
    columns = "option,num_runs,images_per_s,ratio,ratio_low,ratio_high,why_not,about\n"
    text = MARKUP.replace(",", "")
    (theirs / "ablation/ablate.csv").write_text(f"{columns}{text},{text},,,,,{text},{text}\n")
    made = readme.run_figures(load_set(theirs)) | readme.ablation_figures(theirs / "ablation/ablate.csv")
    assert "evil.example" in made["hardware"] and "evil.example" in made["ablation"]
    before = "".join(f"<!--{name}-->x<!--/-->\n" for name in made if " " not in name)
    after = readme.fill_marks(before, made)
    assert readme.fill_marks(after, made) == after, "no mark is closed or opened by a text"
    inside = readme.FIGURE.sub(lambda found: found[0].split("-->", 1)[1].removesuffix("<!--/-->"), after)
    assert "<" not in inside and "](" not in inside.replace("\\](", "")
    assert made["strategies"] == plain["strategies"]


def test_a_text_in_markdown_is_itself():
    """Mutants: a link's bracket, a definition's, or the end of a span of code left as it is."""
    assert escape_markdown("[a](b) [a, b]: c") == "[a\\](b) [a, b]: c"
    assert escape_markdown(" [a]: //evil") == "\\[a]: //evil"
    assert code_span("a`b") == "`a'b`"


def test_no_table_of_a_set_is_replaced_by_what_the_user_names(tmp_path):
    """Protects what was measured from a slip: `export x --out x/runs.csv` replaced the rows. Mutant: no look."""
    (tmp_path / "runs.csv").write_text("precious")
    with pytest.raises(UserError, match=r"runs.csv is a file that runs have written; name another one: --out"):
        write_output(tmp_path / "runs.csv", "text", "--out")
    (tmp_path / "environment.json").write_text("{}")
    with pytest.raises(UserError, match=r"environment.json is a file that runs have written"):
        write_output(tmp_path / "environment.json", "text", "--out")
    write_output(tmp_path / "set.json", "text", "--out")
    assert (tmp_path / "runs.csv").read_text() == "precious"


# Commands that write one file which the user names.
WRITERS = {
    "trend": ["trend", str(SET), "--output"],
    "export": ["export", str(SET), "--format", "json", "--out"],
    "gallery": ["gallery", "--output"],
    "profile": ["study", "profile", "--output"],
}


@pytest.mark.parametrize("name", few_fast(WRITERS, {0}))
def test_a_named_file_is_not_written_through_a_link_of_others(tmp_path, name):
    """Protects the user's own files: in a folder that everybody may change, another user had put a link to one of the
    user's folders. Mutants: trend, and the tables of studies, without a look."""
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs").chmod(0o777)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/file").write_text("precious")
    (tmp_path / "theirs/sub").symlink_to(tmp_path / "mine")
    command = [sys.executable, "bench", *WRITERS[name], str(tmp_path / "theirs/sub/file")]
    done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=300)
    assert done.returncode == 2 and "everybody may write to" in done.stderr, done.stdout + done.stderr
    assert os.listdir(tmp_path / "mine") == ["file"] and (tmp_path / "mine/file").read_text() == "precious"
