"""`./bench verify` passes the suite as it is, and fails on each fault that it is there to find.

A fault is planted in a copy of the suite, by replacing text that must be there, and verify runs as a user's would:
real launchers, real ranks. Smaller mistakes, and the arithmetic of the verdict, are in test_comparison.py.
"""

import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Collection, Iterable
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import pytest
from support import ROOT, asked, run_strategy, start_bench

from benchmarks.common.config import NOT_COMPARED, Config
from benchmarks.common.errors import UserError
from benchmarks.common.machine import host
from benchmarks.common.rows import append_rows, read_table
from benchmarks.common.run_folder import RunFolder
from benchmarks.common.strategy import Layout
from scripts.results.settings import add_settings, drop_not_compared
from scripts.runner import plan
from scripts.verify import cases
from scripts.verify.verify import VerifyOptions, command, main, num_evaluated_parts

# The run's length and what of it is timed; threads.
MAY_DIFFER = set("epochs steps warmup_steps windows window_steps account_steps threads_per_rank".split())

DDP, ENGINE, MODEL = "benchmarks/ddp.py", "benchmarks/common/engine.py", "benchmarks/common/model.py"
CHECKPOINT, LOADER, IMAGES = (f"benchmarks/common/{name}.py" for name in ("checkpoint", "loader", "images"))
HOROVOD, LOCAL, STAGES = "benchmarks/horovod_ddp.py", "benchmarks/local_sgd.py", "benchmarks/common/stages.py"
DDP_WRAP = "    optimizer = build_optimizer(config, model)"
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
HIDDEN_STEP = "    hvd.broadcast_optimizer_state(optimizer, root_rank=0)\n"
OPTIMIZER = "    return optimizer_class(model.parameters(), **options)\n"
HOOKED = "    for parameter in model.parameters():\n        parameter.register_hook(lambda g: g * 1.03)\n" + OPTIMIZER
COMPILED = "benchmarks/ddp_compile.py"
IN_ONE_STEP = """        step.calls = getattr(step, 'calls', 0) + 1
        for parameter in model.parameters():
            parameter.grad *= 1.01 if step.calls % 5 == 4 else 1.0
        optimizer.step()
"""
SPLITS, CONVNEXT = "--global-batch 20 --split-size 8", "--arch convnext_tiny"  # 8, 8 and 4 images
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
    "no all-reduce": Fault("ddp", DDP, "output = ddp(images)", "output = model(images)"),
    "summed, not averaged": Fault("ddp", DDP, DDP_WRAP, SUM_HOOK + DDP_WRAP),
    "step before the reduction": Fault("ddp", DDP, DDP_WRAP, EARLY_HOOK + DDP_WRAP),
    "all ranks on one shard": Fault("ddp", LOADER, "own_shard = rank.rank, rank.world_size", "own_shard = 0, 2"),
    "no set_epoch": Fault("ddp", ENGINE, "train.set_epoch(epoch, first_step)", "pass"),
    "other flips": Fault("ddp", IMAGES, "numbers[2 * CROP_TRIES + 2] < 0.5", "numbers[2 * CROP_TRIES + 2] > 0.5"),
    "evaluation as in training": Fault("ddp", ENGINE, "        model.eval()\n", ""),
    "evaluation of flipped images": Fault(
        "ddp", ENGINE, "self.predict(images)", "self.predict(images.flip(3))", said="the evaluation's loss is"
    ),
    "resumed without momentum": Fault(
        "ddp",
        CHECKPOINT,
        '        strategy.optimizer.load_state_dict(saved["optimizer"])\n',
        "",
        said=": resumed after step",
    ),
    "AdamW with another beta": Fault("ddp", MODEL, "ADAM_BETA2 = 0.999", "ADAM_BETA2 = 0.99", CONVNEXT),
    "AdamW without weight decay": Fault("ddp", MODEL, '": config.weight_decay', '": 0.0', CONVNEXT),
    "gradients x 1.03 on three ranks": Fault("ddp", MODEL, OPTIMIZER, HOOKED, THREE_RANKS, 3),
    "gradients x 1.03 in fused kernels": Fault("ddp", MODEL, OPTIMIZER, HOOKED, "--fused"),
    "gradients x 1.01 in one compiled step of five": Fault(
        "ddp_compile", COMPILED, "        optimizer.step()\n", IN_ONE_STEP, said="at step 4 differs most"
    ),
    "no splits": Fault("model_parallel", STAGES, "images.split(self.split_size or len(images))", "[images]", SPLITS),
    "momentum averaged too": Fault(
        "local_sgd",
        LOCAL,
        "            average_into(model)\n",
        "            average_into(model)\n            for each in optimizer.state.values():\n"
        "                all_reduce_sum(each['momentum_buffer']).div_(rank.world_size)\n",
    ),
    "the average one step late": Fault(
        "local_sgd", LOCAL, "num_steps % config.local_period == 0", "num_steps % config.local_period == 1 < num_steps"
    ),
    "hidden step of broadcast_optimizer_state": Fault(
        "horovod_ddp", HOROVOD, "    def step(images: torch.Tensor", f"{HIDDEN_STEP}    def step(images: torch.Tensor"
    ),
    "no compression": Fault(
        "horovod_ddp",
        HOROVOD,
        "getattr(hvd.Compression, config.compression)",
        "hvd.Compression.none",
        "--compression fp16",
    ),
}


