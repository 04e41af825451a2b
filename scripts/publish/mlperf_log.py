"""Write an MLPerf training log (mlperf_logging's format) of one run of a result set.

    ./bench mlperf --results results/latest [--run-id ddp-1-120000] [--output mlperf.log]
    python -m mlperf_logging.compliance_checker --usage training --ruleset 4.0.0 mlperf.log

The log is for the open division of the `resnet` benchmark, ruleset 4.0.0. What is measured and what is derived:

- Durations are measured: of the start-up (wall.csv up to the first training step), of each training pass and each
  evaluation (epochs.csv), and of the run (wall_s in runs.csv).
- Moments are derived: started_at, to the second, plus these durations laid end to end. What lies between a
  training pass and the next (checkpoints, rows) moves the later moments together, up to run_stop.
- Hyper-parameters are those that the set recorded of the run: settings.csv.

run_stop says success where the last top-1 accuracy reached --target-accuracy, else aborted. The caches were not
dropped, and the log says so. Exit code: 1 where no run fits, 2 for a mistake. Needs mlperf-logging.
"""

import datetime
import logging
import sys

import pandas

from benchmarks.common.config.architectures import architecture_of
from benchmarks.common.store.output_files import write_output
from benchmarks.common.system.commands import shell_word
from benchmarks.common.system.errors import UserError
from benchmarks.common.system.repository import ROOT
from scripts.options.set_options import MlperfOptions
from scripts.sets.identity import Identity
from scripts.sets.own_set import refuse_foreign_set
from scripts.sets.result_set import ResultSet, load_set
from scripts.stats.formatting import printable

STARTUP_ENDS = ("warm-up", "training outside windows", "timed windows")  # parts of wall.csv from the first step on
AFTER_TRAINING = ("summary", "step account", "shutdown")


class _Lines(logging.Handler):
    """Collects the log lines that mlperf_logging makes."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def pick_run(runs: pandas.DataFrame, epochs: pandas.DataFrame, run_id: str) -> pandas.Series | None:
    """The row of `run_id`, or of the ok run with evaluated epochs and the best accuracy; None without one.

    Raises UserError where run_id is unknown, was not ok or was never evaluated.
    """
    evaluated = set(epochs[epochs.phase == "val"].run_id)
    fit = runs[(runs.status == "ok") & runs.run_id.isin(evaluated)]
    if run_id:
        if run_id not in set(fit.run_id):
            some = ", ".join(fit.run_id.head(5)) or "none"
            raise UserError(f"no ok run {run_id!r} with an evaluation; runs that have one: {some}")
        return fit[fit.run_id == run_id].iloc[-1]
    return None if fit.empty else fit.sort_values("acc1").iloc[-1]


def startup_s(wall: pandas.DataFrame) -> float:
    """Seconds from the launch to the first training step: the parts of wall.csv before it, in order."""
    total = 0.0
    for part, seconds in zip(wall.part, wall.seconds, strict=True):
        if part in STARTUP_ENDS:
            break
        total += seconds
    return total


def log_text(
    options: MlperfOptions, row: pandas.Series, identity: Identity, epochs: pandas.DataFrame, wall: pandas.DataFrame
) -> str:
    """The log of one run. epochs and wall: its rows. Raises UserError where mlperf_logging is missing."""
    try:
        from mlperf_logging.mllog import constants as keys
        from mlperf_logging.mllog.mllog import MLLogger
    except ImportError:
        raise UserError("mlperf_logging is not installed; run: pip install mlperf-logging") from None
    lines, logger = _Lines(), logging.Logger("mlperf")
    logger.addHandler(lines)
    log = MLLogger(logger=logger, root_dir=str(ROOT))
    now = began = moment_s(row)
    train_images, val_images = (epochs[epochs.phase == phase].images.max() for phase in ("train", "val"))

    def at() -> int:
        return round(1000 * now)

    for key, value in (
        (keys.SUBMISSION_BENCHMARK, "resnet"),
        (keys.SUBMISSION_DIVISION, keys.OPEN),
        (keys.SUBMISSION_ORG, options.submission_org),
        (keys.SUBMISSION_STATUS, options.status),
        (keys.SUBMISSION_PLATFORM, f"{row.world_size:.0f}x {row.device_name}"),
    ):
        log.event(key, value, time_ms=at())
    log.event(
        keys.CACHE_CLEAR, False, metadata={"note": "caches of the operating system were not dropped"}, time_ms=at()
    )
    log.start(keys.INIT_START, time_ms=at())
    for key, value in hyper_parameters(identity.requested, identity.resolved).items():
        log.event(key, value, time_ms=at())
    log.event(keys.TRAIN_SAMPLES, int(train_images), time_ms=at())
    log.event(keys.EVAL_SAMPLES, int(val_images), time_ms=at())
    now += startup_s(wall)
    log.end(keys.INIT_STOP, time_ms=at())
    log.start(keys.RUN_START, time_ms=at())
    accuracy = 0.0
    for _, passes in epochs.sort_values("epoch", kind="stable").groupby("epoch"):
        epoch = {"epoch_num": int(passes.epoch.iloc[0]) + 1}  # MLPerf counts from 1
        for _, one in passes[passes.phase == "train"].iterrows():
            log.start(keys.EPOCH_START, metadata=epoch, time_ms=at())
            now += one.seconds
            log.end(keys.EPOCH_STOP, metadata=epoch, time_ms=at())
        for _, one in passes[passes.phase == "val"].iterrows():
            log.start(keys.EVAL_START, metadata=epoch, time_ms=at())
            now += one.seconds
            accuracy = one.acc1 / 100
            log.event(keys.EVAL_ACCURACY, accuracy, metadata=epoch, time_ms=at())
            log.end(keys.EVAL_STOP, metadata=epoch, time_ms=at())
    parts = dict(zip(wall.part, wall.seconds, strict=True))
    now = max(now, began + sum(seconds for part, seconds in parts.items() if part not in AFTER_TRAINING))
    status = keys.SUCCESS if accuracy >= options.target_accuracy else keys.ABORTED
    log.end(keys.RUN_STOP, metadata={"status": status, "epoch_num": int(epochs.epoch.max()) + 1}, time_ms=at())
    return "\n".join(lines.texts) + "\n"


def moment_s(row: pandas.Series) -> float:
    """started_at in seconds since 1970. Raises UserError where the row does not have it."""
    try:
        return datetime.datetime.fromisoformat(row.started_at).timestamp()
    except ValueError:
        raise UserError(
            f"{row.run_id} has started_at {row.started_at!r}, which is no moment; choose another run"
        ) from None


def identity_of_run(results: ResultSet, run_id: str) -> Identity:
    """The requested and the resolved settings of a run. Raises UserError where the set did not record it, and for a
    model that is not MLPerf's kind, a network that SGD trains."""
    (group,) = (group for group in results.groups if run_id in set(group.ok_runs.run_id))
    identity = group.identity
    if (
        not identity.recorded
        or not {"seed", "lr"} <= identity.requested.keys()
        or "num_shards" not in identity.resolved
    ):
        raise UserError(f"{results.path} does not tell with which settings {run_id} ran; log a run of a newer set")
    arch = str(identity.requested.get("arch"))
    if (optimizer := architecture_of(arch).optimizer) != "SGD":
        raise UserError(
            f"{run_id} trained {arch} with {optimizer}, and MLPerf's resnet benchmark is of SGD; log a run of a ResNet"
        )
    return identity


