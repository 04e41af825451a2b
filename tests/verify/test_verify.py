"""`make verify` passes the suite as it is, and fails on each fault that it is there to find.

A fault is planted in a copy of the suite, by replacing text that must be there, and verify runs as a user's would:
real launchers, real ranks.

    .venv/bin/python -m pytest tests/verify/test_verify.py
"""

import dataclasses
import itertools
import json
import os
import shlex
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from support import ROOT, asked, run_strategy, start_bench

from benchmarks.common.config import NOT_COMPARED, Config
from benchmarks.common.errors import UserError
from benchmarks.common.machine import host
from benchmarks.common.rank import Rank, prepare
from benchmarks.common.rows import append_rows, read_table
from benchmarks.common.run_folder import RunFolder
from benchmarks.common.strategy import STORED_FIELDS, Layout
from scripts.results.settings import add_settings, drop_not_compared
from scripts.runner import plan
from scripts.verify import cases
from scripts.verify.comparison import equivalence_columns, wrong_evaluation
from scripts.verify.differences import compare_bits, compare_with_outcomes, largest_difference
from scripts.verify.reference import (
    MOMENTUM,
    SavedState,
    Training,
    average_in_float64,
    count_top,
    train_reference,
)
from scripts.verify.trained_states import NOT_READ
from scripts.verify.verify import VerifyOptions, command, main, num_evaluated_parts, prove

# The run's length and what of it is timed; threads.
MAY_DIFFER = set("epochs steps warmup_steps windows window_steps account_steps threads_per_rank".split())

DDP_WRAP = "    optimizer = build_optimizer(config, model)\n"
SUM_HOOK = """
    def summed(_, bucket):
        return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(lambda done: done.value()[0])
    ddp.register_comm_hook(None, summed)
"""
EARLY_HOOK = """
    import torch
    def early(_, bucket):
        ready = torch.futures.Future()
        ready.set_result(bucket.buffer().clone())  # the step goes on with this while the sum is under way
        dist.all_reduce(bucket.buffer(), async_op=True)
        return ready
    ddp.register_comm_hook(None, early)
"""
STAGES, REFERENCE = "benchmarks/common/stages.py", "scripts/verify/reference.py"
CROPS, CHECKPOINT = "benchmarks/common/images.py", "benchmarks/common/checkpoint.py"
LOCAL = "benchmarks/local_sgd.py"
ENGINE, MODEL = "benchmarks/common/engine.py", "benchmarks/common/model.py"
SPLITS = "--global-batch 20 --split-size 8"  # 8, 8 and 4 images
FAULTS = {
    "no all-reduce": ("ddp", "benchmarks/ddp.py", "output = ddp(images)", "output = model(images)"),
    "summed, not averaged": ("ddp", "benchmarks/ddp.py", DDP_WRAP, DDP_WRAP + SUM_HOOK),
    "all ranks on one shard": (
        "ddp",
        "benchmarks/common/loader.py",
        "own_shard = rank.rank, rank.world_size",
        "own_shard = 0, rank.world_size",
    ),
    "no set_epoch": ("ddp", ENGINE, "train.set_epoch(epoch, first_step)", "pass"),
    "step before the reduction": ("ddp", "benchmarks/ddp.py", DDP_WRAP, DDP_WRAP + EARLY_HOOK),
    "hidden step of broadcast_optimizer_state": (
        "horovod_ddp",
        "benchmarks/horovod_ddp.py",
        "    def step(images: torch.Tensor",
        "    hvd.broadcast_optimizer_state(optimizer, root_rank=0)\n    def step(images: torch.Tensor",
    ),
    "no splits": ("model_parallel", STAGES, "images.split(self.split_size or len(images))", "[images]"),
    "a reference without splits": (
        "model_parallel",
        REFERENCE,
        "part_pixels.split(layout.split_size or len(part_pixels))",
        "[part_pixels]",
    ),
    "no compression": (
        "horovod_ddp",
        "benchmarks/horovod_ddp.py",
        "getattr(hvd.Compression, config.compression)",
        "hvd.Compression.none",
    ),
    "momentum averaged too": (
        "local_sgd",
        LOCAL,
        "            average_into(model)\n",
        "            average_into(model)\n            for each in optimizer.state.values():\n"
        "                all_reduce_sum(each['momentum_buffer']).div_(rank.world_size)\n",
    ),
    "the average one step late": (
        "local_sgd",
        LOCAL,
        "if num_steps % config.local_period == 0:",
        "if num_steps > 1 and num_steps % config.local_period == 1:",
    ),
    "a reference without a period": ("local_sgd", REFERENCE, "(at + 1) % layout.period == 0", "True"),
}
# What two ranks would show to the last bit, and three, or fp16, must show beside rounding: text in a file, and another.
OPTIMIZER = "    return optimizer_class(model.parameters(), **options)\n"
HOOKED = "    for parameter in model.parameters():\n        parameter.register_hook(lambda g: {})\n" + OPTIMIZER
OF_RANK_0 = "g * 3.0 * (__import__('os').environ.get('HOROVOD_RANK', __import__('os').environ.get('RANK')) == '0')"
ADVANCE = "self.advance(batches, learning_rate(config, epoch + n / train.num_steps))"
MISTAKES = {
    "no weight decay": (MODEL, '"weight_decay": config.weight_decay', '"weight_decay": 0.0'),
    "no last step": (
        ENGINE,
        ADVANCE,
        f"self.losses.append(torch.zeros(())) if (epoch, n) == (config.epochs - 1, train.num_steps - 1) else {ADVANCE}",
    ),
    "one layer out of the optimizer": (
        MODEL,
        OPTIMIZER,
        OPTIMIZER.replace(
            "model.parameters()", "[p for name, p in model.named_parameters() if name != 'layer2.0.conv1.weight']"
        ),
    ),
    "gradients x 1.03": (MODEL, OPTIMIZER, HOOKED.format("g * 1.03")),
    "the smallest 1 % of each gradient zero": (
        MODEL,
        OPTIMIZER,
        HOOKED.format("g * (g.abs() > g.abs().flatten().kthvalue(g.numel() // 100).values) if g.numel() > 99 else g"),
    ),
    "convolutions' gradients of rank 0 only": (MODEL, OPTIMIZER, HOOKED.format(f"{OF_RANK_0} if g.dim() == 4 else g")),
}
# Of the rest of a run, found at two ranks.
ELSEWHERE = {
    "flips where there should be none": (
        CROPS,
        "flip=numbers[2 * CROP_TRIES + 2] < 0.5",
        "flip=numbers[2 * CROP_TRIES + 2] > 0.5",
    ),
    "evaluation as in training": (ENGINE, "        model.eval()\n", ""),
    "evaluation of flipped images": (ENGINE, "output = self.predict(images)", "output = self.predict(images.flip(3))"),
    "resumed without momentum": (CHECKPOINT, '        strategy.optimizer.load_state_dict(saved["optimizer"])\n', ""),
}
SAID = {
    "flips where there should be none": "not the reference's update",
    "evaluation as in training": "not the reference's update",  # its statistics are in the weights that are kept
    "evaluation of flipped images": "the evaluation's loss is",
    "resumed without momentum": "resumed after step 5: not the reference's update",
}
THREE_RANKS = "--global-batch 24 --image-size 48"
ARGS = {
    "no splits": SPLITS,
    "a reference without splits": SPLITS,
    "no compression": "--compression fp16",
}


