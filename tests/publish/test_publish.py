"""Publishing: what is refused and why, what goes along, and that README's figures and links follow.

.venv/bin/python -m pytest tests/publish/test_publish.py
"""

import contextlib
import csv
import json
import os
import re
import shutil
import subprocess
import sys

import pandas
import pytest
from matplotlib import pyplot
from result_sets import SECRET, change, write_set
from support import ROOT, environment, few_fast

from benchmarks.common.config.settings import settings_hash
from benchmarks.common.store.columns import COLUMNS
from benchmarks.common.store.results import read_table
from benchmarks.common.store.safe_cells import without_formulas
from benchmarks.common.system.errors import UserError
from benchmarks.common.system.files import exchange
from benchmarks.common.system.host import kernel_variables
from scripts.pages.provenance import command_words
from scripts.publish import allowlist, manifest
from scripts.publish import publish as publish_module
from scripts.publish.publish import PublishOptions, _private, _target_folder, replace_set, without_paths
from scripts.publish.publishable import RULE, find_problems, missing_files
from scripts.publish.readme import PUBLISHED, shown_sets
from scripts.publish.settings_made_public import public_variables, publish_settings
from scripts.sets.result_set import load_set


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    return write_set(tmp_path_factory.mktemp("good") / "a set")


@pytest.fixture
def own(good, tmp_path):
    return shutil.copytree(good, tmp_path / "own set")


def test_a_set_that_follows_the_protocol_has_no_problem(good):
    assert missing_files(good) == [] and find_problems(load_set(good)) == []


def setting(column, cell, strategy="ddp", repeat="3"):
    def changed(frame):
        frame.loc[(frame.strategy == strategy) & (frame.repeat == repeat), column] = cell
        return frame

    return changed


@pytest.mark.parametrize(
    ("table", "changed", "words"),
    [
        ("runs", setting("status", "failed"), ["ddp, round 3: failed: ", "--retry failed"]),
        ("runs", setting("dirty", "yes"), ["local changes", "commit them"]),
        ("runs", setting("commit", "def"), ["2 commits (abc, def)"]),
        ("runs", setting("commit", ""), ["without a commit"]),
        ("runs", setting("device_name", "Other CPU"), ["device_name: Other CPU, Test CPU"]),
        ("runs", setting("load_average", "7", "single", "0"), ["busy before the first run"]),
        ("runs", setting("oversubscribed", "yes"), ["ddp: oversubscribed"]),
        ("runs", setting("started_at", "2026-11-28T03:00:00+00:00"), ["ddp: runs of another session"]),
        (
            "runs",
            lambda frame: frame[frame.repeat != "3"],
            ["ddp has 4 of at least 5 rounds", "./bench run --repeats 5"],
        ),
        ("runs", lambda frame: frame[frame.strategy != "single"], ["no timed runs of single"]),
        ("runs", lambda frame: frame[frame.repeat != "0"], ["no run of round 0 warmed the machine", "new set"]),
        ("runs", setting("images_per_s", "", "single", "0"), ["no run of round 0 warmed the machine"]),
        ("runs", setting("position", ""), ["ddp: 1 of 5 runs without a place in the order", "new set"]),
        ("equivalence", lambda frame: frame[frame.strategy != "ddp"], ["ddp: no proof yet: ./bench verify"]),
        ("equivalence", lambda frame: frame.assign(verdict="failed"), ["single: NO: ", "ddp: NO: "]),
        ("equivalence", lambda frame: frame.assign(asked=frame.asked.str.replace('"seed":0', '"seed":1')), ["seed"]),
        (
            "equivalence",
            lambda frame: frame.assign(met=_with(frame.met, local_changes="c0ffee")),
            ["ddp was proved with other local changes; ./bench verify"],
        ),
        (
            "equivalence",
            lambda frame: frame.assign(met=_with(frame.met, commit="def")),
            ["ddp was proved at another commit; ./bench verify"],
        ),
        ("settings", lambda frame: frame[:0], ["settings were not recorded"]),
    ],
)
def test_what_speaks_against_a_set_is_reported_with_what_to_do(own, table, changed, words):
    """Protects whoever reads a published figure: each of these sets looks well, and must not be published."""
    change(own, table, changed)
    lines = "\n".join(find_problems(load_set(own)))
    assert all(word in lines for word in words), lines


def test_local_changes_in_the_settings_are_found(tmp_path):
    """The column `dirty` may say no where an older launcher wrote it; the settings' hash of changes does not."""
    folder = write_set(tmp_path / "set")
    added = lambda frame: frame.assign(met=frame.met.str.replace("{", '{"local_changes":"1234",', n=1))  # noqa: E731
    change(folder, "settings", added)
    assert any("local changes" in line for line in find_problems(load_set(folder)))


@pytest.mark.parametrize("name", ["runs.csv", "settings.csv", "equivalence.csv", "environment.json"])
def test_a_missing_file_is_named_with_its_command(own, name):
    (own / name).unlink()
    (line,) = missing_files(own)
    assert f"lacks {name}; ./bench " in line and line.endswith(f" --results '{own}'")