IN_CI = (
    "no all-reduce", "evaluation of flipped images", "resumed without momentum", "gradients x 1.03 on three ranks",
    "the average one step late", "each way to divide a step", "AdamW", "a transformer",
)  # fmt: skip


def marked(cases: Iterable[str], of_ci: Collection[str]) -> list:
    """Each case, medium where CI runs it, else slow."""
    return [pytest.param(case, marks=pytest.mark.launches if case in of_ci else pytest.mark.slow) for case in cases]


def verify(checkout: Path, data: Path, results: Path, *words: str, **variables):
    """./bench verify of a checkout: (exit code, its output, rows of equivalence.csv by strategy)."""
    variables = {"DATA": data, "RESULTS": results, "NPROC": 2} | variables
    keywords = {"capture_output": True, "text": True, "timeout": 1500}
    done = start_bench(checkout, shlex.join(["verify", *words]), subprocess.run, **variables, **keywords)
    print(done.stdout + done.stderr)  # pytest shows it if the test fails
    rows = {row["strategy"]: row for row in read_table(results, "equivalence").to_dict("records")}
    return done.returncode, done.stdout + done.stderr, rows


def test_each_fault_can_be_planted():
    """Most are planted by hand alone, which would find out too late."""
    assert [name for name, each in FAULTS.items() if (ROOT / each.file).read_text().count(each.text) != 1] == []


@pytest.mark.parametrize("fault", marked(FAULTS, IN_CI))
def test_a_planted_fault_is_found(fault, checkout, tiny_data, tiny_config, tmp_path):
    """The run itself ends well, and only the weights, or the evaluation, are wrong."""
    planted = FAULTS[fault]
    if planted.strategy == "horovod_ddp" and not find_spec("horovod"):
        pytest.skip("needs Horovod: scripts/setup/horovod.sh")
    copy = Path(shutil.copytree(checkout, tmp_path / "faulty"))
    source = (copy / planted.file).read_text()
    (copy / planted.file).write_text(source.replace(planted.text, planted.replacement))
    given = {"CONFIG": tiny_config, "ARGS": planted.args, "STRATEGIES": planted.strategy, "NPROC": planted.ranks}
    code, output, rows = verify(copy, tiny_data, tmp_path / "a set", "--steps", "10", **given)
    assert code == 1 and planted.said in output and rows[planted.strategy]["verdict"] == "failed"


AS_IT_IS = {  # strategies, arguments, ranks, and whether they agree to the last bit
    "each way to divide a step": ("ddp apex_ddp", "", 2, "yes"),
    "Horovod": ("horovod_ddp", "", 2, "yes"),
    "AdamW": ("zero1", CONVNEXT, 2, "yes"),  # it divides the state
    "AdamW elsewhere": ("fsdp local_sgd single dataparallel ddp model_parallel hybrid_parallel", CONVNEXT, 2, "yes"),
    "a pipeline behind its last exact cut": ("pipeline_parallel", f"{CONVNEXT} --cut 16", 2, "no"),
    "a transformer": ("pipeline_parallel", "--arch vit_b_16 --cut 6", 2, "yes"),
    "three ranks": ("ddp", THREE_RANKS, 3, "no"),
    "Horovod in fp16": ("horovod_ddp", f"{THREE_RANKS} --compression fp16", 3, "no"),
    "fused kernels": ("ddp", "--fused", 2, "no"),
    "compiled kernels": ("ddp_compile", "", 2, "no"),
}


@pytest.mark.parametrize("case", marked(AS_IT_IS, IN_CI))
def test_the_suite_as_it_is_agrees(case, checkout, tiny_data, tiny_config, tmp_path):
    """To the last bit, or within measured rounding: else the faults could be found by anything."""
    strategies, args, ranks, identical = AS_IT_IS[case]
    if "horovod_ddp" in strategies and not find_spec("horovod"):
        pytest.skip("needs Horovod: scripts/setup/horovod.sh")
    given = {"CONFIG": tiny_config, "STRATEGIES": strategies, "ARGS": args, "NPROC": ranks}
    code, _, rows = verify(checkout, tiny_data, tmp_path / "a set", "--steps", "6", **given)
    if skipped := rows.pop("apex_ddp", {}):
        assert skipped["verdict"] == "skipped" and "NVIDIA GPUs" in skipped["reason"]
    assert code == 0 and {(row["verdict"], row["bit_identical"]) for row in rows.values()} == {("ok", identical)}
    assert all(row["max_relative_difference"] <= row["tolerance"] < 1e-2 for row in rows.values())
    assert not list((tmp_path / "a set" / "verify").glob("weights-*"))  # 90 MB a strategy


