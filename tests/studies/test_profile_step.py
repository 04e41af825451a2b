"""The profile of a step: its kinds of layer, and their roofs, against sums done by hand.

.venv/bin/python -m pytest tests/studies/test_profile_step.py
"""

import csv
import gzip
import json
import types

import pytest
import torch
from support import SYNTHETIC_YAML
from torch import nn

from benchmarks.common.config import Config, load_config
from benchmarks.common.errors import UserError
from scripts.studies.roofline import profile_step
from scripts.studies.roofline.step_costs import trace_step


@pytest.mark.parametrize(
    "name, kind",
    [
        ("aten::convolution_backward", "convolution"),
        ("aten::cudnn_convolution", "convolution"),
        ("aten::native_batch_norm_backward", "batch norm"),
        ("aten::cudnn_batch_norm", "batch norm"),
        ("aten::clamp_min_", "elementwise"),
        ("aten::threshold_backward", "elementwise"),
        ("aten::addmm", "matrix product"),
        ("aten::max_pool2d_with_indices_backward", "pooling"),
        ("aten::_log_softmax", "loss"),
        ("aten::_foreach_add_", "optimizer"),
        ("nccl:all_reduce", "exchange"),
        ("aten::something_new", "other"),
    ],
)
def test_an_operation_is_of_one_kind(name, kind):
    """Protects the table: a trace and a profile must call the same thing by the same kind."""
    assert profile_step.kind_of(name) == kind


def test_the_roof_of_each_kind_by_hand():
    """Protects the gap: a convolution forward and for its weight, at 1 TFLOP/s and a bandwidth that does not count."""
    operations = trace_step(net_of, 4, 8)
    flops = 2 * (2 * 16 * 4 * 64 * 27)
    found = profile_step.roof_ms(operations, tflops=1.0, gb_per_s=1e12)
    assert found["convolution"] == pytest.approx(1000 * flops / 1e12)
    output = 16 * 4 * 64 * 4  # bytes; ReLU reads and writes, backward reads two and writes one
    found = profile_step.roof_ms(operations, tflops=1e12, gb_per_s=1.0)
    assert found["elementwise"] >= 1000 * 5 * output / 1e9
    assert "optimizer" in found


def net_of() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())


def test_times_are_of_one_step_and_shares_of_all():
    def event(key, us, count):
        return types.SimpleNamespace(key=key, self_cpu_time_total=us, self_device_time_total=0.0, count=count)

    events = [event("aten::mm", 3000.0, 4), event("aten::addmm", 3000.0, 2), event("aten::relu", 2000.0, 2)]
    spent = profile_step.by_kind(events, steps=2, on_gpu=False)
    assert spent == {"matrix product": (3.0, 3.0), "elementwise": (1.0, 1.0)}
    first, second = profile_step.table(spent, {"matrix product": 1.5})
    assert (first["share_pct"], first["roof_ms"], first["times_roof"]) == (75.0, 1.5, 2.0)
    assert (second["roof_ms"], second["times_roof"]) == (None, None)


def test_annotations_are_no_kernels():
    """Protects the list on a GPU, and the kinds' shares: the optimizer's annotation spans its kernels a second time."""
    kinds = torch.autograd.DeviceType
    marked = [(kinds.CPU, False), (kinds.CPU, True), (kinds.CUDA, True), (kinds.CUDA, False)]
    events = [types.SimpleNamespace(device_type=kind, is_user_annotation=is_one) for kind, is_one in marked]
    assert profile_step.split_events(events, on_gpu=True) == ([events[0]], [events[3]])
    assert profile_step.split_events(events[:2], on_gpu=False) == (events[:2], events[:2])