def verify(checkout: Path, data: Path, results: Path, *flags: str, **variables):
    """./bench verify of a checkout: (exit code, its output, rows of equivalence.csv by strategy)."""
    variables = {"DATA": data, "RESULTS": results, "NPROC": 2} | variables
    keywords = {"capture_output": True, "text": True, "timeout": 600}
    done = start_bench(checkout, shlex.join(["verify", *flags]), subprocess.run, **variables, **keywords)
    print(done.stdout + done.stderr)  # pytest shows it if the test fails
    rows = {row["strategy"]: row for row in read_table(results, "equivalence").to_dict("records")}
    return done.returncode, done.stdout + done.stderr, rows


@pytest.mark.medium
@pytest.mark.parametrize("name", ["ddp", pytest.param("horovod_ddp", marks=pytest.mark.slow)])
def test_the_suite_as_it_is_agrees_to_the_last_bit(name, checkout, tiny_data, tiny_config, tmp_path):
    """Protects the proof from failing for no reason: without this, the faults below could be found by anything."""
    if name == "horovod_ddp" and not find_spec("horovod"):
        pytest.skip("needs Horovod: scripts/setup/horovod.sh")
    given = {"CONFIG": tiny_config, "STRATEGIES": f"{name} apex_ddp"}
    code, output, rows = verify(checkout, tiny_data, tmp_path / "a set", "--steps", "6", **given)
    row = rows[name]
    assert code == 0 and f"{name} " in output
    assert (row["verdict"], row["bit_identical"], row["max_relative_difference"]) == ("ok", "yes", 0)
    assert (row["steps"], row["tolerance"], row["world_size"]) == (6, 0, 2)
    assert rows["apex_ddp"]["verdict"] == "skipped" and "NVIDIA GPUs" in rows["apex_ddp"]["reason"]
    assert not list((tmp_path / "a set" / "verify").glob("weights-*"))  # 90 MB a strategy


