"""Every command of ./bench. Standard library only: --help prints this table before anything is installed."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Command:
    words: str
    """What a person types after ./bench."""
    summary: str
    example: str
    options: str
    """`module.Class` below scripts."""
    action: str
    """`module.function` below scripts, which gets the options, with `flags` what follows `--`, and with --json a dict
    for the result."""
    flags: str = ""
    """What may follow `--`."""
    heading: str = ""
    """Of the section that begins with it."""


FLAGS_HELP = "configuration fields, such as --global-batch 64; `./bench flags` lists all"
COMMANDS = [
    Command(
        "run",
        "time strategies in rounds, then draw the charts",
        "run single ddp --repeats 5 --until 5% -- --global-batch 64",
        "cli.options.BenchRunOptions",
        "cli.actions.run_strategies",
        FLAGS_HELP,
        heading="time training",
    ),
    Command(
        "slurm",
        "the same as one Slurm job, all strategies in turn on the same nodes",
        "slurm --nodes 2 --tasks-per-node 8 --gpus-per-node 8 --partition gpu --time-min 240",
        "cli.options.SlurmOptions",
        "runner.slurm.main",
        FLAGS_HELP,
    ),
    Command(
        "ab",
        "is B faster than A? two commits, options or interpreters, in one session",
        "ab HEAD~1 tree: --strategy ddp --fail-over 5%",
        "studies.options.AbOptions",
        "studies.ab.ab.main",
        FLAGS_HELP,
    ),
    Command(
        "plot",
        "draw the charts of a result set, and print its table and the answer",
        "plot --results results/x",
        "results.options.PlotOptions",
        "charts.plot.main",
        heading="read result sets",
    ),
    Command(
        "why",
        "what limits each strategy, and the one option to try next",
        "why results/x",
        "results.options.WhyOptions",
        "results.why.main",
    ),
    Command(
        "report",
        "write report.html, report.md and table.tex of a result set",
        "report --results results/x",
        "results.options.ReportOptions",
        "report.page.main",
    ),
    Command(
        "compare",
        "is set B faster, or cheaper, than set A? without B: the strategies within A",
        "compare results/a100 results/h100 --price a100=8 --price h100=20 --fail-over 5%",
        "studies.options.CompareOptions",
        "studies.compare.main",
    ),
    Command(
        "verify",
        "test that strategies compute the same update as one plain process",
        "verify ddp fsdp --results results/x",
        "verify.options.VerifyOptions",
        "verify.verify.main",
        FLAGS_HELP,
        heading="check",
    ),
    Command(
        "forecast-memory",
        "memory that each strategy needs on a GPU",
        "forecast-memory --memory-gb 16.9 --num-devices 4 -- --config configs/v100x4.yaml",
        "memory.options.MemoryOptions",
        "memory.memory_check.main",
        FLAGS_HELP,
    ),
    Command(
        "study sweep",
        "one option with several values, numbers of ranks, or each option by itself",
        "study sweep --strategy ddp --key bucket_cap_mb --values 1 5 25 100",
        "studies.options.SweepOptions",
        "studies.sweep.plan.main",
        FLAGS_HELP,
        heading="study",
    ),
    Command(
        "study loaders",
        "images/s of each loader beside torchvision's, and whether loading limits training",
        "study loaders --data /path/to/images --strategy ddp",
        "studies.options.LoadersOptions",
        "studies.loaders.measure.main",
        FLAGS_HELP,
    ),
    Command(
        "study allreduce",
        "bandwidth of all-reduces of 1 KB to 256 MB between the ranks of this machine",
        "study allreduce --nproc 2 --rounds 10",
        "studies.options.AllreduceOptions",
        "studies.allreduce.measure.main",
    ),
    Command(
        "study profile",
        "MFU, the top kernels of a step, each kind of layer beside its roof, and traces",
        "study profile --strategy ddp --trace results/trace -- --global-batch 64",
        "studies.options.ProfileOptions",
        "studies.profile.profile_step.profile_on_ranks",
        FLAGS_HELP,
    ),
    Command(
        "study overhead",
        "the suite's ddp beside examples/ddp.py, launched in turn",
        "study overhead --pairs 10",
        "studies.options.OverheadOptions",
        "studies.overhead.main",
    ),
    Command(
        "data make",
        "make imagenet-mini, the small data set",
        "data make",
        "data.options.MakeDatasetOptions",
        "data.mini.main",
        heading="prepare images",
    ),
    Command(
        "data check",
        "count the classes and files of a folder of images",
        "data check --data /path/to/imagenet",
        "data.options.CheckDataOptions",
        "data.check.main",
    ),
    Command(
        "data import",
        "ImageNet from Parquet, WebDataset, ILSVRC2012's tars or a flat val folder",
        "data import /path/to/downloads /path/to/imagenet",
        "data.options.ImportOptions",
        "data.import_images.main",
    ),
    Command(
        "data pack",
        "write the images as one mapped file a split",
        "data pack --data /path/to/imagenet --pack full",
        "data.options.PackOptions",
        "data.pack.main",
    ),
    Command(
        "publish",
        "copy a result set into results/published, without private names",
        "publish --name h100_torch2.15_202612",
        "results.options.PublishOptions",
        "publish.publish.main",
        heading="publish and export",
    ),
    Command(
        "export",
        "a result set as JSON, with intervals",
        "export results/x",
        "results.options.ExportOptions",
        "report.export.main",
    ),
    Command(
        "flags",
        "every configuration field and its flag",
        "flags",
        "shared.option_types.NoOptions",
        "cli.actions.list_flags",
        heading="other",
    ),
    Command(
        "setup",
        "install everything into .venv, as the other commands do by themselves",
        "setup",
        "shared.option_types.NoOptions",
        "cli.actions.nothing",
    ),
]
BY_WORDS = {command.words: command for command in COMMANDS}
ABOUT = """\
./bench COMMAND --help has its options and an example. First: ./bench run --plan, then ./bench run.
What follows -- are configuration fields, such as --global-batch 64; ./bench flags lists all.
exit codes: 0 done, or yes; 1 a run or a check failed, or slower; 2 wrong use; 3 undecided;
  4 of ab: a run failed; 128 + the signal, such as 130 after Ctrl-C
environment: PYTHON (interpreter), SETUP=no (install nothing), DEVICE=cpu; docs/several-machines.md"""


def find_command(words: list[str]) -> tuple[Command | None, list[str]]:
    """(the command that the first words name, the words after it); None where there is none."""
    for length in (2, 1):
        command = BY_WORDS.get(" ".join(words[:length]))
        if command is not None and len(words) >= length:
            return command, words[length:]
    return None, words


def overview() -> str:
    width = max(len(command.words) for command in COMMANDS)
    lines = ["usage: ./bench COMMAND [OPTION ...] [-- FLAG ...]"]
    for command in COMMANDS:
        lines += [f"{command.heading}:"] if command.heading else []
        lines.append(f"  {command.words:<{width}}  {command.summary}")
    return "\n".join([*lines, ABOUT])
