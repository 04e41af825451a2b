"""Every strategy from end to end: real launchers, real ranks, real JPEGs, and the tables they leave.

.venv/bin/python -m pytest tests/benchmarks/test_strategies.py
"""

import json
import math
import socket
import subprocess
from pathlib import Path

import pytest
from support import NUM_VAL, ONE_PROCESS, REMEDY_WITHOUT, ROOT, RUNNABLE, STRATEGIES, environment, run_strategy

from benchmarks.common.config import load_config
from benchmarks.common.rows import read_table
from benchmarks.common.strategy import STORED_FIELDS, Layout
from scripts.memory.memory_check import layout_function
from scripts.runner.telemetry import PERIOD_S

SHARDS = {"num_shards": 2}  # on two ranks; the others are in one process
# Not taken from the scripts, whose rows are compared with it. Those that are not here compute what plain data
# parallelism does, or one process.
SHAPES = {name: {} if name in ONE_PROCESS else SHARDS for name in STRATEGIES} | {
    "model_parallel": {"num_stages": 2},
    "hybrid_parallel": SHARDS | {"num_stages": 2},
    "pipeline_parallel": {"num_stages": 2, "num_microbatches": 4},
    "ddp_compressed": SHARDS | {"compression": "bf16"},
    "local_sgd": SHARDS | {"period": 4},
    "ddp_compile": SHARDS | {"exact": False},
}


@pytest.fixture(scope="module")
def run(tmp_path_factory, tiny_data, tiny_config):
    """run(name): the row of one run of a strategy, which all tests of this file share, and its result set."""
    results, rows = (
        tmp_path_factory.mktemp("results") / "a set #1",
        {},
    )  # in the URL of a file store a # would end the path

    def run_once(name: str) -> tuple[dict, Path]:
        if name not in rows:
            cluster = {"SLURM_CONF": "/dev/null"} if name == "slurm" else {}
            rows[name] = run_strategy(name, results, DATA=tiny_data, CONFIG=tiny_config, NPROC=2, **cluster)
        return rows[name], results

    return run_once


# A minute of compiling, or a script that make test runs elsewhere, too: test_newer_strategies.py traces ddp_compile,
# test_stages.py has two real ranks of hybrid_parallel, and test_fake_gpus.py has steps of ddp_amp.
SLOW = {"ddp_compile", "hybrid_parallel", "ddp_amp"}
# The others' training, and that it is ddp's or single's, is in make test-medium. make test has the steps of some on
# stand-ins for GPUs (test_fake_gpus.py) and stages in turn (test_stages.py).
FAST = {"ddp"}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name in SLOW else () if name in FAST else pytest.mark.medium)
        for name in RUNNABLE
    ],
)
def test_a_strategy_trains_and_leaves_every_table(run, tiny_config, name):
    """Protects the whole flow of a number, from the launcher's flags to rows joined by run_id."""
    row, results = run(name)
    assert (row["status"], row["launcher_exit_code"]) == ("ok", 0), row["reason"]
    assert row["val_samples"] == NUM_VAL
    assert 0 < row["images_per_s_ci_low"] < row["images_per_s"] < row["images_per_s_ci_high"]
    assert row["step_ms_p95"] >= row["step_ms_p50"] > 0
    assert 0 < row["train_loss"] < 100 and 0 < row["val_loss"] < math.inf and 0 <= row["acc1"] <= row["acc5"] <= 100
    assert row["world_size"] == (1 if name in ONE_PROCESS else 2) and row["threads_per_rank"] == 1
    assert row["parallel"] == ("" if name == "single" else "no" if name in ONE_PROCESS else "yes")
    reported = json.loads((results / "logs" / row["run_id"] / "summary.json").read_text())
    shape = {name: reported["met"][name] for name in STORED_FIELDS}
    assert shape == {field: getattr(Layout(**SHAPES[name]), field) for field in STORED_FIELDS}
    layout = layout_function(name)(
        load_config(["--config", str(tiny_config)]), shape["num_shards"] * shape["num_stages"]
    )
    for field in ("num_shards", "num_stages", "num_microbatches"):  # or the memory forecast is of another strategy
        assert getattr(layout, field) == shape[field]
    assert reported["met"]["precision"] == row["precision"] == ("bf16" if name == "ddp_amp" else "fp32")
    assert (results / row["log_path"]).read_text().startswith("$ ")

    def rows_of(table):
        frame = read_table(results, table)
        return frame[frame["run_id"] == row["run_id"]]

    epochs = rows_of("epochs")
    assert [*zip(epochs["epoch"], epochs["phase"], epochs["images"], strict=True)] == [
        (0, "train", 40),
        (0, "val", NUM_VAL),
        (1, "train", 40),
        (1, "val", NUM_VAL),
    ]
    assert list(rows_of("windows")["images"]) == [16, 16]
    assert (rows_of("windows")["images_per_s"] > 0).all()
    assert rows_of("steps")["step_ms"].notna().sum() == 4
    # a run on the preloaded interpreter may end after a second
    num_samples_at_least = 2 if row["wall_s"] >= 3 * PERIOD_S else 1
    assert len(rows_of("telemetry")) >= num_samples_at_least and rows_of("telemetry")["memory_used_mb"].min() > 0
    assert rows_of("wall")["seconds"].sum() == pytest.approx(row["wall_s"])


