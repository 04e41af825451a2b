"""./bench publish: what goes along, and what says nothing of the machine."""

import json
import re
import socket
import subprocess
from pathlib import Path

import pytest
from result_sets import SECRET, change, write_set
from support import ROOT

from benchmarks.common.errors import UserError
from benchmarks.common.rows import read_table
from scripts.publish import publish
from scripts.results.options import PublishOptions
from scripts.results.result_set import load_set

pytestmark = pytest.mark.launches

HOST_HASH, OTHER_HASH = "0123456789ab", "ba9876543210"
PRIVATE = (
    *("node17", "node18", "acme.example", "29400", "annette", "s3cr3t", "proj42"),
    *("secret place", "/scratch", "acme", HOST_HASH, OTHER_HASH, str(ROOT)),
)
VARIABLES = {
    "DATA": SECRET,
    "HOSTS": "node17:8,node18:8",
    "RDZV_ENDPOINT": "node17:29400",
    "CONFIG": "../acme/plans/c.yaml",
    "ARGS": f"--data {SECRET} --checkpoint-dir=/scratch/annette/ckpt --lr 0.1",
    "NPROC": "2",
}
REASON = "node18 ended: /scratch/annette/x/a.log says ../acme/y.log, not configs/smoke.yaml; images/s /usr/lib/libc.so"


def with_setting(name, value, half):
    def changed(frame):
        cells = [json.dumps(json.loads(cell) | {name: value}) for cell in frame[half]]
        return frame.assign(**{half: cells})

    return changed


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """A set with a set of sweeps inside, whose files name hosts, a user, folders and a secret."""
    folder = write_set(tmp_path_factory.mktemp("measured") / "a set")
    write_set(folder / "sweeps", {"ddp": 170.0})
    for each, host in ((folder, HOST_HASH), (folder / "sweeps", OTHER_HASH)):
        for table in ("settings", "equivalence"):
            change(each, table, with_setting("host", host, "met"))
            change(each, table, with_setting("variables", "NCCL_AUTH=s3cr3t NCCL_ALGO=Ring", "met"))
        change(each, "runs", lambda frame: frame.assign(reason=REASON, config="../acme/plans/c.yaml"))
        (each / "environment.json").write_text(json.dumps({"num_cores": 2, "variables": VARIABLES}))
        for log in each.glob("logs/*/run.log"):
            command = f"{ROOT}/.venv/bin/torchrun --rdzv-endpoint=node17:29400 -m x --data '{SECRET}' --account proj42"
            log.write_text(f"$ {command}\nannette was here\n")
    return folder


@pytest.fixture(scope="module")
def published(measured, tmp_path_factory):
    """The set as it is published, by a user annette at node17."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(publish, "PUBLISHED", tmp_path_factory.mktemp("published"))
        patch.setattr(socket, "gethostname", lambda: "node17.acme.example")
        patch.setenv("USER", "annette")
        assert publish.main(PublishOptions("cpu2_none", measured)) == 0
        yield publish.PUBLISHED / "cpu2_none"


def texts(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): path.read_text(errors="replace")
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_tables_report_charts_and_sums_go_along_and_logs_do_not(measured, published):
    names = texts(published).keys()
    tables = {path.relative_to(measured).as_posix() for path in measured.rglob("*.csv")}
    assert tables and names == {
        *tables,
        *("environment.json", "sweeps/environment.json", "report.html", "report.md", "table.tex", "SHA256SUMS"),
        *(name for name in names if re.fullmatch(r"charts/\w+\.png", name)),
    }
    assert {"charts/throughput.png", "charts/speedup.png"} <= names
    subprocess.run(["sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS"], cwd=published, check=True)
    assert len((published / "SHA256SUMS").read_text().splitlines()) == len(names) - 1
    assert [path.name for path in published.parent.iterdir()] == ["cpu2_none"], "nothing is left beside it"


def test_no_file_names_the_machine_its_user_or_their_folders(measured, published):
    """Protects who publishes: each of these words stands in the set that was measured."""
    before, after = texts(measured).values(), texts(published)
    assert [word for word in PRIVATE if word != "acme.example" and not any(word in text for text in before)] == []
    assert [(name, word) for name, text in after.items() for word in PRIVATE if word in text] == []


def test_what_is_left_can_be_read(published):
    """Protects who reads a published set: words of the suite, paths of the system and last names stay."""
    runs, settings = read_table(published, "runs"), read_table(published, "settings")
    reason = "{} ended: a.log says y.log, not configs/smoke.yaml; images/s /usr/lib/libc.so"
    assert {re.sub(r"host \d", "{}", text) for text in runs.reason} == {reason}
    assert {*runs.config} == {"c.yaml"}
    assert {json.loads(text)["data"] for text in settings.asked} == {"photos"}
    met = [json.loads(text) for text in settings.met]
    assert {half["variables"] for half in met} == {"NCCL_AUTH=... NCCL_ALGO=Ring"}
    assert {half["host"] for half in met} == {"host 1"}
    inside = read_table(published / "sweeps", "settings")
    assert {json.loads(text)["host"] for text in inside.met} == {"host 2"}
    assert json.loads((published / "environment.json").read_text()) == {"num_cores": 2}


def test_the_copy_is_a_set_that_says_the_same(measured, published):
    """Protects the numbers, and that settings still belong to their runs."""
    before, after = load_set(measured), load_set(published)
    assert {*read_table(published, "runs").settings} == {*read_table(published, "settings").settings}
    assert [group.label for group in after.groups] == [group.label for group in before.groups]
    assert after.speedups["ddp"].text() == before.speedups["ddp"].text()
    for name in ("windows", "steps", "telemetry"):
        assert (published / f"{name}.csv").read_bytes() == (measured / f"{name}.csv").read_bytes()


@pytest.mark.parametrize(
    ("name", "words"), [("taken", "is there already; choose another --name"), ("../x", "cannot be a folder")]
)
def test_a_name_that_exists_or_is_none_is_refused(measured, tmp_path, monkeypatch, name, words):
    monkeypatch.setattr(publish, "PUBLISHED", tmp_path)
    (tmp_path / "taken").mkdir()
    with pytest.raises(UserError, match=words):
        publish.main(PublishOptions(name, measured))
    assert [*(tmp_path / "taken").iterdir()] == []