def test_a_real_profile(tmp_path, capsys, monkeypatch):
    """Protects the command: a strategy's own step, on this device, and a table of it."""
    monkeypatch.setenv("THREADS_PER_RANK", "1")
    (tmp_path / "own.yaml").write_text(SYNTHETIC_YAML)
    options = profile_step.ProfileOptions(steps=1, output=tmp_path / "profile.csv", trace=tmp_path / "new" / "traces")
    assert profile_step.main(options, load_config(["--config", str(tmp_path / "own.yaml")])) == 0
    text = capsys.readouterr().out
    assert "a step takes" in text and "no roof is known for this device" in text
    with open(tmp_path / "profile.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    shares = [float(row["share_pct"]) for row in rows]
    assert "convolution" in {row["kind"] for row in rows} and sum(shares) == pytest.approx(100)
    assert shares == sorted(shares, reverse=True)  # which kind is first depends on what else the machine does
    assert "ProfilerStep" not in text  # the span of a step is no operation
    trace = read_trace(tmp_path / "new" / "traces" / "rank0.pt.trace.json.gz")
    assert (trace["distributedInfo"]["rank"], trace["distributedInfo"]["world_size"]) == (0, 1)
    torch.set_num_threads(1)


@pytest.mark.medium
def test_it_profiles_the_benchmark_in_a_batch_that_fits(monkeypatch, capsys):
    """Protects a small GPU, and one of 80 GB that would run the defaults of Config: a smaller batch is forecast, and
    what the user names stays. Mutants: the defaults; a batch that is named, halved."""
    for name, value in {"NUM_GPUS": "1", "GPU_MEMORY_GB": "80"}.items():
        monkeypatch.setenv(name, value)
    config, small = ["--config", "configs/imagenet-bench.yaml"], ["--arch", "resnet18", "--precision=fp32"]
    assert profile_step.benchmark_flags("single", small) == [*config, *small, "--batch-per-device", "256"]
    assert not capsys.readouterr().err
    monkeypatch.setenv("GPU_MEMORY_GB", "4")
    assert profile_step.benchmark_flags("single", small) == [*config, *small, "--batch-per-device", "64"]
    assert "note: 64 images on a GPU instead of 256: needs " in capsys.readouterr().err
    for named in (["--global-batch", "512"], ["--batch-per-device=512"]):
        assert profile_step.benchmark_flags("single", named) == [*config, *named]
    assert profile_step.benchmark_flags("single", ["--config", "x.yaml"]) == ["--config", "x.yaml"]
    monkeypatch.setenv("NUM_GPUS", "0")
    assert profile_step.benchmark_flags("ddp", []) == ["--config", "configs/smoke.yaml"]


def read_trace(path) -> dict:
    return json.loads(gzip.decompress(path.read_bytes()))


def spans(trace: dict, name: str) -> list[tuple[float, float]]:
    """(start, end) in µs of each event whose name begins so, in the order of their starts."""
    found = [event for event in trace["traceEvents"] if event.get("ph") == "X" and event["name"].startswith(name)]
    return sorted((event["ts"], event["ts"] + event["dur"]) for event in found)


@pytest.mark.medium
def test_the_traces_of_two_ranks(tmp_path, monkeypatch, capfd):
    """Protects --trace: real ranks of ddp, which the command starts. Each has a file with its own rank, the steps
    under torch.profiler's names, and in every step the all-reduces that average gradients.

    Mutants: every rank writes rank 0's file; only the rank that reports writes; steps without their names.
    """
    for name, value in {"NPROC": "2", "THREADS_PER_RANK": "1", "CUDA_VISIBLE_DEVICES": ""}.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "own.yaml").write_text(SYNTHETIC_YAML)
    options = profile_step.ProfileOptions("ddp", steps=2, trace=tmp_path / "traces")
    code = profile_step.profile_on_ranks(options, ["--config", str(tmp_path / "own.yaml"), "--steps", "4"])
    printed = capfd.readouterr()
    assert code == 0, printed.err
    assert printed.out.count("a step takes") == 1 and str(tmp_path / "traces") in printed.out
    traces = {path.name: read_trace(path) for path in (tmp_path / "traces").iterdir()}
    assert sorted(traces) == ["rank0.pt.trace.json.gz", "rank1.pt.trace.json.gz"]
    num_exchanges = set()
    for rank in (0, 1):
        trace = traces[f"rank{rank}.pt.trace.json.gz"]
        info = trace["distributedInfo"]
        assert (info["rank"], info["world_size"], info["backend"]) == (rank, 2, "gloo")
        steps, exchanges = spans(trace, "ProfilerStep#"), spans(trace, "c10d::allreduce_")
        assert len(steps) == 2
        in_steps = [sum(start <= began <= end for began, _ in exchanges) for start, end in steps]
        assert min(in_steps) > 0 and sum(in_steps) == len(exchanges)
        num_exchanges.add(len(exchanges))
    assert len(num_exchanges) == 1  # both ranks take part in each


@pytest.mark.parametrize("name", ["rank3.pt.trace.json.gz", "other.json"])
def test_traces_go_into_a_folder_without_traces(tmp_path, monkeypatch, name):
    """Protects the reader of traces: those of another run would pass for ranks of this one."""
    monkeypatch.setenv("THREADS_PER_RANK", "1")
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(UserError, match="choose a new folder"):
        profile_step.profile_on_ranks(profile_step.ProfileOptions("ddp", trace=tmp_path), [])
    with pytest.raises(UserError, match="choose another folder"):
        profile_step.profile_on_ranks(profile_step.ProfileOptions("ddp", trace=tmp_path / name), [])


@pytest.mark.parametrize("strategy", ["ddp", "ddp_spawn"])
def test_a_strategy_of_several_ranks_without_torchrun(strategy):
    """Protects the message for what torchrun has to start; ddp_spawn.build, which takes a rank, had a TypeError."""
    with pytest.raises(UserError, match="torchrun did not start this process"):
        profile_step.measure(profile_step.ProfileOptions(strategy), load_config(["--loader", "synthetic"]))


def test_a_step_that_does_not_fit_is_a_sentence(monkeypatch):
    """Protects a small GPU from torch's traceback. Mutant: the error as it is."""

    def run_out_of_memory(*_):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

    monkeypatch.setattr(profile_step, "main", run_out_of_memory)
    with pytest.raises(UserError, match=r"does not fit.*--global-batch"):
        profile_step.profile_flags(profile_step.ProfileOptions(), ["--global-batch", "8"])


@pytest.mark.parametrize("name", ["Tesla V100-SXM2-32GB", "Tesla V100-PCIE-16GB", "NVIDIA H100 80GB HBM3"])
def test_every_v100_has_a_roof(name):
    """Protects V100s from "no roof is known". Mutant: one name for each kind of GPU."""
    assert profile_step.roof_here(Config(precision="fp32"), 8, name)
    assert not profile_step.roof_here(Config(precision="fp32"), 8, f"{name} of another kind")