ALL_WAYS = "single dataparallel ddp zero1 fsdp model_parallel pipeline_parallel hybrid_parallel local_sgd"
SOME_WAYS = "single pipeline_parallel"  # of a model with 86 million weights, whose checkpoints are 1 GB each


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arch", "strategies", "cut", "identical"),
    [
        ("convnext_tiny", ALL_WAYS, 9, "yes"),
        ("convnext_tiny", "pipeline_parallel", 16, "no"),  # behind the last exact cut
        ("vit_b_16", SOME_WAYS, 6, "yes"),
    ],
)
def test_models_that_adamw_trains_agree_to_the_last_bit(
    arch, strategies, cut, identical, checkout, tiny_data, tiny_config, tmp_path
):
    """Protects the second family of models: both moments, the number of steps, the way from stage to stage, and what
    each strategy saves and loads. The cut is fixed: whether a pipeline's sums have the whole model's order depends
    on it."""
    given = {"CONFIG": tiny_config, "STRATEGIES": strategies, "ARGS": f"--arch {arch} --cut {cut}"}
    code, _, rows = verify(checkout, tiny_data, tmp_path / "a set", "--steps", "4", **given)
    assert code == 0 and {(row["verdict"], row["bit_identical"]) for row in rows.values()} == {("ok", identical)}
    assert rows.keys() == {*strategies.split()}


ADAMW_MISTAKES = {
    "another beta": ("ddp", MODEL, "ADAM_BETA2 = 0.999", "ADAM_BETA2 = 0.99"),
    "no weight decay": ("ddp", *MISTAKES["no weight decay"]),
    "resumed without moments": ("ddp", *ELSEWHERE["resumed without momentum"]),
}


@pytest.mark.slow
@pytest.mark.parametrize("mistake", ADAMW_MISTAKES)
def test_mistakes_with_adamw_are_found(mistake, checkout, tiny_data, tiny_config, tmp_path):
    """Protects the teeth of the same proof."""
    strategy, *planted = ADAMW_MISTAKES[mistake]
    copy = planted_copy(checkout, tmp_path, *planted)
    given = {"CONFIG": tiny_config, "STRATEGIES": strategy, "ARGS": "--arch convnext_tiny"}
    code, output, _ = verify(copy, tiny_data, tmp_path / "a set", "--steps", "4", **given)
    assert code == 1 and "not the reference's update" in output


@pytest.mark.slow
def test_a_set_is_proved_at_its_own_settings_and_once(checkout, tiny_data, tiny_config, tmp_path):
    """Protects what the report says "yes" of: the split sizes that ran, each proved as it ran, and what is proved
    is not proved again."""
    results, where = tmp_path / "a set", {"CONFIG": tiny_config, "DATA": tiny_data}
    for args in (SPLITS, "--global-batch 20"):
        assert run_strategy("model_parallel", results, f"{args} --steps 4", **where)["status"] == "ok"
    code, _, _ = verify(checkout, tiny_data, results, "--steps", "6", "--missing")
    assert code == 0
    table = read_table(results, "equivalence")
    halves = [(json.loads(row.asked), json.loads(row.met)) for row in table.itertuples()]
    assert [asked["split_size"] for asked, _ in halves] == [8, 0]
    assert [(met["num_microbatches"], met["split_size"]) for _, met in halves] == [(3, 8), (1, 0)]
    assert (table.verdict == "ok").all() and (table.bit_identical == "yes").all()
    ran = RunFolder(results / "logs" / read_table(results, "runs").run_id[0]).requested()
    differing = {name for name in drop_not_compared(ran) if ran[name] != halves[0][0][name]}
    assert differing and differing <= MAY_DIFFER
    code, output, _ = verify(checkout, tiny_data, results, "--steps", "6", "--missing")
    assert (code, output) == (0, "") and len(read_table(results, "equivalence")) == 2


def planted_copy(checkout: Path, folder: Path, name: str, text: str, replacement: str) -> Path:
    copy = Path(shutil.copytree(checkout, folder / "faulty"))
    source = (copy / name).read_text()
    assert source.count(text) == 1, f"{name} no longer holds the text in which this test plants its fault"
    (copy / name).write_text(source.replace(text, replacement))
    return copy


def three_ranks(strategy: str) -> dict:
    """Variables of a proof in which rounding differs: of sums of three, and for Horovod in fp16."""
    if strategy == "horovod_ddp" and not find_spec("horovod"):
        pytest.skip("needs Horovod: scripts/setup/horovod.sh")
    compressed = " --compression fp16" if strategy == "horovod_ddp" else ""
    return {"STRATEGIES": strategy, "NPROC": 3, "ARGS": THREE_RANKS + compressed}


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "horovod_ddp"])
def test_three_ranks_agree_within_measured_rounding(strategy, checkout, tiny_data, tiny_config, tmp_path):
    """Protects the tolerance from being too tight: without this, the mistakes below could be found by anything."""
    code, _, rows = verify(checkout, tiny_data, tmp_path / "a set", CONFIG=tiny_config, **three_ranks(strategy))
    assert (code, rows[strategy]["verdict"], rows[strategy]["world_size"]) == (0, "ok", 3)
    assert 0 < rows[strategy]["max_relative_difference"] <= rows[strategy]["tolerance"]


