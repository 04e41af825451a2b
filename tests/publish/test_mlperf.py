"""The MLPerf log of a real run, judged by MLPerf's own compliance checker.

.venv/bin/python -m pytest tests/publish/test_mlperf.py
"""

import json
import shutil
import subprocess
import sys

import pytest
from support import NUM_VAL, environment, run_strategy

from benchmarks.common.config.config import Config
from benchmarks.common.store.results import append_rows, read_table
from benchmarks.common.system.errors import UserError
from scripts.publish import mlperf_log
from scripts.publish.readme import PUBLISHED

mlp_compliance = pytest.importorskip("mlperf_logging.compliance_checker.mlp_compliance")
REQUIRED = (
    "submission_benchmark",
    "submission_division",
    "submission_org",
    "submission_status",
    "submission_platform",
    "cache_clear",
    "init_start",
    "init_stop",
    "run_start",
    "run_stop",
    "train_samples",
    "eval_samples",
    "eval_accuracy",
    "epoch_start",
    "epoch_stop",
    "eval_start",
    "eval_stop",
)


@pytest.fixture(scope="module")
def real(tmp_path_factory, tiny_data, tiny_config):
    """A real run of `single`, its result set, and the log that the command wrote."""
    results = tmp_path_factory.mktemp("sets") / "a set"
    row = run_strategy("single", results, "--account-steps 1", DATA=tiny_data, CONFIG=tiny_config)
    assert row["status"] == "ok", row["reason"]
    assert mlperf_log.main(mlperf_log.MlperfOptions(results)) == 0
    return results, row, (results / "mlperf.log").read_text()


def accepted(text, folder):
    """What MLPerf's checker for training, ruleset 4.0.0, says of a log."""
    path = folder / "checked.log"
    path.write_text(text)
    checker = mlp_compliance.make_checker("training", "4.0.0", quiet=False, werror=True)
    return mlp_compliance.main(str(path), "training_4.0.0/common.yaml", checker)[0]


def events(text):
    return [json.loads(line.removeprefix(":::MLLOG ")) for line in text.splitlines()]


@pytest.mark.medium
def test_the_compliance_checker_accepts_the_log(real, tmp_path):
    # The command that the README names, as a user runs it.
    results, _, _ = real
    command = [sys.executable, "-m", "mlperf_logging.compliance_checker", "--usage", "training", "--ruleset", "4.0.0"]
    done = subprocess.run(
        [*command, results / "mlperf.log"], cwd=tmp_path, env=environment(), capture_output=True, text=True
    )
    assert done.returncode == 0 and "SUCCESS" in done.stderr, done.stderr


@pytest.mark.parametrize("key", REQUIRED)
@pytest.mark.medium
def test_the_checker_misses_each_key_that_is_removed(real, tmp_path, key):
    # Shows that the acceptance above means something: without the lines of a key the same checker refuses.
    _, _, text = real
    lines = text.splitlines(keepends=True)
    kept = [line for line, event in zip(lines, events(text), strict=True) if event["key"] != key]
    assert len(kept) < len(lines)
    assert not accepted("".join(kept), tmp_path)


@pytest.mark.medium
def test_the_timeline_is_the_measured_one(real):
    # Moments never go back; each pass lasts as long as epochs.csv says; the run ends within the attempt's wall time.
    results, row, text = real
    log, epochs = events(text), read_table(results, "epochs")
    moments = [event["time_ms"] for event in log]
    assert moments == sorted(moments)
    for phase, start, stop in (("train", "epoch_start", "epoch_stop"), ("val", "eval_start", "eval_stop")):
        spans = [
            (b["time_ms"] - a["time_ms"]) / 1000
            for a, b in zip([e for e in log if e["key"] == start], [e for e in log if e["key"] == stop], strict=True)
        ]
        assert spans == pytest.approx(epochs[epochs.phase == phase].seconds.tolist(), abs=0.002)
    assert (moments[-1] - moments[0]) / 1000 < row["wall_s"]
    by_key = {event["key"]: event for event in log}
    assert by_key["eval_samples"]["value"] == NUM_VAL and by_key["train_samples"]["value"] == 40
    assert by_key["eval_accuracy"]["value"] == pytest.approx(row["acc1"] / 100)
    assert by_key["global_batch_size"]["value"] == 8 and by_key["sgd_opt_base_learning_rate"]["value"] == 0.1 * 8 / 256
    assert by_key["run_stop"]["metadata"]["status"] == "aborted", "23 images at 32 px do not reach 75.9 %"


