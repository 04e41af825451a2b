"""The schema of a result set: each table's columns, in their order, and what each means. Units are in the names.

    from benchmarks.common.store.columns import TABLES

A meaning stands here alone. `./bench readme` writes the tables of results/README.md from it, and adjacent columns with
the same meaning share a row there. Needs nothing.
"""

RUN = "the run"
SHOWN = "settings, as they were requested"
DEVICES = "where it ran"
INTERVAL = "the 95 % interval of `images_per_s` over this run's own windows"
ACCOUNTED = "means over the accounted steps; see [how a step is taken apart](../benchmarks/README.md)"
LAST_EPOCH = "of the last epoch"
OF_EPOCH = "means over its images"
PHASE_MS = "milliseconds of this phase in an accounted step; the phases sum to `step_ms`"
TRAINED = "the settings that were timed"

MEANINGS: dict[str, dict[str, str]] = {
    "runs": {
        "schema": "the version of these columns",
        "run_id": "the run, and its folder in `logs/`",
        "settings": "the hash of its settings, a row of `settings.csv`",
        "strategy": "the strategy",
        "status": (
            "`ok`, `failed`, `timeout`, `interrupted`, `skipped`, `invalid` (no finite loss), or `warm-up` "
            "(round 0, which counts nowhere)"
        ),
        "reason": "why it is not ok: the first cause, or the remedy",
        "exit_code": "of the launch command",
        "repeat": "its round",
        "position": "its place in the order of the round; empty for a run that was started by hand",
        "started_at": "when it started, UTC",
        "wall_s": "seconds from the start of the launch command to its end",
        "config": SHOWN,
        "arch": SHOWN,
        "image_size": SHOWN,
        "global_batch": SHOWN,
        "batch_per_device": SHOWN,
        "precision": SHOWN,
        "memory_format": SHOWN,
        "loader": SHOWN,
        "decoder": "the library that read its JPEGs; its version is `decoder_version` in `settings.csv`",
        "device": DEVICES,
        "device_name": DEVICES,
        "world_size": (
            "devices: ranks times the devices of each, so that two ranks of `hybrid_parallel` on four GPUs are 4. On a "
            "CPU a rank counts as one device"
        ),
        "nodes": DEVICES,
        "backend": DEVICES,
        "threads_per_rank": DEVICES,
        "oversubscribed": "yes: more ranks than cores",
        "parallel": "no: it had nothing to divide the work over, such as DataParallel on a CPU; charts hatch it",
        "torch": "version",
        "commit": "the suite's commit",
        "dirty": "yes: files differed from that commit",
        "images_per_s": "images over seconds, of all timed windows",
        "images_per_s_ci_low": INTERVAL,
        "images_per_s_ci_high": INTERVAL,
        "step_ms_p50": "the median step of the windows",
        "step_ms_p95": "the 95th percentile of these steps",
        "exposed_comm_ms": ACCOUNTED,
        "comm_ms": ACCOUNTED,
        "overlap_pct": ACCOUNTED,
        "epoch_s": ("seconds of the last training pass, with the loader's start; empty where another process began it"),
        "train_loss": LAST_EPOCH,
        "val_loss": LAST_EPOCH,
        "acc1": "top-1 of the last epoch, %",
        "acc5": "top-5 of the last epoch, %",
        "val_samples": "images that were evaluated; each counts once",
        "compile_s": "seconds of compiling before the first step; empty where nothing is compiled",
        "cudagraph_skips": "with `--cuda-graphs`: compiled graphs that are not replayed as CUDA graphs (torch's count)",
        "peak_memory_mb": (
            "10^6 bytes of the rank that used most: on its GPUs, from the first window on; on CPUs its resident memory"
        ),
        "energy_j_per_image": "what the run's devices drew in the windows; empty where a device tells no power",
        "flops_per_image": "of training on one image; a multiply-add counts as 2",
        "skipped_files": "images that were replaced under `--skip-bad-files`",
        "num_by_pillow": "images that the decoder left to Pillow, each time one was read",
        "load_average": "the load average of one minute, just before",
        "governor": "the CPU frequency governor",
        "steal_pct": (
            "share of the cores' time that the hypervisor gave to other guests. If it is large, use cores of your own"
        ),
        "other_cpu_pct": (
            "share of the cores' time that other programs used. If it is large, close them. Empty where ranks are no "
            "children of the suite, as under Slurm"
        ),
        "other_gpu_processes": "the most processes of others on one of its GPUs at a time",
        "options": "the flags that were typed after `--`, or in `ARGS`",
        "log_path": "its log, in the set",
    },
    "settings": {
        "settings": "the hash of both halves",
        "asked_hash": "the hash of the requested half",
        "asked": "the requested half, JSON",
        "met": "the resolved half, JSON; empty where the run resolved nothing",
    },
    "windows": {
        "run_id": RUN,
        "window": "its number",
        "images": "images",
        "seconds": "seconds",
        "images_per_s": "their ratio",
    },
    "epochs": {
        "run_id": RUN,
        "epoch": "from 0 on",
        "phase": "train or val",
        "seconds": "seconds",
        "images": "images",
        "loss": OF_EPOCH,
        "acc1": OF_EPOCH,
        "acc5": OF_EPOCH,
    },
    "steps": {
        "run_id": RUN,
        "rank": "rank",
        "step": "its number",
        "step_ms": "milliseconds",
        "data_ms": PHASE_MS,
        "copy_ms": PHASE_MS,
        "forward_ms": PHASE_MS,
        "backward_ms": PHASE_MS,
        "optimizer_ms": PHASE_MS,
        "other_ms": PHASE_MS,
        "exposed_comm_ms": "its time less that of a step without the gradient exchange",
        "wait_ms": PHASE_MS,
    },
    "wall": {"run_id": RUN, "part": "such as imports or evaluation", "seconds": "seconds"},
    "telemetry": {
        "run_id": RUN,
        "t_s": "seconds since the start",
        "device": "cpu, or gpu and its number",
        "util_pct": "utilization, %",
        "memory_used_mb": "10^6 bytes",
        "power_w": "watts",
        "temperature_c": "degrees Celsius",
        "network_mb_per_s": "10^6 bytes/s of all network interfaces but loopback",
        "throttle": "why the GPU held its clocks down: thermal or power",
        "clock_mhz": "MHz",
        "other_processes": "processes of others on this GPU",
    },
    "loader": {
        "run_id": "the launch",
        "what": "the loader alone, training alone, or both",
        "images_per_s": "throughput",
        "images_per_s_per_core": "throughput",
        "num_windows": "windows of this kind",
        "images": "images",
        "seconds": "seconds",
        "arch": TRAINED,
        "image_size": TRAINED,
        "global_batch": TRAINED,
        "workers": TRAINED,
        "verdict": "whether loading limits training",
        "window": "its number",
    },
    "equivalence": {
        "run_id": "the proof's run, in `verify/`",
        "strategy": "the strategy",
        "started_at": "when, UTC",
        "steps": "optimizer steps",
        "world_size": "devices",
        "max_relative_difference": "the largest relative difference of a tensor",
        "bit_identical": "yes or no",
        "tolerance": "what the difference may be",
        "verdict": "ok, failed, not proved or skipped",
        "reason": "why it is not ok",
        "asked": "the proof's settings, JSON",
        "met": "the proof's settings, JSON",
        "rounding": "the measured rounding",
    },
}
"""What each column of each table `<name>.csv` means, as Markdown."""
TABLES = {name: tuple(meanings) for name, meanings in MEANINGS.items()}
"""The columns of each table, in their order."""
ROWS = {
    "runs": "an attempt, whatever became of it",
    "settings": "the settings of one or more runs",
    "windows": "a timed window",
    "epochs": "a pass over train or val",
    "steps": "a timed step, or an accounted one with its phases",
    "wall": "a part of a run's wall-clock time; the parts sum to `wall_s`",
    "telemetry": "a sample of one device, twice a second",
    "loader": "a window of `./bench study loader-limit`",
    "equivalence": "what `make verify` found of a strategy; the last row counts",
}
"""What a row of each table is."""
TEXT_COLUMNS = frozenset(
    "run_id settings asked_hash asked met strategy status reason started_at config arch precision memory_format loader "
    "decoder device device_name backend oversubscribed parallel torch commit dirty governor options log_path phase "
    "part throttle bit_identical verdict what".split()
)