@pytest.mark.slow  # the short form is in test_teeth.py
@pytest.mark.parametrize(("mistake", "strategy"), [*itertools.product(MISTAKES, ("ddp", "horovod_ddp"))])
def test_a_small_mistake_is_found_beside_rounding(mistake, strategy, checkout, tiny_data, tiny_config, tmp_path):
    """Protects the claim that the proof has teeth on three ranks, and on three ranks whose gradients are fp16."""
    reported = three_ranks(strategy)
    copy = planted_copy(checkout, tmp_path, *MISTAKES[mistake])
    code, output, rows = verify(copy, tiny_data, tmp_path / "a set", CONFIG=tiny_config, **reported)
    row = rows[strategy]
    assert code == 1 and "FAILED: not the reference's update" in output and row["verdict"] == "failed"
    assert row["max_relative_difference"] > row["tolerance"]


IN_ONE_STEP = "gradients x 1.01 in one step of five"
OTHER_KERNELS = {
    "gradients x 1.03": MISTAKES["gradients x 1.03"],
    "no last step": MISTAKES["no last step"],
    IN_ONE_STEP: (
        "benchmarks/ddp_compile.py",
        "        optimizer.step()\n",
        "        step.calls = getattr(step, 'calls', 0) + 1\n        for parameter in model.parameters():\n"
        "            parameter.grad *= 1.01 if step.calls % 5 == 4 else 1.0\n        optimizer.step()\n",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "args", "mistake"),
    [
        *itertools.product(["ddp"], ["--fused"], ["", "gradients x 1.03", "no last step"]),
        *itertools.product(["ddp_compile"], [""], ["", IN_ONE_STEP]),
    ],
)
def test_two_ranks_whose_kernels_round_otherwise_are_compared_step_by_step(
    strategy, args, mistake, checkout, tiny_data, tiny_config, tmp_path
):
    """Protects the proof of compiled and fused kernels: 20 steps at once hide 3 % in what rounding has grown to."""
    copy = planted_copy(checkout, tmp_path, *OTHER_KERNELS[mistake]) if mistake else checkout
    reported = {"CONFIG": tiny_config, "STRATEGIES": strategy, "ARGS": args}
    code, _, rows = verify(copy, tiny_data, tmp_path / "a set", **reported)
    row = rows[strategy]
    assert (code, row["verdict"], row["steps"]) == ((1, "failed", 6) if mistake else (0, "ok", 6))
    assert row["bit_identical"] == "no" and row["tolerance"] < 1e-2
    assert mistake != IN_ONE_STEP or "at step 4 differs most" in row["reason"]
    assert json.loads(row["asked"])["steps"] == 10  # what was planned, or --missing would prove it again


@pytest.mark.slow
@pytest.mark.parametrize("mistake", ELSEWHERE)
def test_augmentation_evaluation_and_resuming_are_in_the_proof(mistake, checkout, tiny_data, tiny_config, tmp_path):
    """Protects the claim that a proof is of the whole run: pixels, evaluation, and what comes after a resume."""
    copy = planted_copy(checkout, tmp_path, *ELSEWHERE[mistake])
    reported = {"CONFIG": tiny_config, "STRATEGIES": "ddp", "ARGS": "--workers 1"}
    code, output, _ = verify(copy, tiny_data, tmp_path / "a set", "--steps", "6", **reported)
    assert code == 1 and SAID[mistake] in output


FAST = {"no all-reduce"}


@pytest.mark.parametrize(
    "fault", [fault if fault in FAST else pytest.param(fault, marks=pytest.mark.slow) for fault in FAULTS]
)
def test_a_planted_fault_is_found(fault, checkout, tiny_data, tiny_config, tmp_path):
    """Protects the claim that verify tells these faults: the run itself ends well, and only the weights are wrong."""
    strategy, name, text, replacement = FAULTS[fault]
    if strategy == "horovod_ddp" and not find_spec("horovod"):
        pytest.skip("needs Horovod: scripts/setup/horovod.sh")
    copy = planted_copy(checkout, tmp_path, name, text, replacement)
    printed = {"CONFIG": tiny_config, "ARGS": ARGS.get(fault, ""), "STRATEGIES": strategy}
    code, output, rows = verify(copy, tiny_data, tmp_path / "a set", "--steps", "6", **printed)
    assert code == 1 and "FAILED: not the reference's update" in output
    assert rows[strategy]["verdict"] == "failed" and rows[strategy]["bit_identical"] == "no"
    assert rows[strategy]["max_relative_difference"] > (1e-5 if fault == "no compression" else 1e-4)


@pytest.mark.parametrize(
    "steps, variables, message",
    [
        ("5", {}, "steps is 5"),
        ("20", {"STRATEGIES": "dpp"}, "did you mean ddp?"),
        ("20", {"NPROC": "5"}, "not a multiple of 5 ranks"),
        ("20", {"DATA": "/nowhere"}, "'/nowhere' does not exist"),
        ("20", {"ARGS": "--loader synthetic"}, "loader synthetic"),
    ],
)
def test_mistakes_are_one_line_before_any_run(steps, variables, message, tiny_data, tmp_path, monkeypatch, capsys):
    set_variables(monkeypatch, **{"DATA": tiny_data, "NUM_GPUS": 0, "RESULTS": tmp_path / "a set"} | variables)
    assert told(command, int(steps)) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line and not (tmp_path / "a set").exists()