def test_a_reached_target_is_a_success(real):
    # The status follows the measured accuracy, not a wish.
    results, row, _ = real
    assert mlperf_log.main(mlperf_log.MlperfOptions(results, run_id=row["run_id"], target_accuracy=0.0)) == 0
    assert events((results / "mlperf.log").read_text())[-1]["metadata"]["status"] == "success"


def test_no_path_of_this_machine_is_in_the_log(real):
    # mlperf_logging notes the source file of each call; the log is published, so the file is relative.
    _, _, text = real
    assert {event["metadata"]["file"] for event in events(text)} == {"scripts/publish/mlperf_log.py"}


def test_what_cannot_be_logged_is_reported(real, tmp_path, capsys):
    # An unknown run, a set without an evaluated run.
    results, row, _ = real
    with pytest.raises(UserError, match=row["run_id"]):
        mlperf_log.main(mlperf_log.MlperfOptions(results, run_id="no-such-run"))
    append_rows(tmp_path, "runs", [{"run_id": "a", "strategy": "single", "status": "ok"}])
    assert mlperf_log.main(mlperf_log.MlperfOptions(tmp_path)) == 1
    assert "evaluated" in capsys.readouterr().err


def test_the_settings_of_an_older_set_are_not_guessed(tmp_path):
    # Its flags and a file that may have changed since are no configuration.
    row = {
        "run_id": "a",
        "strategy": "single",
        "status": "ok",
        "config": "configs/smoke.yaml",
        "started_at": "2026-01-02",
    }
    append_rows(tmp_path, "runs", [row])
    append_rows(tmp_path, "epochs", [{"run_id": "a", "epoch": 0, "phase": "val", "seconds": 1, "images": 9, "acc1": 5}])
    with pytest.raises(UserError, match="does not tell with which settings a ran"):
        mlperf_log.main(mlperf_log.MlperfOptions(tmp_path))


@pytest.mark.parametrize(("norm", "span"), [("batch", 3), ("group", None)])
def test_batch_norm_spans_what_the_run_says_that_it_did(norm, span):
    # The shape is the strategy's own: 24 images, 2 shards, each in 4 micro-batches. No name decides.
    asked = vars(Config(global_batch=24, norm=norm)) | {"strategy": "any"}
    found = mlperf_log.hyper_parameters(asked, {"num_shards": 2, "num_microbatches": 4, "precision": "bf16"})
    assert found["model_bn_span"] == span and found["precision"] == "bf16"


@pytest.mark.parametrize("change", [{"num_shards": "x"}, {"num_shards": 0}, {"num_microbatches": None}])
def test_settings_that_no_run_writes_are_refused_in_a_line(tmp_path, change):
    """Protects who logs a run of somebody else's set: it ended with a traceback. Mutant: none of the errors caught."""
    source = PUBLISHED / "cpu2-epyc_torch2.15_202611b/scaling"
    folder = shutil.copytree(source, tmp_path / "a set")
    rows = read_table(folder, "settings").to_dict("records")
    changed = [row | {"met": json.dumps(json.loads(row["met"]) | change)} for row in rows if row["met"]]
    append_rows(folder, "settings", changed, replace=True)
    with pytest.raises(UserError, match="are not as a run writes them"):
        mlperf_log.main(mlperf_log.MlperfOptions(folder))