def hyper_parameters(requested: dict, resolved: dict) -> dict[str, object]:
    """What MLPerf's resnet benchmark logs of a training with SGD, by its keys, and the rest by our names.

    requested, resolved: the settings of the run, as benchmarks.common.config.settings has them.
    """
    from mlperf_logging.mllog import constants as keys

    batch = resolved.get("global_batch", requested["global_batch"])  # resolved where images a device were requested
    together = -(-batch // (resolved["num_shards"] * resolved["num_microbatches"]))
    return {
        keys.SEED: requested["seed"],
        keys.GLOBAL_BATCH_SIZE: batch,
        keys.GRADIENT_ACCUMULATION_STEPS: 1,
        keys.MODEL_BN_SPAN: None if requested["norm"] == "group" else together,
        keys.OPT_NAME: keys.SGD,
        "sgd_opt_base_learning_rate": requested["lr"] * batch / requested["lr_batch"],
        "opt_learning_rate_warmup_epochs": requested["lr_warmup_epochs"],
        "opt_learning_rate_schedule": requested["lr_schedule"],
        "sgd_opt_momentum": requested["momentum"],
        "sgd_opt_weight_decay": requested["weight_decay"],
        "arch": requested["arch"],
        "image_size": requested["image_size"],
        "precision": resolved.get("precision", requested["precision"]),
        "strategy": requested["strategy"],
        "commit": resolved.get("commit"),
    }


def main(options: MlperfOptions) -> int:
    if not options.output:
        refuse_foreign_set(options.results)
    results = load_set(options.results)
    runs, epochs, wall = (results.table(name) for name in ("runs", "epochs", "wall"))
    epochs = epochs.dropna(subset=["epoch", "seconds", "images"])
    row = pick_run(runs, epochs, options.run_id)
    if row is None:
        print(f"error: no ok run in {options.results} was evaluated; run one with real images", file=sys.stderr)
        return 1
    identity = identity_of_run(results, row.run_id)
    of_run = (epochs[epochs.run_id == row.run_id], wall[wall.run_id == row.run_id])
    try:
        text = log_text(options, row, identity, *of_run)
    except (ArithmeticError, KeyError, TypeError, ValueError) as error:  # somebody else's set may say anything
        raise UserError(
            f"{results.path}: the settings or the times of {row.run_id} are not as a run writes them ({error!r}); "
            "choose another --run-id"
        ) from None
    path = options.output or options.results / "mlperf.log"
    write_output(path, text)
    print(f"{printable(row.run_id)} is in {path}; check it with:")
    words = [sys.executable, *"-m mlperf_logging.compliance_checker --usage training --ruleset 4.0.0".split(), path]
    print(" ", *map(shell_word, words))
    return 0