def test_every_gap_is_named_in_one_call(own, capsys, monkeypatch, tmp_path):
    """Protects a reader from one call for each gap: missing files, what the other files say, and sweeps that the
    READMEs show. Mutants: a return after the missing files; the first sweep alone."""
    (own / "equivalence.csv").unlink()
    (own / "telemetry.csv").unlink()
    change(own, "runs", setting("status", "failed"))
    change(own, "runs", setting("oversubscribed", "yes", repeat="2"))
    readme = tmp_path / "README.md"
    readme.write_text("<!--sweep.ddp.bucket_cap_mb-->x<!--/--> <!--sweep.single.lr-->x<!--/-->")
    monkeypatch.setattr("scripts.publish.readme.READMES", (readme,))
    assert publish_module.main(PublishOptions(name="cpu2_none", results=own)) == 1
    lines = capsys.readouterr().err.splitlines()
    for words in (
        "lacks equivalence.csv", "lacks telemetry.csv", "--retry failed", "ddp: oversubscribed",
        "--strategy ddp --key bucket_cap_mb", "--strategy single --key lr",
    ):  # fmt: skip
        assert len([line for line in lines if words in line]) == 1, lines
    assert not [line for line in lines if "no proof yet" in line]  # the missing table says so already
    (own / "runs.csv").unlink()
    assert publish_module.main(PublishOptions(name="cpu2_none", results=own)) == 1
    assert "lacks runs.csv" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("", "--name is not given"),
        ("a/b", "a/b cannot"),
        ("..", ".. cannot"),
        ("measured", "measured cannot"),
        (None, "--replace"),
    ],
)
def test_a_name_that_cannot_be_is_refused(name, words, good, monkeypatch):
    """The environment has a NAME, as under WSL, where it is the machine's. Mutant: it is taken for --name."""
    monkeypatch.setenv("NAME", "DESKTOP")
    with pytest.raises(Exception, match=re.escape(words)):
        _target_folder(PublishOptions(shown_sets(PUBLISHED)["cpu"] if name is None else name, good))


def test_paths_of_the_machine_are_left_out():
    allowlist = {SECRET: "photos", "/home/ann/bench/": ""}
    text = (
        f'{{"data":"{SECRET}","x":"/home/ann/bench/configs/a.yaml"}} /usr/lib/libc.so /scratch/u/x.log images/s </td>'
    )
    expected = '{"data":"photos","x":"configs/a.yaml"} /usr/lib/libc.so x.log images/s </td>'
    assert without_paths(text, allowlist) == expected


@pytest.mark.parametrize(("home", "text"), [("/", "images/s"), ("/home/ann", "~ images/s")])
def test_the_home_of_a_container_hides_no_slash(home, text, good, monkeypatch):
    """Protects reports that a container publishes, where HOME is / and every / once became ~."""
    monkeypatch.setenv("HOME", home)
    assert without_paths(text.replace("~", home), _private(load_set(good), "a set")) == text


def test_a_quoted_path_with_spaces_is_left_out():
    text = """cannot read '/mnt/my disk/ann/x y.JPEG', see "/usr/lib/a b/c" and don't / can't"""
    expected = """cannot read 'x y.JPEG', see "/usr/lib/a b/c" and don't / can't"""
    assert without_paths(text, {}) == expected


def test_a_path_after_a_letter_of_a_compiler_is_left_out():
    """Protects names of projects in the reason of a build that failed. Mutant: only words that begin with a slash."""
    text = "g++ -O3 -I/scratch/acme/torch/include -L/scratch/acme/lib -I/usr/include/x a-b/c/d images/s"
    text += " -isystem/scratch/acme/inc </scratch/acme/x.h> /usr/lib/../../scratch/acme/x.so <b>a</b> </td>"
    expected = "g++ -O3 -Iinclude -Llib -I/usr/include/x a-b/c/d images/s"
    expected += " -isysteminc <x.h> x.so <b>a</b> </td>"
    assert without_paths(text, {}) == expected


def test_cells_that_a_spreadsheet_would_run_are_marked(own, tmp_path):
    """Protects who opens a published table: some rows may be somebody else's, whose suite marked nothing. Mutants: the
    text as it stands; numbers marked; cells that are marked already marked again."""
    evil = {"device_name": '=HYPERLINK("x",1)', "reason": "\uff0b1", "torch": "@x", "governor": "'=1"}
    evil |= {"train_loss": "-1.5"}
    change(own, "runs", lambda frame: frame.assign(**evil))
    with open(own / "runs.csv", "a") as file:
        file.write('"=1+1\n')
    publish_module.copy_set(own, tmp_path / "new", {}, set())
    rows = pandas.read_csv(tmp_path / "new/runs.csv", dtype=str, keep_default_na=False)
    assert {name: set(rows[name]) for name in evil} == {
        "device_name": {"'=HYPERLINK(\"x\",1)"}, "reason": {"'\uff0b1"}, "torch": {"'@x"}, "governor": {"'=1"},
        "train_loss": {"-1.5"},
    }  # fmt: skip
    assert [*read_table(tmp_path / "new", "runs").device_name] == [*read_table(own, "runs").device_name]
    assert not (tmp_path / "new/runs.csv").read_text().endswith("1+1\n")
    for name in ("windows", "steps", "telemetry"):  # which have no paths either
        assert (tmp_path / f"new/{name}.csv").read_bytes() == (own / f"{name}.csv").read_bytes()


@pytest.mark.parametrize("cells", [' "=HYPERLINK(""x"")"', " =1+1", ' ",",=HYPERLINK(1),"'])
def test_a_blank_before_a_quote_hides_no_formula(cells):
    """Protects who opens a published table with LibreOffice, which skips blanks before a quote: for csv, the cell
    begins with the blank, and its quote is text. Mutants: only a cell's first character is looked at; a comma after
    such a quote ends the cell."""
    marked = without_formulas(f"a,{cells}")
    assert marked != f"a,{cells}" and without_formulas(marked) == marked
    read = next(csv.reader([marked], skipinitialspace=True))  # as LibreOffice does
    assert read == next(csv.reader([marked])) and not [cell for cell in read if cell.lstrip().startswith("=")]


def test_a_table_that_begins_as_another_format_is_marked_and_no_table_of_the_suite_does(own, tmp_path):
    """Protects who opens a published table: Excel reads a text that begins with ID as SYLK, with its macros. And the
    suite's own tables, whose first column would have another name. Mutant: the text as it stands."""
    assert not [table for table, columns in COLUMNS.items() if without_formulas(columns[0].name) != columns[0].name]
    table = own / "epochs.csv"
    table.write_text("ID;P,\n" + table.read_text())
    publish_module.copy_set(own, tmp_path / "new", {}, set())
    assert (tmp_path / "new/epochs.csv").read_text().startswith("'ID;P,\n")


