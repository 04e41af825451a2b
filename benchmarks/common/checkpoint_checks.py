"""Which checkpoints a run may load: those of the same training."""

from pathlib import Path
from typing import Any

from benchmarks.common.config import FIELDS, Config
from benchmarks.common.settings import IMAGE_FIELDS, NOT_COMPARED
from benchmarks.common.run_folder import RunFolder
from benchmarks.common.errors import UserError

# Fields, besides NOT_COMPARED, that may change when a training is resumed. Every other field must be as it was.
MAY_DIFFER = {
    "epochs": "a longer or a shorter training",
    "global_batch": "compared by `fields_that_must_agree`",
    "batch_per_device": "the global batch that follows from it is compared",
    **dict.fromkeys(("warmup_steps", "windows", "window_steps", "account_steps"), "what is timed"),
    **dict.fromkeys(("workers", "prefetch"), "who reads the images, and when"),
    "label": "a name",
    "skip_bad_files": "what happens at a file that cannot be read",
    # One strategy can resume another's checkpoint, so options of a single strategy may change too.
    **dict.fromkeys(("bucket_cap_mb", "static_graph", "gradient_as_bucket_view"), "of DDP"),
    **dict.fromkeys(("comm_hook", "powersgd_rank", "shard_ranks", "local_period", "local_group"), "of one strategy"),
    **dict.fromkeys(("compression", "opt_level", "cut", "split_size", "copy_stream"), "of one strategy"),
    **dict.fromkeys(("microbatches", "pipeline_schedule"), "of one strategy"),
}


def fields_that_must_agree(config: Config, num_classes: int) -> dict[str, Any]:
    """What must agree between a checkpoint and the run that resumes it, whatever --resume-anyway says."""
    return {
        "arch": config.arch,
        "norm": config.norm,
        "num_classes": num_classes,
        "global_batch": config.global_batch,
        "seed": config.seed,
    }


def trained_with(config: Config) -> dict[str, Any]:
    """The settings that must not change when a training is resumed.

    The fingerprint of the images is '' for synthetic images, and in a run that no launcher started.
    """
    folder, images = RunFolder.current(), dict.fromkeys(IMAGE_FIELDS, "")
    if folder:
        images = {name: folder.settings()["asked"].get(name, "") for name in IMAGE_FIELDS}
    fields = {name: value for name, value in vars(config).items() if name not in MAY_DIFFER | NOT_COMPARED}
    return fields | images


def compare_settings(path: Path, saved: dict[str, Any], config: Config) -> str:
    """The settings that have changed since the checkpoint, in words; '' where none has.

    Raises UserError where one has changed, unless --resume-anyway says to go on with the new ones.
    """
    defaults = {name: field.default for name, field in FIELDS.items()}  # of fields that are newer than the checkpoint
    before, now = defaults | saved["settings"], trained_with(config)
    names = [name for name in now if name not in IMAGE_FIELDS or (before.get(name) not in ("", None) and now[name])]
    changed = [f"{name} {now[name]}, not {before.get(name)}" for name in names if before.get(name) != now[name]]
    if changed and not config.resume_anyway:
        raise UserError(
            f"{path} is of a training with other settings (this run has {'; '.join(changed)}); set these as they were, "
            "or add --resume-anyway to go on with the new ones"
        )
    return "; ".join(changed)