@pytest.mark.slow
def test_a_set_is_proved_at_its_own_settings(checkout, tiny_data, tiny_config, tmp_path):
    """Protects what the report says "yes" of: the split sizes that ran, each proved as it ran."""
    results, where = tmp_path / "a set", {"CONFIG": tiny_config, "DATA": tiny_data}
    for args in (SPLITS, "--global-batch 20"):
        assert run_strategy("model_parallel", results, f"{args} --steps 4", **where)["status"] == "ok"
    code, _, _ = verify(checkout, tiny_data, results, "--steps", "6")
    table = read_table(results, "equivalence")
    halves = [(json.loads(row.asked), json.loads(row.met)) for row in table.itertuples()]
    assert code == 0 and (table.verdict == "ok").all() and (table.bit_identical == "yes").all()
    assert [asked["split_size"] for asked, _ in halves] == [8, 0]
    assert [(met["num_microbatches"], met["split_size"]) for _, met in halves] == [(3, 8), (1, 0)]
    ran = RunFolder(results / "logs" / read_table(results, "runs").run_id[0]).requested()
    differing = {name for name in drop_not_compared(ran) if ran[name] != halves[0][0][name]}
    assert differing and differing <= MAY_DIFFER


@pytest.mark.parametrize("exact", [True, False])
def test_a_proof_differs_from_its_run_in_nothing_but_what_may(exact):
    """Protects every "yes": a field that is added to the configuration later is proved as it ran, or named here."""

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
def test_mistakes_are_one_line_before_any_run(changes, flags, message, options, tmp_path, capsys):
    assert command(options(**changes), flags, {}) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line and not (tmp_path / "a set").exists()


@pytest.mark.launches
def test_a_proof_of_skipped_strategies_alone_is_none(options, capsys):
    """Protects a CI job that asks for the exit code alone."""
    assert main(options(strategies=("apex_ddp",))) == 1
    assert "nothing was proved: all were skipped" in capsys.readouterr().out


@pytest.mark.launches
def test_what_does_not_fit_is_not_proved_and_not_started(options, tmp_path, monkeypatch):
    """Protects a proof on a small GPU from an out-of-memory error in its place: the forecast is asked first."""
    monkeypatch.setenv("NUM_GPUS", "1")
    monkeypatch.setenv("GPU_MEMORY_GB", "1.55")
    monkeypatch.setattr("scripts.verify.verify.start", lambda *_: pytest.fail("it was started"))
    assert main(options(strategies=("single",))) == 1
    (row,) = read_table(tmp_path / "a set", "equivalence").to_dict("records")
    assert row["verdict"] == "not proved" and row["reason"].startswith("would not fit: needs 0.")


def test_a_batch_is_evaluated_in_as_many_parts_as_ranks_did():
    """Protects the evaluation's tolerance: devices are no ranks, and of a pipeline each rank evaluates."""
    for strategy, world_size, num_shards, num_parts in (("hybrid_parallel", 8, 4, 4), ("pipeline_parallel", 4, 1, 4)):
        layout = Layout(num_shards, world_size // num_shards)
        training = SimpleNamespace(config=Config(arch="resnet18", global_batch=24), layout=layout)
        assert num_evaluated_parts(strategy, training, {"world_size": world_size}) == num_parts


def recorded_set(results: Path, data: Path, args: str = "") -> None:
    """One more ok run of ddp on two ranks, of which nothing but its settings is there."""
    args = f"--global-batch 8 --image-size 32 {args}"
    (run,) = plan.plan_strategies(asked(DATA=data, ARGS=args, STRATEGIES="ddp"))
    folder, _ = plan.create_run_folder(run.in_round(1), results)
    resolved = {"device": "cpu", "host": host(os.environ)}
    folder.write_summary({"row": {}, "met": resolved, "wall": {}})
    row = {"schema": 2, "run_id": folder.run_id, "strategy": "ddp", "status": "ok"}
    append_rows(results, "runs", [row | {"settings": add_settings(results, folder.requested(), resolved)}])


@pytest.mark.usefixtures("options")
def test_each_setting_of_a_strategy_has_a_proof_of_its_own(tiny_data, tmp_path, capsys):
    """Protects the report's "yes" of each setting, and exit code 0 of `./bench verify fsdp`: without a run nothing
    would be proved."""
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
    """Protects the proof from being of something else than the set that it is written into."""
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
    with pytest.raises(UserError, match="proves other images than"):
        cases.cases_of_set(asked(), results, 20)
    plan._fingerprint.cache_clear()
