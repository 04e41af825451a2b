"""`./bench verify` passes the suite as it is, and fails on each fault that it is there to find.

A fault is planted in a copy of the suite, by replacing text that must be there, and verify runs as a user's would:
real launchers, real ranks. Smaller mistakes, and the arithmetic of the verdict, are in test_comparison.py.
"""

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest
from support import asked, start_bench

from benchmarks.common.config import NOT_COMPARED, Config
from benchmarks.common.errors import UserError
from benchmarks.common.machine import host
from benchmarks.common.rows import append_rows, read_table
from scripts.results.settings import add_settings
from scripts.runner import plan
from scripts.verify import cases
from scripts.verify.verify import VerifyOptions, main

# The run's length and what of it is timed; threads.
MAY_DIFFER = set("epochs steps warmup_steps windows window_steps account_steps threads_per_rank".split())

OPTIMIZER = "    return optimizer_class(model.parameters(), **options)\n"
HOOKED = "    for parameter in model.parameters():\n        parameter.register_hook(lambda g: g * 1.03)\n" + OPTIMIZER
THREE_RANKS = "--global-batch 24 --image-size 48"


class Fault(NamedTuple):
    """Text in a file, and what stands in its place. said: of the verdict."""

    strategy: str
    file: str
    text: str
    replacement: str
    args: str = ""
    ranks: int = 2
    said: str = "not the reference's update"


FAULTS = {
    "no all-reduce": Fault("ddp", "benchmarks/ddp.py", "output = ddp(images)", "output = model(images)"),
    "evaluation of flipped images": Fault(
        "ddp",
        "benchmarks/common/engine.py",
        "self.predict(images)",
        "self.predict(images.flip(3))",
        said="the evaluation's loss is",
    ),
    "resumed without momentum": Fault(
        "ddp",
        "benchmarks/common/checkpoint.py",
        '        strategy.optimizer.load_state_dict(saved["optimizer"])\n',
        "",
        said=": resumed after step",
    ),
    "gradients x 1.03 on three ranks": Fault("ddp", "benchmarks/common/model.py", OPTIMIZER, HOOKED, THREE_RANKS, 3),
    "the average one step late": Fault(
        "local_sgd",
        "benchmarks/local_sgd.py",
        "num_steps % config.local_period == 0",
        "num_steps % config.local_period == 1 < num_steps",
    ),
}


def verify(checkout: Path, data: Path, results: Path, *words: str, **variables):
    """./bench verify of a checkout: (exit code, its output, rows of equivalence.csv by strategy)."""
    variables = {"DATA": data, "RESULTS": results, "NPROC": 2} | variables
    keywords = {"capture_output": True, "text": True, "timeout": 1500}
    done = start_bench(checkout, shlex.join(["verify", *words]), subprocess.run, **variables, **keywords)
    print(done.stdout + done.stderr)  # pytest shows it if the test fails
    rows = {row["strategy"]: row for row in read_table(results, "equivalence").to_dict("records")}
    return done.returncode, done.stdout + done.stderr, rows


@pytest.mark.launches
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault, checkout, tiny_data, tiny_config, tmp_path):
    """The run itself ends well, and only the weights, or the evaluation, are wrong."""
    planted = FAULTS[fault]
    copy = Path(shutil.copytree(checkout, tmp_path / "faulty"))
    source = (copy / planted.file).read_text()
    assert source.count(planted.text) == 1
    (copy / planted.file).write_text(source.replace(planted.text, planted.replacement))
    given = {"CONFIG": tiny_config, "ARGS": planted.args, "STRATEGIES": planted.strategy, "NPROC": planted.ranks}
    code, output, rows = verify(copy, tiny_data, tmp_path / "a set", "--steps", "6", **given)
    assert code == 1 and planted.said in output and rows[planted.strategy]["verdict"] == "failed"


@pytest.mark.launches
def test_the_suite_as_it_is_agrees_to_the_last_bit(checkout, tiny_data, tiny_config, tmp_path):
    """Else the faults could be found by anything."""
    given = {"CONFIG": tiny_config, "STRATEGIES": "ddp zero1 pipeline_parallel apex_ddp"}
    code, _, rows = verify(checkout, tiny_data, tmp_path / "a set", "--steps", "4", **given)
    skipped = rows.pop("apex_ddp")
    assert skipped["verdict"] == "skipped" and "NVIDIA GPUs" in skipped["reason"]
    assert code == 0 and {(row["verdict"], row["bit_identical"]) for row in rows.values()} == {("ok", "yes")}
    assert not list((tmp_path / "a set" / "verify").glob("weights-*"))  # 90 MB a strategy


@pytest.mark.parametrize("exact", [True, False])
def test_a_proof_differs_from_its_run_in_nothing_but_what_may(exact):
    """A field that is added to the configuration later is proved as it ran, or named here."""

    def other_than(value):
        return not value if isinstance(value, bool) else f"not {value}" if isinstance(value, str) else value + 1

    config = Config(**{name: other_than(value) for name, value in vars(Config()).items()})
    proof = cases.proof_config(config, 20, exact=exact)
    differing = {name for name in vars(config) if getattr(config, name) != getattr(proof, name)}
    assert differing <= MAY_DIFFER | NOT_COMPARED.keys()