RELATIVE = {  # as a user types them in the folder of the checkout
    "DATA": "../acme/photos",
    "CONFIG": "./plans/acme/c.yaml",
    "ARGS": "--data ../acme/photos --checkpoint-dir=runs/acme/ckpt --lr 0.1",
}


def test_relative_paths_are_published_without_the_users_folders(own, tmp_path):
    """Protects names of projects and people, which stand in relative paths as well as in absolute ones. Mutants: the
    variables as they stand; the settings; the flags of runs.csv; free text; its quoted paths with spaces."""
    saved = json.loads((own / "environment.json").read_text())
    (own / "environment.json").write_text(json.dumps(saved | {"variables": RELATIVE}))
    typed = {"data": "../acme/photos", "config": "plans/acme/c.yaml", "checkpoint_dir": "runs/acme/ckpt/ddp-1"}
    for table in ("settings", "equivalence"):
        change(own, table, lambda frame: frame.assign(asked=_with(frame.asked, **typed)))
    options = "'--data ../acme/photos --config=plans/acme/c.yaml --lr 0.1"  # marked, since it begins with -
    reason = "no runs/acme/ckpt/ddp-1/last.pt, '../acme my disk/x.JPEG' nor ./acme/y.log; images/s and/or ./bench run"
    row = {"config": "plans/acme/c.yaml", "options": options, "reason": reason}
    change(own, "runs", lambda frame: frame.assign(**row))
    results, new = load_set(own), tmp_path / "new"
    publish_module.copy_set(own, new, publish_module._private(results, "new"), set())
    publish_settings(new)
    assert "acme" not in "".join(path.read_text() for path in new.rglob("*.*"))
    kept = json.loads((new / "environment.json").read_text())["variables"]
    assert kept == {"DATA": "photos", "CONFIG": "c.yaml", "ARGS": "--data photos --checkpoint-dir=ckpt --lr 0.1"}
    runs, settings = read_table(new, "runs"), read_table(new, "settings")
    assert {*runs.config} == {"c.yaml"} and {*runs.options} == {"--data photos --config=c.yaml --lr 0.1"}
    assert {*runs.reason} == {"no ddp-1/last.pt, 'x.JPEG' nor y.log; images/s and/or ./bench run"}
    asked = json.loads(settings.asked[0])
    assert {name: asked[name] for name in typed} == {"data": "photos", "config": "c.yaml", "checkpoint_dir": "ddp-1"}
    assert [*settings.settings] == [*read_table(own, "settings").settings], "no hash covers a path"
    assert find_problems(load_set(new)) == []


def test_paths_that_are_words_of_the_suite_stay_readable(own, tmp_path):
    """Protects whoever wants to know what ran, and the command that runs it again. Mutant: each path its last name."""
    words = {"data": "data/imagenet-mini", "config": "configs/smoke.yaml", "checkpoint_dir": "results/checkpoints"}
    variables = {"DATA": words["data"], "CONFIG": words["config"], "ARGS": "--comm-hook 'fp16' --lr 0.1"}
    saved = json.loads((own / "environment.json").read_text())
    (own / "environment.json").write_text(json.dumps(saved | {"variables": variables}))
    for table in ("settings", "equivalence"):
        change(own, table, lambda frame: frame.assign(asked=_with(frame.asked, **words)))
    row = {"config": words["config"], "reason": "./bench verify --results results/x, images/s, a/b/c and N/A"}
    change(own, "runs", lambda frame: frame.assign(**row))
    publish_module.copy_set(own, tmp_path / "new", publish_module._private(load_set(own), "new"), set())
    publish_settings(tmp_path / "new")
    for name in ("runs", "settings", "equivalence"):
        assert (tmp_path / f"new/{name}.csv").read_text() == (own / f"{name}.csv").read_text()
    assert json.loads((tmp_path / "new/environment.json").read_text())["variables"] == variables
    assert allowlist.not_allowed(tmp_path / "new", set()) == []


@pytest.mark.parametrize("separator", [";", "; ", ";\t", "\t"])
def test_no_set_is_published_that_a_spreadsheet_would_run(own, tmp_path, separator):
    """Protects who opens a published table where semicolons or tabs separate cells. The gallery leaves such a set out,
    and publishing had let it in. Mutants: the first table alone; whole cells alone."""
    publish_module.copy_set(own, tmp_path / "fine", {}, set())
    assert publish_module.formulas_left(tmp_path / "fine") == []
    change(own, "epochs", lambda frame: frame.assign(phase=frame.phase + f"{separator}=HYPERLINK(1)"))
    publish_module.copy_set(own, tmp_path / "new", {}, set())
    text = (tmp_path / "new/epochs.csv").read_text()
    assert separator.strip(" ") in text and "=HYPERLINK" in text
    line = publish_module.formulas_left(tmp_path / "new")[0]
    assert line.startswith("epochs.csv, line 2: a spreadsheet may run what follows a semicolon or a tab")


def test_a_set_that_a_spreadsheet_would_run_is_refused_with_its_line(own, tmp_path, capsys, monkeypatch):
    """Protects the same, by the command. Mutant: no call of the check."""
    (published := tmp_path / "published").mkdir()
    monkeypatch.setattr("scripts.publish.readme.PUBLISHED", published)
    monkeypatch.setattr("scripts.publish.readme.READMES", ())
    monkeypatch.setattr(publish_module, "write_report", lambda *_: pytest.fail("its report was drawn"))
    change(own, "runs", setting("reason", "ended;=HYPERLINK(1)"))
    assert publish_module.main(PublishOptions(name="cpu2_none", results=own)) == 1
    assert re.search(r"(?m)^  runs\.csv, line \d+: a spreadsheet may run", capsys.readouterr().err)
    assert [*published.iterdir()] == []


