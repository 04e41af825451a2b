"""The columns of a result set's tables, in the order of the CSV files."""

import dataclasses
from typing import Literal


@dataclasses.dataclass(frozen=True)
class Column:
    name: str
    """With its unit; counts, places and ratios have none."""
    kind: Literal["text", "number"]
    """A number is float64, and NaN where the cell is empty."""
    meaning: str
    """For people, without a full stop."""
    requested: bool = False
    """A setting that was asked for."""


RUNS = (
    Column("schema", "number", "the version of these columns"),
    Column("run_id", "text", "the run's name, and that of its folder in `logs/`"),
    Column("settings", "text", "the short hash of its settings, a key of `settings.csv`"),
    Column("strategy", "text", "the script in `benchmarks/` that ran"),
    Column(
        "status",
        "text",
        "`ok`, `failed`, `timeout`, `interrupted`, `skipped`, `invalid` (a loss that is no number, or another run than "
        "was asked for), or `warm-up` (round 0, which counts nowhere)",
    ),
    Column("reason", "text", "why it is not ok: the first cause of the failure, or what to do"),
    Column("exit_code", "number", "of the launch command"),
    Column("repeat", "number", "the number of its round; 0: it warmed the machine"),
    Column("position", "number", "its place in the order of the round; empty for runs started by hand"),
    Column("started_at", "text", "the time of the start, in UTC (ISO 8601)"),
    Column("wall_s", "number", "seconds from the start of the launch command to its end"),
    Column("config", "text", "the YAML file of its configuration", requested=True),
    Column("arch", "text", "the model", requested=True),
    Column("image_size", "number", "pixels along each side of a training image", requested=True),
    Column("global_batch", "number", "images of a step over all devices", requested=True),
    Column("batch_per_device", "number", "images of a step on each device, where these were requested", requested=True),
    Column("precision", "text", "the arithmetic of convolutions and products, with `auto` resolved", requested=True),
    Column("memory_format", "text", "the layout of images and weights, with `auto` resolved", requested=True),
    Column("loader", "text", "where images come from", requested=True),
    Column("decoder", "text", "the library that read its JPEGs; its version is `decoder_version` in `settings.csv`"),
    Column("device", "text", "`cpu` or `cuda`"),
    Column("device_name", "text", "the model of the processor, or of the GPU"),
    Column("world_size", "number", "devices: ranks times the devices of each; on a CPU a rank stands for a device"),
    Column("nodes", "number", "machines that it ran on"),
    Column("backend", "text", "what carries collectives, such as `gloo` or `nccl`"),
    Column("threads_per_rank", "number", "threads that torch computes with in each rank"),
    Column("oversubscribed", "text", "yes: more ranks than cores"),
    Column("parallel", "text", "no: it had only one device, as DataParallel on a CPU has; charts hatch it"),
    Column("torch", "text", "torch's version"),
    Column("commit", "text", "the commit of the code"),
    Column("dirty", "text", "yes: files differed from the commit"),
    Column("images_per_s", "number", "images over seconds, of all timed windows"),
    Column("step_ms_p50", "number", "the median of the steps in the windows"),
    Column("step_ms_p95", "number", "the 95th percentile of the same"),
    Column(
        "exposed_comm_ms",
        "number",
        "mean of the accounted steps: forward and backward with the gradient exchange, minus those of a step on "
        "another batch without it",
    ),
    Column(
        "epoch_s",
        "number",
        "the last training pass, with the wait for the loader to start; empty where another process began it",
    ),
    Column("train_loss", "number", "of the last epoch"),
    Column("val_loss", "number", "of the last epoch"),
    Column("acc1", "number", "top-1 accuracy of the last epoch, in percent"),
    Column("acc5", "number", "top-5 accuracy of the last epoch, in percent"),
    Column("val_samples", "number", "images of the last evaluation; every image counts once"),
    Column("compile_s", "number", "seconds of the first step, which compiles; empty where nothing is compiled"),
    Column(
        "cudagraph_skips",
        "number",
        "with `--cuda-graphs`: compiled graphs that are not replayed as CUDA graphs (torch's count)",
    ),
    Column(
        "peak_memory_mb",
        "number",
        "the most memory of the device that used most, in 10^6 bytes: on a GPU what torch had allocated in training, "
        "from the first window on; on a CPU the process's resident memory since its start, without loader workers",
    ),
    Column(
        "energy_j_per_image",
        "number",
        "what the run's own devices drew in the windows; empty where one reports no power",
    ),
    Column("flops_per_image", "number", "of training on one image; a multiply-add counts as 2"),
    Column("load_average", "number", "of the machine just before the start"),
    Column("governor", "text", "the CPU frequency governor just before the start"),
    Column(
        "steal_pct",
        "number",
        "the share of the cores' time that the hypervisor gave to other guests; a report warns from 1 on: use "
        "a machine with cores of its own",
    ),
    Column(
        "other_cpu_pct",
        "number",
        "the share of the cores' time that other programs used; if it is large, close them. Empty where ranks are no "
        "children of the suite, as under Slurm",
    ),
    Column("other_gpu_processes", "number", "the most processes of others on one of its GPUs at a time"),
    Column("options", "text", "`ARGS`: the flags that were typed"),
    Column("log_path", "text", "its log, in the set"),
)
RUN_ID = Column("run_id", "text", "the run, a row of `runs.csv`")
REQUESTED_JSON = Column("asked", "text", "the requested half, as JSON")
RESOLVED_JSON = Column("met", "text", "the resolved half, as JSON; may be empty")
COLUMNS: dict[str, tuple[Column, ...]] = {
    "runs": RUNS,
    "settings": (
        Column("settings", "text", "the short hash of both halves"),
        Column("asked_hash", "text", "the short hash of the requested half"),
        REQUESTED_JSON,
        RESOLVED_JSON,
    ),
    "windows": (
        RUN_ID,
        Column("window", "number", "its number, from 0 on"),
        Column("images", "number", "images of its steps, over all devices"),
        Column("seconds", "number", "from a synchronise before the first step to one after the last"),
        Column("images_per_s", "number", "images over seconds"),
    ),
    "epochs": (
        RUN_ID,
        Column("epoch", "number", "its number, from 0 on"),
        Column("phase", "text", "`train` or `val`"),
        Column("seconds", "number", "of the pass; empty where another process began it"),
        Column("images", "number", "images of the pass, over all devices"),
        Column("loss", "number", "mean over the images"),
        Column("acc1", "number", "top-1 accuracy, in percent"),
        Column("acc5", "number", "top-5 accuracy, in percent"),
    ),
    # steps of the timed windows have step_ms alone; the phases are of the accounted steps after them
    "steps": (
        RUN_ID,
        Column("rank", "number", "whose step it is"),
        Column("step", "number", "its number in the run, from 0 on"),
        Column("step_ms", "number", "the whole step"),
        Column("data_ms", "number", "waiting for the loader"),
        Column("copy_ms", "number", "copying the batch to the device"),
        Column("forward_ms", "number", "the forward pass, without exposed communication"),
        Column("backward_ms", "number", "the backward pass, without exposed communication"),
        Column("optimizer_ms", "number", "the optimizer's update"),
        Column("other_ms", "number", "the rest of the step"),
        Column(
            "exposed_comm_ms",
            "number",
            "forward and backward with the gradient exchange, minus those of a step on another batch without it",
        ),
        Column("wait_ms", "number", "of a pipeline: the bubble, and messages"),
    ),
    "telemetry": (
        RUN_ID,
        Column("t_s", "number", "seconds since the start of the run"),
        Column("device", "text", "`cpu`, or a GPU such as `gpu0`"),
        Column("util_pct", "number", "utilisation; of the CPU: of all cores"),
        Column("memory_used_mb", "number", "10^6 bytes in use on the device, by all programs"),
        Column("power_w", "number", "power"),
        Column("temperature_c", "number", "temperature"),
        Column("throttle", "text", "why a GPU held its clocks down: `thermal` or `power`"),
        Column("clock_mhz", "number", "the clock of a GPU's multiprocessors"),
        Column("other_processes", "number", "processes of others on the GPU"),
    ),
    # results of `./bench verify` for the runs in the set's verify/
    "equivalence": (
        RUN_ID,
        Column("strategy", "text", "what was proved"),
        Column("started_at", "text", "the time of the start, in UTC (ISO 8601)"),
        Column("steps", "number", "optimizer steps of the proof"),
        Column("world_size", "number", "devices, as in `runs.csv`"),
        Column(
            "max_relative_difference", "number", "the relative difference that is largest relative to its own tolerance"
        ),
        Column("bit_identical", "text", "yes: every bit of the weights agrees"),
        Column("tolerance", "number", "the largest that this difference may be"),
        Column("verdict", "text", "`ok`, `failed`, `not proved` or `skipped`"),
        Column("reason", "text", "why it is not ok"),
        REQUESTED_JSON,
        RESOLVED_JSON,
        Column("rounding", "number", "how far rounding alone moves the weights, measured"),
    ),
}
TABLES = {table: tuple(column.name for column in columns) for table, columns in COLUMNS.items()}
TEXT_COLUMNS = frozenset(column.name for columns in COLUMNS.values() for column in columns if column.kind == "text")
REQUESTED_COLUMNS = tuple(column.name for column in RUNS if column.requested)