# --- what is proved, and what is refused ---------------------------------------------------------------------------


@pytest.fixture
def options(tiny_data, tiny_config, tmp_path, monkeypatch):
    """Options of a proof of tiny_data."""
    monkeypatch.setenv("NUM_GPUS", "0")
    monkeypatch.delenv("NPROC", raising=False)
    common = {"steps": 4, "data": tiny_data, "config": tiny_config, "results": tmp_path / "a set"}
    return lambda **changes: VerifyOptions(**(common | changes))


@pytest.mark.parametrize(
    "changes, flags, message",
    [
        ({"steps": 5}, (), "steps is 5"),
        ({"strategies": ("dpp",)}, (), "did you mean ddp?"),
        ({"data": "/nowhere"}, (), "'/nowhere' does not exist"),
        ({}, ("--loader", "synthetic"), "loader synthetic"),
    ],
)
def test_mistakes_are_named_before_any_run(changes, flags, message, options, tmp_path):
    with pytest.raises(UserError, match=re.escape(message)):
        main(options(**changes), flags)
    assert not (tmp_path / "a set").exists()


@pytest.mark.launches
def test_a_proof_of_skipped_strategies_alone_is_none(options, capsys):
    assert main(options(strategies=("apex_ddp",)), ()) == 1
    assert "nothing was proved: all were skipped" in capsys.readouterr().out


@pytest.mark.launches
def test_what_does_not_fit_is_not_proved_and_not_started(options, tmp_path, monkeypatch):
    monkeypatch.setenv("NUM_GPUS", "1")
    monkeypatch.setenv("GPU_MEMORY_GB", "1.55")
    monkeypatch.setattr("scripts.verify.verify.start", lambda *_: pytest.fail("it was started"))
    assert main(options(strategies=("single",)), ()) == 1
    (row,) = read_table(tmp_path / "a set", "equivalence").to_dict("records")
    assert row["verdict"] == "not proved" and row["reason"].startswith("would not fit: needs 0.")


def recorded_set(results: Path, data: Path, args: str = "") -> None:
    """One more ok run of ddp on two ranks, of which nothing but its settings is there."""
    args = f"--global-batch 8 --image-size 32 {args}"
    (run,) = plan.plan_strategies(asked(DATA=data, ARGS=args, STRATEGIES="ddp"))
    folder, _ = plan.create_run_folder(run.in_round(1), results)
    resolved = {"device": "cpu", "host": host(os.environ)}
    folder.write_summary({"row": {}, "met": resolved})
    row = {"schema": 2, "run_id": folder.run_id, "strategy": "ddp", "status": "ok"}
    append_rows(results, "runs", [row | {"settings": add_settings(results, folder.requested(), resolved)}])


@pytest.mark.usefixtures("options")
def test_each_setting_of_a_strategy_has_a_proof_of_its_own(tiny_data, tmp_path, capsys):
    results = tmp_path / "a set"
    for args in ("--lr 0.1", "--lr 0.2", "--lr 0.1"):
        recorded_set(results, tiny_data, args)
    append_rows(results, "runs", [{"schema": 2, "run_id": "x", "strategy": "apex_ddp", "status": "skipped"}])
    for names, rates in (("", [0.1, 0.2]), ("ddp apex_ddp", [0.1, 0.2]), ("apex_ddp", [])):
        found = cases.cases_of_set(asked(STRATEGIES=names), results, 20)
        assert [proof.config.lr for proof in found] == rates
        assert ("apex_ddp as skipped only" in capsys.readouterr().err) == ("apex_ddp" in names)
    with pytest.raises(UserError, match=r"no ok run of fsdp.*; \./bench run fsdp --results '.*a set'"):
        cases.cases_of_set(asked(STRATEGIES="ddp fsdp"), results, 20)


@pytest.mark.usefixtures("options")
def test_a_set_of_other_images_or_of_another_machine_is_refused(own_data, tiny_data, tmp_path, monkeypatch):
    results = tmp_path / "a set"
    recorded_set(results, own_data)
    for data in (tiny_data, ""):  # the same images elsewhere, and where the set found them
        (run,) = cases.cases_of_set(asked(), results, 20, str(data))
        assert (run.strategy, run.requested["ranks"], run.config.image_size) == ("ddp", 2, 32)
    for variables in ({"NUM_GPUS": "2"}, {"NNODES": "2"}):
        with (
            monkeypatch.context() as patch,
            pytest.raises(UserError, match="prove it where it ran, with the same NNOD"),
        ):
            for name, value in variables.items():
                patch.setenv(name, value)
            cases.cases_of_set(asked(), results, 20)
    plan._fingerprint.cache_clear()
    next(own_data.glob("train/*/*.JPEG")).unlink()
    with pytest.raises(UserError, match=r"with fingerprint .* set --data to its images"):
        cases.cases_of_set(asked(), results, 20)
    plan._fingerprint.cache_clear()