TOLD = {  # of a cluster, which its user would not publish
    "CONTAINER": "docker://ann:tok3n@registry.example/team/image:1", "HOSTS": "node17:4,node18:4",
    "RDZV_ENDPOINT": "node17.example:29400", "PIP_INDEX_URL": "https://ann:pw@index.example/simple", "DATA": SECRET,
    "NPROC": "2", "AWS_SECRET": "abc",
}  # fmt: skip
COLLECTED = "PyTorch version: 2.15\ntorch @ file:///home/ann/torch.whl\n"
COLLECTED += "https://ann:pw@index.example/simple\n[pip3] nccl==13.4.1.3"


def test_of_the_environment_what_is_listed_goes_along(own, tmp_path):
    """Protects keys and hosts of a cluster. Mutants: every variable kept; the image's address kept; all lines of
    collect_env kept."""
    saved = json.loads((own / "environment.json").read_text())
    saved |= {"variables": TOLD, "collect_env": COLLECTED, "login": "ann"}
    (own / "environment.json").write_text(json.dumps(saved))
    change(own, "settings", lambda frame: frame.assign(asked=_with(frame.asked, container=TOLD["CONTAINER"])))
    change(own, "runs", setting("reason", "horovodrun -H node17:4,node18:4 -m benchmarks.horovod_ddp"))
    results = load_set(own)
    names = allowlist.local_names() | publish_module._hosts(results)
    publish_module.copy_set(own, tmp_path / "new", publish_module._private(results, "new"), names)
    assert allowlist.not_allowed(tmp_path / "new", names) == []
    text = "".join(path.read_text() for path in (tmp_path / "new").iterdir())
    assert not re.search(r"tok3n|node1[78]|index\.example|AWS|ann\b|29400|/mnt|file:", text)
    kept = json.loads((tmp_path / "new/environment.json").read_text())
    assert kept["variables"] == {"CONTAINER": "image:1", "DATA": "photos", "NPROC": "2"}
    assert kept["collect_env"] == "PyTorch version: 2.15\n[pip3] nccl==13.4.1.3" and "login" not in kept


SECRETS = {
    "MYPAT": "hunter2",
    "GH_PAT": "hunter2",
    "SIGNING_KEY": "hunter2",
    "TORCH_PAT": "hunter2",
    "LOGIN": "hunter2",
}


def test_a_secret_with_any_name_is_published_nowhere(own, tmp_path):
    """Protects a secret of a kind and a name that no list knows, wherever environment.json or the settings have it:
    what is not listed is left out. A variable that may change kernels is a hash. Mutants: each part of environment.json
    as it stands; lines of collect_env that hold no known secret let through."""
    saved = json.loads((own / "environment.json").read_text())
    collected = (
        "PyTorch version: 2.15\nMYPAT=hunter2\nMYPAT: hunter2\nGH_PAT hunter2\nmypat==hunter2\n[pip3] torch==2.15"
    )
    peak = {"device_name": "AMD EPYC", "tflops": {"fp32": 1.0}, **SECRETS}
    packages = {"torch": "2.15.0+cu132", "apex": None, "numpy": "hunter2", **SECRETS}
    saved |= {"variables": SECRETS, "collect_env": collected, "packages": packages, "measured_peak": peak, **SECRETS}
    (own / "environment.json").write_text(json.dumps(saved))
    variables = kernel_variables(SECRETS)
    change(own, "settings", lambda frame: frame.assign(met=_with(frame.met, variables=variables)))
    results = load_set(own)
    publish_module.copy_set(own, tmp_path / "new", publish_module._private(results, "new"), set())
    publish_settings(tmp_path / "new")
    manifest.write_manifest(tmp_path / "new", load_set(tmp_path / "new"))
    assert "hunter2" not in "".join(path.read_text() for path in (tmp_path / "new").rglob("*.*"))
    kept = json.loads((tmp_path / "new/environment.json").read_text())
    assert kept["packages"] == {"torch": "2.15.0+cu132", "apex": None}
    assert kept["collect_env"] == "PyTorch version: 2.15\n[pip3] torch==2.15"
    assert kept["measured_peak"] == {"device_name": "AMD EPYC", "tflops": {"fp32": 1.0}} and kept["variables"] == {}


@pytest.mark.parametrize("path", sorted(PUBLISHED.glob("cpu*/environment.json")), ids=lambda path: path.parent.name)
def test_what_torch_collects_is_allowed(path):
    """Protects readers of a set from a list that lacks a line. Mutant: a key of the list left out."""
    lines = json.loads(path.read_text())["collect_env"].splitlines()
    lost = [line for line in lines if line and not allowlist.COLLECTED.fullmatch(line)]
    assert len(lines) > 30 and lost == []


def test_machines_that_this_one_knows_are_named_in_no_set(tmp_path, monkeypatch):
    """Protects a cluster's nodes, whose names have no port and stand in no variable. Mutants: the files not read;
    addresses of them taken for names."""
    (tmp_path / ".ssh").mkdir()
    known = (
        "node17,10.1.2.3 ssh-ed25519 AAAA\n[login7]:2222 ssh-rsa AAAA\n|1|hash= ssh-rsa AAAA\ngithub.com ssh-rsa AAAA\n"
    )
    (tmp_path / ".ssh/known_hosts").write_text(known)
    monkeypatch.setenv("HOME", str(tmp_path))
    names = allowlist.local_names()
    assert {"node17", "login7"} <= names and not names & {"10.1.2.3", "github.com", "localhost"}
    (tmp_path / "a").mkdir()
    (tmp_path / "a/runs.csv").write_text("reason\nlost node17\n")
    assert allowlist.not_allowed(tmp_path / "a", names) == [
        "runs.csv, line 2: a name of this machine, of its user, or of a machine that it knows"
    ]