@pytest.mark.parametrize("name", REMEDY_WITHOUT)
def test_what_cannot_run_here_is_skipped_with_a_remedy(run, name):
    """Protects `make bench-all` on a laptop: no error and no gap, but a row that says what to do."""
    row, _ = run(name)
    assert (row["status"], row["launcher_exit_code"]) == ("skipped", 0)
    assert REMEDY_WITHOUT[name] in row["reason"]


@pytest.mark.medium
@pytest.mark.parametrize("name", ["ddp_spawn", "horovod_ddp"])
def test_data_parallel_strategies_train_the_same_model(run, name):
    """Protects fairness: same batches, same initial weights, same update, so the same losses in every digit."""
    if name not in RUNNABLE:
        pytest.skip(f"needs Horovod: {REMEDY_WITHOUT[name]}")
    ours, ddp = run(name)[0], run("ddp")[0]
    assert (ours["train_loss"], ours["val_loss"], ours["acc1"]) == (ddp["train_loss"], ddp["val_loss"], ddp["acc1"])


@pytest.mark.medium
def test_one_process_strategies_train_the_same_model(run):
    """Protects the baseline: DataParallel on a CPU passes through, and model parallel only cuts the layers."""
    losses = {(run(name)[0]["train_loss"], run(name)[0]["val_loss"]) for name in sorted(ONE_PROCESS)}
    assert len(losses) == 1


def test_every_script_has_a_launcher():
    """Protects `make bench-<name>`, which is there for every script."""
    not_strategies = {
        "all",
        "cluster",
        "external",
        "lib",
        "slurm_all",
        "slurm_all_job",
        "slurm_run_job",
        "slurm_submit",
    }
    assert {path.stem for path in (ROOT / "launchers").glob("*.sh")} - not_strategies == set(STRATEGIES)


@pytest.mark.slow
def test_torchrun_over_two_nodes_leaves_one_row(tmp_path, tiny_data, tiny_config):
    """Protects the command line for machines without Slurm: two real torchruns meet, and the first node has the row."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        endpoint = f"127.0.0.1:{free.getsockname()[1]}"
    common = {"NNODES": 2, "NPROC": 1, "RDZV_ENDPOINT": endpoint, "GLOO_SOCKET_IFNAME": "lo"}
    common |= {"DATA": tiny_data, "CONFIG": tiny_config}
    nodes = [
        subprocess.Popen(
            [ROOT / "launchers" / "ddp.sh"],
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment(**common, NODE_RANK=number, RESULTS=tmp_path / f"node{number}"),
        )
        for number in range(2)
    ]
    output = [node.communicate(timeout=300)[0] for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], output
    (row,) = read_table(tmp_path / "node0", "runs").to_dict("records")
    assert (row["status"], row["nodes"], row["world_size"], row["val_samples"]) == ("ok", 2, 2, NUM_VAL)
    assert read_table(tmp_path / "node1", "runs").empty and "the first node has its row" in output[1]