@pytest.mark.medium
def test_a_proof_of_skipped_strategies_alone_is_none(tiny_data, tiny_config, tmp_path, monkeypatch, capsys):
    """Protects a CI job that asks for the exit code alone. Mutant: 0 wherever no proof failed."""
    reported = {"NUM_GPUS": 0, "CONFIG": tiny_config, "DATA": tiny_data, "STRATEGIES": "apex_ddp"}
    set_variables(monkeypatch, RESULTS=tmp_path / "a set", **reported)
    assert told(main, 4) == 1
    assert "nothing was proved: all were skipped" in capsys.readouterr().out


@pytest.mark.medium
def test_what_does_not_fit_is_not_proved_and_not_started(tiny_data, tiny_config, tmp_path, monkeypatch, capsys):
    """Protects a proof on a small GPU from an out-of-memory error in its place: the forecast is asked first."""
    reported = {"NUM_GPUS": 1, "GPU_MEMORY_GB": 1.55, "CONFIG": tiny_config, "DATA": tiny_data, "STRATEGIES": "single"}
    set_variables(monkeypatch, RESULTS=tmp_path / "a set", **reported)
    monkeypatch.setattr("scripts.verify.verify.start", lambda *_: pytest.fail("it was started"))
    assert told(main, 4) == 1
    (row,) = read_table(tmp_path / "a set", "equivalence").to_dict("records")
    assert row["verdict"] == "not proved" and row["reason"].startswith("would not fit: needs 0.")
    assert "NOT PROVED: would not fit: needs" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("strategy", "world_size", "num_shards", "num_parts"),
    [
        ("ddp", 3, 3, 3),
        ("hybrid_parallel", 8, 4, 4),
        ("hybrid_parallel", 2, 1, 1),
        ("pipeline_parallel", 4, 1, 4),
        ("model_parallel", 2, 1, 1),
    ],
)
def test_a_batch_is_evaluated_in_as_many_parts_as_ranks_did(strategy, world_size, num_shards, num_parts):
    """Protects the evaluation's tolerance: of two GPUs of one rank, each was taken to have evaluated a part of its own.
    Mutants: world_size, which counts devices; the shards of training, of which a pipeline has one."""
    config = Config(arch="resnet18", global_batch=24)
    layout = Layout(num_shards, world_size // num_shards)
    training = SimpleNamespace(config=config, layout=layout)
    assert num_evaluated_parts(strategy, training, {"world_size": world_size}) == num_parts


def test_a_reference_that_does_not_fit_ends_its_proof_alone(tiny_data, tiny_config, tmp_path, monkeypatch):
    """Protects the proofs after it. The reference has on one GPU what model_parallel has on two."""
    set_variables(monkeypatch, RESULTS=tmp_path / "a set", NUM_GPUS=0, CONFIG=tiny_config, DATA=tiny_data, NPROC=1)
    (run,) = cases.cases_of_request(dataclasses.replace(asked(), strategies="model_parallel"), 4)
    shape = {name: getattr(Layout(num_stages=2), name) for name in STORED_FIELDS}
    met = {"world_size": 1, "backend": "none", "precision": "fp32", "memory_format": "contiguous", "device": "cpu"}
    met |= {"decoder": "pillow"} | shape
    finished_run = SimpleNamespace(run_id="x", results=tmp_path, resolved=lambda: met | {"threads_per_rank": 1})
    monkeypatch.setattr("scripts.verify.verify.start", lambda *_: (finished_run, {}))
    monkeypatch.setattr("scripts.verify.trained_states.saved_states", lambda *_: [])

    def run_out_of_memory(*_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("scripts.verify.comparison.compare_with_reference", run_out_of_memory)
    row = prove(run, tmp_path / "a set", tmp_path, "1/1")
    assert row["verdict"] == "not proved" and row["reason"].startswith("would not fit: the reference")


def set_variables(monkeypatch, **variables) -> None:
    """The environment of a command that was told these variables, and nothing else that a plan reads."""
    for name in (
        "CONFIG",
        "DATA",
        "RESULTS",
        "ARGS",
        "NPROC",
        "STRATEGIES",
        "RETRY",
        "NNODES",
        "HOSTS",
    ):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, str(value))


def told(prove, steps: int) -> int:
    """Its exit code where ./bench verify was told set_variables' variables."""
    given = {name.lower(): os.environ.get(name) for name in ("RESULTS", "DATA", "CONFIG")}
    paths = {name: Path(text) if text else None for name, text in given.items()}
    strategies = tuple(os.environ.get("STRATEGIES", "").split())
    return prove(VerifyOptions(steps, strategies=strategies, **paths), shlex.split(os.environ.get("ARGS", "")), {})


def recorded_set(results: Path, data: Path, monkeypatch, strategy: str = "ddp", args: str = "", **resolved) -> None:
    """A set with one ok run of two ranks, of which nothing but its settings is there."""
    args = f"--global-batch 8 --image-size 32 {args}"
    set_variables(monkeypatch, DATA=data, NUM_GPUS=0, ARGS=args, STRATEGIES=strategy)
    run = plan.plan_strategies(asked())[0]
    folder, _ = plan.create_run_folder(run, results)
    resolved = {"device": "cpu", "host": host(os.environ)} | resolved
    folder.write_summary({"row": {}, "met": resolved, "wall": {}})
    row = {"schema": 2, "run_id": folder.run_id, "strategy": strategy, "status": "ok"}
    append_rows(results, "runs", [row | {"settings": add_settings(results, run.requested, resolved)}])


def test_each_setting_of_a_strategy_has_a_proof_of_its_own(tiny_data, tmp_path, monkeypatch):
    """Protects the report's "yes" of each setting, in a second; test_a_set_is_proved_at_its_own_settings_and_once has
    real runs. Mutant: one proof for each strategy."""
    for args in ("--lr 0.1", "--lr 0.2", "--lr 0.1"):
        recorded_set(tmp_path / "a set", tiny_data, monkeypatch, args=args)
    found = cases.cases_of_set(asked(), tmp_path / "a set", 20)
    assert [proof.config.lr for proof in found] == [0.1, 0.2]


def test_a_set_of_other_images_or_of_another_machine_is_refused(tiny_data, own_data, tmp_path, monkeypatch):
    """Protects the proof from being of something else than the set that it is written into."""
    results = tmp_path / "a set"
    recorded_set(results, own_data, monkeypatch)
    for variables, message in (
        ({"DATA": tiny_data}, None),  # the same images elsewhere
        ({"DATA": ""}, None),  # where the set found them
        ({"NUM_GPUS": 2}, "a set has ddp on CPUs, 2 ranks, 1 nodes, and here are 2 GPUs; prove it where it ran"),
        ({"NNODES": 2}, "with the same NNODES, HOSTS or nodes of a"),
    ):
        set_variables(monkeypatch, **{"DATA": own_data, "NUM_GPUS": 0, "NNODES": 1} | variables)
        read = asked()
        if message is None:
            (run,) = cases.cases_of_set(read, results, 20, os.environ["DATA"])
            assert (run.strategy, run.requested["ranks"], run.config.image_size) == ("ddp", 2, 32)
        else:
            with pytest.raises(UserError, match=message):
                cases.cases_of_set(read, results, 20, os.environ["DATA"])
    set_variables(monkeypatch, DATA=own_data, NUM_GPUS=0, NNODES=1)
    plan._fingerprint.cache_clear()
    next(own_data.glob("train/*/*.JPEG")).unlink()
    with pytest.raises(UserError, match="proves other images than"):
        cases.cases_of_set(asked(), results, 20)
    plan._fingerprint.cache_clear()
    shutil.rmtree(own_data)
    with pytest.raises(UserError, match="does not exist; set --data"):
        cases.cases_of_set(asked(), results, 20)


def test_a_strategy_that_the_set_has_not_run_is_no_proof(tiny_data, tmp_path, monkeypatch, capsys):
    """Protects exit code 0 of `./bench verify fsdp`: without a run of it nothing would be proved. A strategy that was
    skipped is named. Mutant: the check looks at the set's strategies alone."""
    results = tmp_path / "a set"
    recorded_set(results, tiny_data, monkeypatch)
    append_rows(results, "runs", [{"schema": 2, "run_id": "x", "strategy": "apex_ddp", "status": "skipped"}])
    for named in ("fsdp", "ddp fsdp"):
        set_variables(monkeypatch, DATA=tiny_data, NUM_GPUS=0, STRATEGIES=named)
        with pytest.raises(UserError, match=r"no ok run of fsdp.*; \./bench run fsdp --results '.*a set'"):
            cases.cases_of_set(asked(), results, 20)
    assert not capsys.readouterr().err
    for named, num_proofs in (("ddp apex_ddp", 1), ("ddp", 1), ("all", 1), ("", 1), ("apex_ddp", 0)):
        set_variables(monkeypatch, DATA=tiny_data, NUM_GPUS=0, STRATEGIES=named)
        assert len(cases.cases_of_set(asked(), results, 20)) == num_proofs
        assert ("apex_ddp as skipped only" in capsys.readouterr().err) == ("apex_ddp" in named)


def other_than(value):
    return not value if isinstance(value, bool) else f"not {value}" if isinstance(value, str) else value + 1


@pytest.mark.parametrize("exact", [True, False])
def test_a_proof_differs_from_its_run_in_nothing_but_what_may(exact):
    """Protects every "yes": a field that is added to the configuration later is proved as it ran, or named here."""
    config = Config(**{name: other_than(value) for name, value in vars(Config()).items()})
    proof = cases.proof_config(config, 20, exact=exact)
    differing = {name for name in vars(config) if getattr(config, name) != getattr(proof, name)}
    assert differing <= MAY_DIFFER | NOT_COMPARED.keys()


def test_on_a_gpu_run_and_reference_compute_by_the_same_algorithms(tiny_data, monkeypatch):
    """Protects proofs in bf16: each by itself would time cuDNN's algorithms, and round as no other. On CPUs nothing
    changes, so that the proofs there are of the runs' own settings."""
    cudnn = torch.backends.cudnn
    for name in ("benchmark", "deterministic", "allow_tf32"):
        monkeypatch.setattr(cudnn, name, getattr(cudnn, name))  # put back afterwards
    config = Config(data=str(tiny_data), arch="resnet18", image_size=32, global_batch=8)
    monkeypatch.setenv("NUM_GPUS", "0")
    plain = cases.proof_config(config, 4, exact=False)
    assert (plain.cudnn_benchmark, plain.cudnn_deterministic) == (config.cudnn_benchmark, config.cudnn_deterministic)
    monkeypatch.setenv("NUM_GPUS", "1")
    seen = []
    for use in (
        lambda proof: prepare(proof, Rank()),
        lambda proof: train_reference(Training(proof, Layout(), "bf16", "cpu"), last=0),
    ):
        cudnn.benchmark, cudnn.deterministic = True, False
        use(cases.proof_config(config, 4, exact=False))
        seen.append((cudnn.benchmark, cudnn.deterministic))
    assert seen == [(False, True)] * 2


def test_the_reference_reads_no_field_that_it_is_shared_over():
    """Protects the cache of references: one is trained for all values of these fields."""
    text = "".join((ROOT / name).read_text() for name in (REFERENCE, "scripts/verify/reference_images.py", MODEL))
    kernels = {"compile", "cuda_graphs", "fused"}  # the same arithmetic, which the reference does by the default ones
    assert "config.seed" in text and not [name for name in {*NOT_READ} - kernels if f"config.{name}" in text]


def test_a_difference_is_relative_and_never_lost():
    """Protects the verdict: what cannot be compared counts as different, not as equal."""
    expected = {"a": torch.tensor([1.0, -4.0]), "b": torch.tensor([10.0]), "zero": torch.zeros(2)}
    same = {name: tensor.clone() for name, tensor in expected.items()}
    assert largest_difference(same, expected)[0] == 0
    assert largest_difference(same | {"a": torch.tensor([1.0, -3.0])}, expected) == (0.25, "a")
    assert largest_difference(same | {"b": torch.tensor([float("nan")])}, expected) == (float("inf"), "b")
    assert largest_difference(same | {"zero": torch.tensor([0.0, 1e-30])}, expected) == (float("inf"), "zero")
    assert largest_difference(same | {"a": torch.ones(1)}, expected) == (float("inf"), "a")
    assert largest_difference(same | {"c": torch.ones(1)}, expected) == (float("inf"), "c")


@pytest.mark.parametrize("name", ["conv1.weight", "bn1.running_mean", f"{MOMENTUM}fc.bias"])
def test_bits_that_differ_are_a_failed_proof(name):
    """Protects "bit-identical", also of BatchNorm's statistics, which no gradient reaches. Mutants: a tolerance of 1;
    no buffers compared."""
    state = {each: torch.ones(4) for each in ("conv1.weight", "bn1.running_mean", f"{MOMENTUM}fc.bias")}
    training = Training(Config(), Layout(2), "fp32", "cpu")
    changed = state | {name: state[name] * (1 + 2.0**-23)}
    found = [equivalence_columns(training, [compare_bits(each, state)], "") for each in (state, changed)]
    assert training.exact and [each["verdict"] for each in found] == ["ok", "failed"]
    assert [each["bit_identical"] for each in found] == [True, False] and f"; {name} differs" in found[1]["reason"]


@pytest.mark.medium
def test_the_reference_distinguishes_the_layouts_of_updates(tiny_data):
    """Protects the table of shapes: one shard, two shards and two micro-batches are three different trainings."""
    config = Config(
        data=str(tiny_data),
        arch="resnet18",
        image_size=32,
        global_batch=8,
        steps=2,
        augment=False,
        lr_batch=8,
        decoder="pillow",
    )

    def train(*shape, **options):
        return train_reference(Training(config, Layout(*shape, **options), "fp32", "cpu"))

    one, two, parts = train(), train(2), train(1, 2, 2)
    assert largest_difference(one, two)[0] > 0.01 and largest_difference(one, parts)[0] > 0.01
    # both see the halves by turns, but two shards keep the first one's statistics, and micro-batches have both's
    assert two["bn1.num_batches_tracked"] == 2 and parts["bn1.num_batches_tracked"] == 4
    assert torch.equal(train(2)["fc.weight"], two["fc.weight"])
    # equal splits under one loss are those micro-batches but for rounding; with a remainder, they are not
    assert largest_difference(train(split_size=4), parts)[0] < 1e-4
    assert train(split_size=3)["bn1.num_batches_tracked"] == 6
    assert largest_difference(train(2, compression="fp16"), two)[0] > 0
    frozen = train_reference(Training(dataclasses.replace(config, lr=0.0), Layout(), "fp32", "cpu"))
    assert largest_difference({"w": frozen["fc.weight"]}, {"w": one["fc.weight"]})[0] > 0


def test_a_step_is_a_mean_of_the_outcomes_that_rounding_makes():
    """Protects compiled runs from a false alarm that was seen: one ReLU on the other side of 0, by which the layers
    before it are off by 1 %. And the proof from this excuse: what no outcome shows is a fault, of whatever size.

    Mutants: the run is held against the nearest outcome; rounding is what the outcomes differ by."""
    draw = torch.Generator().manual_seed(0)
    names = [MOMENTUM + layer for layer in "abcd"]
    exact, one, other, third, wrong = ({name: torch.randn(64, 64, generator=draw) for name in names} for _ in range(5))
    before = SavedState(0, {})

    def state(flips: str = "", mistake: float = 0.0) -> dict[str, torch.Tensor]:
        of_flips = [{"1": one, "2": other, "3": third}[flip] for flip in flips]
        noise = {name: 1e-6 * torch.randn(64, 64, generator=draw) for name in names}
        return {
            name: exact[name] + noise[name] + mistake * wrong[name] + sum(0.014 * flip[name] for flip in of_flips)
            for name in names
        }

    def verdict_of(run: dict[str, torch.Tensor], *flips: str) -> str:
        findings = compare_with_outcomes(before, run, [exact, *map(state, flips)])
        return equivalence_columns(Training(Config(), Layout(), "fp32", "cuda"), findings, "")["verdict"]

    seen = "", "1", "12", "2", "", "1", ""
    assert verdict_of(state(), "", "") == verdict_of(state("1"), *seen) == verdict_of(state("12"), *seen) == "ok"
    assert verdict_of(state("12"), "1", "2", "1", "2", "") == "ok"  # their sum was not among the outcomes
    assert verdict_of(state("3"), *seen) == verdict_of(state("13"), *seen) == "failed"  # no rounding makes it
    assert verdict_of(state("1"), "1") == "not proved"  # one of each: nobody knows what rounding is
    for mistake in (1e-5, 7e-4, 1e-2):
        assert verdict_of(state("12", mistake), *seen) == verdict_of(state("", mistake), *seen) == "failed"


def test_an_evaluation_is_compared_to_the_image():
    expected = {"images": 50_000, "loss": 2.0, "acc1": 70.0, "acc5": 90.0, "acc1_tied": 0.0, "acc5_tied": 0.0}
    assert wrong_evaluation(expected, expected, expected) == ""
    for name, value in {"images": 50_001, "loss": 2.0001, "acc1": 70.002, "acc5": float("nan")}.items():
        assert f"the evaluation's {name} is" in wrong_evaluation(expected | {name: value}, expected, expected)
    assert wrong_evaluation(expected | {"acc1": 70.002}, expected, expected | {"acc1": 70.004}) == ""
    tied = expected | {"acc5_tied": 0.002}  # of one image
    assert wrong_evaluation(expected | {"acc5": 90.002}, tied, tied) == ""
    assert "acc5 is 90.004" in wrong_evaluation(expected | {"acc5": 90.004}, tied, tied)


def test_a_tie_of_scores_is_found_where_it_decides():
    """Protects a proof in half precision, where scores are often equal: torch.topk takes any of them. Mutants: a tie
    within the k best counts; one that ends below them does not."""
    scores = torch.tensor([[4.0, 3, 3, 2, 1, 0], [5, 5, 0, 0, 0, 0], [6, 5, 4, 3, 2, 2], [1, 1, 1, 1, 1, 1]])
    target = torch.tensor([1, 1, 4, 0])
    assert count_top(scores, target, 1) == (1, 2)  # a tie decides of the second and the fourth
    assert count_top(scores, target, 5) == (4, 2)  # of the third and the fourth
    assert count_top(scores, torch.tensor([5, 2, 0, 5]), 5) == (2, 2)


@pytest.mark.medium
def test_a_step_from_a_kept_state_is_the_step_of_the_whole_training(tiny_data):
    """Protects the induction: what the reference does from a state is what it does on the way there."""
    config = Config(
        data=str(tiny_data),
        arch="resnet18",
        image_size=32,
        global_batch=6,
        steps=2,
        epochs=2,
        workers=0,
        decoder="pillow",
    )
    training = Training(config, Layout(3), "fp32", "cpu")
    whole, first = (train_reference(training, last=last) for last in (3, 2))
    third = train_reference(training, SavedState(2, first), 3)
    assert largest_difference(third, whole)[0] == 0
    again = train_reference(training, SavedState(2, first), 3, average_in_float64)
    assert 0 < largest_difference(again, whole)[0] < 1e-4