def _with(cells, **values):
    return [json.dumps(json.loads(cell) | values) for cell in cells]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("docker://ann:tok3n@registry.example/image", "an address with a user or a password (docker://...)"),
        ("https://tok3n@github.com/x", "an address with a user or a password"),
        ("see file:///home/ann/x", "an address (file:///home/ann/x)"),
        ("http://index.example:8080/x", "an address (http://index.example:8080/x)"),
        ("<img src=//index.example/x", "an address (//index.example/x)"),
        ("(//ann@index.example/x", "an address with a user or a password (//...)"),
        ("www.index.example/x", "an address (www.index.example/x)"),
        ("https://github.com.example/x", "an address (https://github.com.example/x)"),
        ("ssh ann@node17 failed", "a user or a token at a host (...@node17)"),
        ("connect to 10.0.0.7:29400", "an address of a machine (10.0.0.7:29400)"),
        ("MASTER_ADDR=10.1.2.3.", "an address of a machine (10.1.2.3)"),
        ("at fd00:12:34::17 or", "an address of a machine (fd00:12:34::17)"),
        ("with ghp_0123456789abcdefABCDEF of", "a token (ghp_01...)"),
        ("2>/srv/key.txt", "a path (/srv/key.txt)"),
        ("in `/srv/x`", "a path (/srv/x)"),
        ("in /home", "a path (/home)"),
        ("in ~ann/x", "a path (~ann/x)"),
        ("g++ -I/srv/ann", "a path (/srv/ann)"),
        ("g++ -isystem/srv/ann", "a path (/srv/ann)"),
        ('"-I/srv/ann"', "a path (/srv/ann)"),
        ("CFLAGS=-I/srv/ann", "a path (/srv/ann)"),
        ("x.so:y-L/home/ann/x", "a path (/home/ann)"),
        (r"C:\Users\ann\x", r"a path (C:\Users\ann)"),
        ("#include </srv/ann/x.h>", "a path (/srv/ann/x.h)"),
        ("a:/Übung/x", "a path (/Übung/x)"),
        ("no /usr/lib/../../srv/x", "a path (/usr/lib/../../srv/x)"),
        ("in ../ann/x", "a path (../ann/x)"),
        ("data=./ann", "a path (./ann)"),
        ("key=/secret", "a path (/secret)"),
        ("no /opt/acme/x.bin", "a path (/opt/acme/x.bin)"),
        ("no /dev/shm/acme/x", "a path (/dev/shm/acme/x)"),
        ("no /usr/local/home/ann/x", "a path (/usr/local/home/ann/x)"),
        ("with pypi-AgEIcHlwaS5vcmcCJDU5MTIz of", "a token (pypi-A...)"),
        ("with nvapi-0123456789abcdef0123 of", "a token (nvapi-...)"),
        ("with ASIA0123456789ABCDEF of", "a token (ASIA01...)"),
        ("with ya29.0123456789abcdef0123 of", "a token (ya29.0...)"),
        ("with sk_live_0123456789abcdef of", "a token (sk_liv...)"),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.dozjgNry", "a token (eyJhbG...)"),
        ("to gpu7.rack3.corp.example:23456, which", "an address of a machine (gpu7.rack3.corp.example:23456)"),
        ("MASTER=node17:29400.", "an address of a machine (node17:29400)"),
        ("lost gpu7.rack3.internal, which", "the name of a machine (gpu7.rack3.internal)"),
        ("on node17.cluster.", "the name of a machine (node17.cluster)"),
        ("by ssh, and `ssh gpu-a17` fails", "the name of a machine (`ssh gpu-a17`)"),
        (r"\u0042luebird-3 it", "a name of this machine, of its user, or of a machine that it knows"),
        (r"a\tbluebird-3", "a name of this machine, of its user, or of a machine that it knows"),
        ("on Bluebird-3 it", "a name of this machine, of its user, or of a machine that it knows"),
    ],
)
def test_what_a_set_may_not_say_is_named_with_its_line(tmp_path, text, words):
    """Protects secrets in free text, where no list of what to hide has them all. Mutants: each pattern of private.py
    left out; only some kinds of files looked through."""
    for name in ("runs.csv", "deep/environment.json", "report.html", "charts/a.svg", "report.tex"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        fine = "AMD EPYC @ 2.2 GHz, images/s, a / b, </td> localhost:29400, run.py:1234, cuda:0, a:1e4,"
        fine += " threading.local, ./bench run, `./bench verify`, configs/smoke.yaml, ... and so on/off"
        (tmp_path / name).write_text(f"fine\n{fine} {text}\n")
        (line,) = allowlist.not_allowed(tmp_path, {"bluebird-3"})
        assert line.startswith(f"{name}, line 2: {words}"), line
        (tmp_path / name).unlink()


def test_no_identifier_of_a_card_is_published():
    """Protects which cards of the world a user has. Mutant: the variable as it stands."""
    chosen = {"CUDA_VISIBLE_DEVICES": "GPU-8932f937-d72c,MIG-1a2b/3/0", "NPROC": "2"}
    published = allowlist.allowed_environment({"variables": chosen}, set())["variables"]
    assert published == {"CUDA_VISIBLE_DEVICES": "GPU-...,MIG-...", "NPROC": "2"}
    indices = {"variables": {"CUDA_VISIBLE_DEVICES": "0,1"}}
    assert allowlist.allowed_environment(indices, set()) == indices


@pytest.mark.parametrize("name", ["ann", "josé"])
def test_a_home_in_json_is_left_out_whatever_its_letters_are(own, tmp_path, monkeypatch, name):
    """Protects a user whose name JSON writes with escapes: josé was jos\\u00e9 in environment.json,
    which was published. Mutants: the paths as text only; the lines searched as they stand."""
    home = tmp_path / name
    monkeypatch.setenv("HOME", str(home))
    variables = {"DATA": f"{home}/photos", "ARGS": f"--checkpoint-dir {home}/ckpt --lr 1"}
    (own / "environment.json").write_text(json.dumps({"variables": variables}))
    change(own, "settings", lambda frame: frame.assign(asked=_with(frame.asked, data=f"{home}/photos")))
    results = load_set(own)
    publish_module.copy_set(own, tmp_path / "new", publish_module._private(results, "new"), {name})
    assert allowlist.not_allowed(tmp_path / "new", {name}) == []
    kept = json.loads((tmp_path / "new/environment.json").read_text())["variables"]
    assert kept == {"DATA": "photos", "ARGS": "--checkpoint-dir ckpt --lr 1"}
    assert json.loads(read_table(tmp_path / "new", "settings").asked[0])["data"] == "photos"
    (tmp_path / "new/environment.json").write_text(json.dumps({"variables": {"ARGS": f"--label {name}"}}))
    (line,) = allowlist.not_allowed(tmp_path / "new", {name})
    assert line == "environment.json, line 1: a name of this machine, of its user, or of a machine that it knows"


@pytest.mark.parametrize(
    ("option", "private", "shown"),
    [
        ("--rdzv-endpoint ", "gpu7.corp.example:23456", "RDZV_ENDPOINT"),
        ("--rdzv_endpoint=", "gpu7.corp.example:23456", "RDZV_ENDPOINT"),
        ("-H ", "gpu-a17:8,gpu-a18:8", "HOSTS"),
        ("--hosts=", "gpu-a17:8,gpu-a18:8", "HOSTS"),
        ("--qos=", "customer-x", "..."),
        ("'--account=", "lab 7'", "..."),
        ("--rdzv-endpoint ", "'/data/acme corp/tmp of alice/ranks.x/torchrun'", "torchrun"),
        ("", "'/data/acme corp/venv/bin/python'", "python"),
        ("", "'--log=/data/acme corp/a log'", "'--log=a log'"),
        ("", "'DATA=/data/acme corp/x'", "DATA=x"),
        ("", "--a=/scratch/ckpt --lr=1 --config=/data/x.yaml", "--a=ckpt --lr=1 --config=x.yaml"),
    ],
)
def test_hosts_and_accounts_in_a_runs_command_are_not_published(own, tmp_path, option, private, shown):
    """Protects the names of a cluster's nodes, and of who pays for a job: a run's command stands in report.html, and on
    a Slurm cluster no variable names its nodes. Mutants: the line as it stands; torchrun's option alone."""
    run_id = pandas.read_csv(own / "runs.csv").run_id.iloc[-1]
    log = own / f"logs/{run_id}/run.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text(f"$ launch python3 {option}{private} -m benchmarks.ddp\n")
    change(own, "runs", lambda frame: frame.assign(log_path=f"logs/{run_id}/run.log"))
    publish_module.copy_commands(tmp_path, load_set(own))
    copied = (tmp_path / f"logs/{run_id}/run.log").read_text()
    option = option.lstrip("'")
    assert copied == f"$ launch python3 {option}{shown} -m benchmarks.ddp\n"


def test_the_words_of_a_command_with_a_script_of_several_lines():
    """Protects the names in a Slurm step's command: its first line ends inside a script. Mutant: words without quotes
    where a quote has no end."""
    words = command_words("$ srun '--account=lab 7' bash -c 'look () {\n")
    assert words == ["srun", "--account=lab 7", "bash", "-c", "look () {"]


@pytest.mark.medium
def test_charts_say_what_matplotlib_says_of_itself(tmp_path):
    """Mutants: metadata of pictures not read; any kind of file taken."""
    figure, _ = pyplot.subplots(figsize=(1, 1))
    for suffix, key in (("png", "Comment"), ("pdf", "Author"), ("svg", "Creator")):
        figure.savefig(tmp_path / f"a.{suffix}")
        assert allowlist.not_allowed(tmp_path, set()) == []
        figure.savefig(tmp_path / f"a.{suffix}", metadata={key: "ann@bluebird"})
        (line,) = allowlist.not_allowed(tmp_path, set())
        assert line.startswith(f"a.{suffix}") and "(...@bluebird" in line
        (tmp_path / f"a.{suffix}").unlink()
    pyplot.close(figure)
    (tmp_path / "run.log").write_text("")
    assert allowlist.not_allowed(tmp_path, set()) == ["run.log: a set has no files of this kind"]


def test_hosts_become_numbers_and_hashes_follow(own, tmp_path):
    """Protects who measured: a host's hash and a library's folder stay here. Each run keeps its settings, also in the
    set inside; nothing else changes. Mutants: the hashes as they were; each set counts its hosts by itself."""
    hosts, preloaded = ["aaaaaaaaaaaa", "bbbbbbbbbbbb"], "LD_PRELOAD=/opt/x/lib/a.so:/usr/lib/b.so OMP_PROC_BIND=true"

    def with_machine(host):
        def changed(frame):
            met = [json.dumps(json.loads(cell) | {"host": host, "variables": preloaded}) for cell in frame.met]
            return frame.assign(met=met)

        return changed

    plain = shutil.copytree(own, tmp_path / "plain")
    for table in ("settings", "equivalence"):
        change(plain, table, lambda frame: frame.assign(asked=_with(frame.asked, data="data/imagenet-mini")))
    before = {path.name: path.read_bytes() for path in plain.glob("*.csv")}
    publish_settings(plain)
    assert {path.name: path.read_bytes() for path in plain.glob("*.csv")} == before
    shutil.copytree(own, own / "sweeps")
    for folder, host in ((own, hosts[1]), (own / "sweeps", hosts[0])):
        for table in ("settings", "equivalence"):
            change(folder, table, with_machine(host))
    change(own / "sweeps", "settings", lambda frame: pandas.concat([frame[:1], with_machine(hosts[1])(frame[1:])]))
    publish_settings(own)
    text = "".join(path.read_text() for path in own.rglob("*.csv"))
    assert not any(host in text for host in hosts) and "/lib/" not in text and "a.so:b.so OMP_PROC_BIND=true" in text
    for folder in (own, own / "sweeps"):
        settings = read_table(folder, "settings")
        for row in settings.itertuples():
            assert row.settings == settings_hash(json.loads(row.asked), json.loads(row.met))
        ok = read_table(folder, "runs").query("status == 'ok'")
        assert {*ok.settings} <= {*settings.settings}
    assert {json.loads(cell)["host"] for cell in read_table(own, "settings").met} == {"host 1"}
    inner = [json.loads(cell)["host"] for cell in read_table(own / "sweeps", "settings").met]
    assert inner == ["host 2"] + ["host 1"] * (len(inner) - 1)


@pytest.mark.parametrize(
    ("recorded", "public"),
    [
        ("none", "none"),
        ("ATEN_CPU_CAPABILITY=avx2 OMP_PROC_BIND=true", "ATEN_CPU_CAPABILITY=avx2 OMP_PROC_BIND=true"),
        ("LD_PRELOAD=/opt/x/a.so:/usr/lib/b.so.2 NCCL_ALGO=Ring", "LD_PRELOAD=a.so:b.so.2 NCCL_ALGO=Ring"),
        ("LD_PRELOAD=/home/Ann Example/a.so", "LD_PRELOAD=#"),
        ("LD_PRELOAD=/a.so /home/ann", "LD_PRELOAD=#"),
        ("NCCL_AUTH=hunter2 OMP_DYNAMIC=true", "NCCL_AUTH=# OMP_DYNAMIC=true"),
        ("NCCL_AUTH=two words=hunter2", "NCCL_AUTH=#"),
        ("TORCH_TOKEN=hunter2", "TORCH_TOKEN=#"),
        ("hunter2 NCCL_ALGO=Ring", "#"),
    ],
)
def test_only_values_of_listed_variables_are_published(recorded, public):
    """Protects secrets in sets from before values were hashed. What is public stays so. Mutants: folders taken out of
    each value; a value that ends at its first space."""
    made = public_variables(recorded)
    assert re.sub("#[0-9a-f]{12}", "#", made) == public
    assert public_variables(made) == made


def test_a_set_deep_inside_names_no_host_either(own):
    """Protects who measured from sets of three levels, as sweeps of a scaling have. Mutant: one level only."""
    deep = own / "scaling" / "sweeps"
    shutil.copytree(own, deep)
    change(
        deep,
        "settings",
        lambda frame: frame.assign(met=[json.dumps(json.loads(cell) | {"host": "aaaaaaaaaaaa"}) for cell in frame.met]),
    )
    publish_settings(own)
    assert {json.loads(cell)["host"] for cell in read_table(deep, "settings").met} == {"host 1"}


def test_a_failed_move_leaves_the_old_set(tmp_path):
    (tmp_path / "place").mkdir()
    (tmp_path / "place/runs.csv").write_text("old")
    with pytest.raises(OSError):
        replace_set(tmp_path / "is not there", tmp_path / "place", tmp_path / "aside")
    assert (tmp_path / "place/runs.csv").read_text() == "old"


@pytest.mark.parametrize("in_one_step", [True, False])
def test_a_stop_while_a_set_is_replaced_leaves_one_of_the_two(tmp_path, monkeypatch, in_one_step):
    """Protects a published set: a signal after the first of two renames left neither in the place, and the folder with
    both was removed. Mutants: no exchange; the old set not moved back."""
    for name in ("new", "place"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "runs.csv").write_text(name)
    if in_one_step and not (exchange(tmp_path / "new", tmp_path / "place") and exchange(*tmp_path.iterdir())):
        pytest.skip("this file system exchanges no two names")
    if not in_one_step:
        monkeypatch.setattr(publish_module, "exchange", lambda one, other: False, raising=False)
    rename = os.replace

    def rename_and_stop(source, target):
        rename(source, target)
        raise SystemExit  # as a signal's handler does

    monkeypatch.setattr(publish_module.os, "replace", rename_and_stop)
    with contextlib.suppress(SystemExit):
        replace_set(tmp_path / "new", tmp_path / "place", tmp_path / "aside")
    assert (tmp_path / "place/runs.csv").read_text() == ("new" if in_one_step else "place")


@pytest.fixture
def publish(good, tmp_path):
    """publish(*words): the real command in a checkout of its own, `publish.checkout`, with an older set."""
    checkout = tmp_path / "a checkout"
    for part in ("benchmarks", "scripts"):
        shutil.copytree(ROOT / part, checkout / part, ignore=shutil.ignore_patterns("__pycache__"))
    for folder in ("configs", "launchers", "results/published/old-set", "tests/faults"):
        (checkout / folder).mkdir(parents=True)
    for folder in ("configs", "launchers", "results", "tests/faults"):
        (checkout / folder / "README.md").write_text("no figures\n")
    (checkout / "README.md").write_text(
        "ddp <!--images_per_s.ddp-->9<!--/-->\n\n[a]: results/published/old-set/runs.csv\n"
    )
    (checkout / "results/published/shown.json").write_text('{"cpu": "old-set"}')

    def run(*words):
        command = [sys.executable, "-m", "scripts.publish.publish", "--results", good, "--name", "cpu2_new", *words]
        return subprocess.run(command, cwd=checkout, env=environment(NAME="DESKTOP"), capture_output=True, text=True)

    run.checkout = checkout
    return run


@pytest.mark.medium
def test_publishing_moves_figures_and_links(publish, good, tmp_path):
    """The real command in a checkout of its own: the set with its report, no logs, no path; then the READMEs."""
    checkout, readme = publish.checkout, publish.checkout / "README.md"
    done = publish()
    assert done.returncode == 0, done.stderr
    new = checkout / "results/published/cpu2_new"
    speed = load_set(good).timed_groups_of("ddp")[0].throughput.value
    expected = f"ddp <!--images_per_s.ddp-->{speed:,.0f}<!--/-->\n\n[a]: results/published/cpu2_new/runs.csv\n"
    assert readme.read_text() == expected
    assert shown_sets(new.parent) == {"cpu": "cpu2_new"}
    names = {path.name for path in new.iterdir()}
    assert names >= {
        "runs.csv",
        "report.md",
        "report.html",
        "report.tex",
        "charts",
        "published.json",
        manifest.MANIFEST,
    }
    saved = manifest.read_manifest(new)
    assert saved["commit"] == "abc" and [(run["strategy"], run["rounds"]) for run in saved["runs"]] == [
        ("single", 5),
        ("ddp", 5),
    ]
    assert {"runs.csv", "report.tex", "charts/throughput.png"} <= saved["files"].keys()
    assert manifest.find_faults(new, saved) == []
    assert not (new / "logs").exists() and [*new.parent.glob(".publishing*")] == []
    for path in new.rglob("*"):
        if path.is_file() and path.suffix not in (".png", ".pdf"):
            assert not any(
                word in path.read_text() for word in ("/mnt", "secret", str(ROOT), str(tmp_path), ".publishing")
            ), path
    assert "python -m benchmarks.ddp --data photos" in (new / "report.html").read_text()  # of the log's first line
    assert find_problems(load_set(new)) == []


@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_nothing_is_published_where_another_user_may_replace_it(good, tmp_path, monkeypatch, when):
    """Protects a published set, and the user's other folders: results/ may be a link to a disk of many users, one of
    whom puts a link in the place of the folder in which the new set is made. Mutants: no look at results/published;
    none at the new folder."""
    (above := tmp_path / "disk").mkdir()
    (above / "results/published").mkdir(parents=True)
    (tmp_path / "results").symlink_to(above / "results")
    monkeypatch.setattr(publish_module.readme, "PUBLISHED", tmp_path / "results/published")
    monkeypatch.setattr(publish_module, "_missing_sweeps", lambda folder, kind: [])
    monkeypatch.setattr(publish_module, "copy_set", lambda *words: pytest.fail("it was written all the same"))
    make = publish_module.tempfile.TemporaryDirectory

    def make_and_open(*words, **options):
        made = make(*words, **options)
        if "dir" in options:
            assert when == "meanwhile"
            above.chmod(0o777)
        return made

    if when == "before":
        above.chmod(0o777)
    monkeypatch.setattr(publish_module.tempfile, "TemporaryDirectory", make_and_open)
    with pytest.raises(UserError, match=r"^everybody may write to .*disk; run: chmod o-w "):
        publish_module.main(PublishOptions(name="cpu2_new", results=good))
    assert not [*(above / "results/published").iterdir()]


@pytest.mark.medium
def test_what_is_published_is_replaced_whole_or_not_at_all(publish, good, tmp_path):
    """Protects a published set: nothing takes its place by accident, nor what may not be published."""
    checkout, readme = publish.checkout, publish.checkout / "README.md"
    new = checkout / "results/published/cpu2_new"
    assert publish().returncode == 0
    again = publish()
    assert again.returncode == 2 and "--replace" in again.stderr and len(again.stderr.splitlines()) == 1
    (new / "stale").write_text("")
    assert publish("--replace").returncode == 0 and not (new / "stale").exists()
    saved = shutil.copytree(good, tmp_path / "saved")
    change(saved, "runs", setting("reason", "see https://ann:pw@index.example/simple"))
    kept = checkout / "results/published/cpu2_new/runs.csv"
    before = kept.read_text()
    secret = publish("--replace", "--results", saved)
    assert secret.returncode == 1 and kept.read_text() == before
    assert re.search(r"(?m)^  runs.csv, line \d+: an address with a user or a password", secret.stderr)
    readme.write_text("<!--sweep.ddp.bucket_cap_mb-->x<!--/-->")  # what the set has no figure for
    refused = publish("--replace")
    assert refused.returncode == 1 and "./bench study sweep --strategy ddp --key bucket_cap_mb" in refused.stderr


# --- what is published --------------------------------------------------------------------------------------------

SETS = [path for path in sorted(PUBLISHED.iterdir()) if path.is_dir() and path.name != "measured"]


@pytest.mark.parametrize("path", few_fast(SETS, {0}), ids=lambda path: path.name)
def test_a_published_set_passes_its_checks_or_says_by_which_older_rule_it_came(path):
    saved = json.loads((path / "published.json").read_text())
    if saved["rule"] == RULE:
        assert find_problems(load_set(path)) == []
    else:
        assert saved["rule"] < RULE and len(saved["reason"]) > 20


def test_what_the_readmes_show_is_published():
    names = shown_sets(PUBLISHED)
    assert {*names} <= {"cpu", "gpu"} and {*names.values()} <= {path.name for path in SETS}


@pytest.mark.parametrize(
    ("name", "copied"),
    [
        ("logs/{}/run.log", True),
        ("a/../../../victim.sh", False),
        ("logs/b/../../victim.sh", False),
        ("runs.csv", False),
        ("{}/victim.sh", False),
    ],
)
def test_a_set_does_not_choose_which_files_are_written(own, tmp_path, name, copied):
    """Protects who publishes somebody else's set: its a/../../../victim.sh is in it, by a link. In a copy
    without links it could be a launcher. Mutants: a name with `..`; a table of the set; an absolute path."""
    (own / "logs/b/c").mkdir(parents=True)
    (own / "victim.sh").write_text("touch ran\n")
    run_id = pandas.read_csv(own / "runs.csv").run_id.iloc[-1]
    name = name.format(own if name.startswith("{}") else run_id)
    before = {path: path.read_bytes() for path in own.rglob("*") if path.is_file()}
    change(own, "runs", lambda frame: frame.assign(log_path=name))
    before[own / "runs.csv"] = (own / "runs.csv").read_bytes()
    outside = tmp_path / "published"
    new = outside / "scratch" / "new"
    new.mkdir(parents=True)
    results = load_set(own)
    (own / "a").symlink_to("logs/b/c")  # later, since a set with a link is not loaded
    publish_module.copy_commands(new, results)
    written = [path.relative_to(outside) for path in outside.rglob("*") if path.is_file()]
    assert [path.as_posix() for path in written] == ([f"scratch/new/{name}"] if copied else [])
    assert {path: path.read_bytes() for path in own.rglob("*") if path.is_file()} == before
    assert not (tmp_path / "victim.sh").exists()
