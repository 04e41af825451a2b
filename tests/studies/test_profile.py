"""The profile of a step: kinds of layer and their roofs against sums done by hand, MFU, and traces of real ranks."""

import gzip
import json
import re
import types

import pytest
import torch
from support import SYNTHETIC_YAML
from torch import nn

from benchmarks.common.config import load_config
from benchmarks.common.errors import UserError
from scripts.studies.options import ProfileOptions
from scripts.studies.profile import profile_step
from scripts.studies.profile.step_costs import trace_step

N, SIZE, OUT, CLASSES, FLOAT = 4, 8, 16, 10, 4  # images, pixels along a side, channels of the convolution, bytes
PIXELS = N * SIZE * SIZE


@pytest.mark.parametrize(
    "name, kind",
    [
        ("aten::cudnn_batch_norm", "batch norm"),
        ("aten::threshold_backward", "elementwise"),
        ("aten::_foreach_add_", "optimizer"),
        ("nccl:all_reduce", "exchange"),
        ("aten::something_new", "other"),
    ],
)
def test_a_trace_and_a_profile_call_an_operation_by_one_kind(name, kind):
    assert profile_step.kind_of(name) == kind


def net() -> nn.Module:
    convolution = nn.Conv2d(3, OUT, 3, padding=1, bias=False)
    return nn.Sequential(convolution, nn.ReLU(), nn.Flatten(), nn.Linear(OUT * SIZE * SIZE, CLASSES, bias=False))


def sums(name: str, autocast: torch.dtype | None = None) -> tuple[int, int]:
    """(FLOPs, bytes) of all operations with this in their name."""
    found = [operation for operation in trace_step(net, N, SIZE, autocast) if name in operation.name]
    return sum(each.flops for each in found), sum(each.moved_bytes for each in found)


def test_flops_bytes_and_roofs_by_hand():
    """2 FLOPs a multiply-add; the first layer has no gradient of its images. ReLU forward reads and writes, backward
    reads two and writes one; in bf16 half as many bytes."""
    images, weight, output = 3 * PIXELS * FLOAT, OUT * 3 * 9 * FLOAT, OUT * PIXELS * FLOAT
    flops = 2 * (2 * OUT * PIXELS * 27)
    assert sums("convolution") == (flops, (images + weight + output) + (output + images + 2 * weight))
    assert sums("relu")[1] + sums("threshold")[1] == 5 * output and 2 * sums("relu", torch.bfloat16)[1] == 2 * output
    features, matrix, scores = OUT * PIXELS * FLOAT, OUT * SIZE * SIZE * CLASSES * FLOAT, N * CLASSES * FLOAT
    assert sums("aten::mm") == (3 * 2 * N * CLASSES * OUT * SIZE * SIZE, 3 * (features + matrix + scores))
    operations = trace_step(net, N, SIZE)
    assert profile_step.roof_ms(operations, tflops=1.0, gb_per_s=1e12)["convolution"] == pytest.approx(flops / 1e9)
    assert profile_step.roof_ms(operations, tflops=1e12, gb_per_s=1.0)["elementwise"] >= 5 * output / 1e6


def test_a_row_is_of_one_step_beside_its_roof():
    def event(key, us, count):
        return types.SimpleNamespace(key=key, self_cpu_time_total=us, self_device_time_total=0.0, count=count)

    events = [event("aten::mm", 3000.0, 4), event("aten::addmm", 3000.0, 2), event("aten::relu", 2000.0, 2)]
    spent = profile_step.by_kind(events, steps=2, on_gpu=False)
    _, first, second = profile_step.table(spent, {"matrix product": 1.5})
    assert first == ("matrix product", "3.000", "75.0 %", "1.500", "2.00", "3")
    assert second == ("elementwise", "1.000", "25.0 %", "", "", "1")


def test_annotations_of_a_gpu_are_no_kernels():
    kinds = torch.autograd.DeviceType
    marked = [(kinds.CPU, False), (kinds.CPU, True), (kinds.CUDA, True), (kinds.CUDA, False)]
    events = [types.SimpleNamespace(device_type=kind, is_user_annotation=is_one) for kind, is_one in marked]
    assert profile_step.split_events(events, on_gpu=True) == ([events[0]], [events[3]])


@pytest.mark.launches
def test_a_real_step_has_a_table_and_an_mfu(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("THREADS_PER_RANK", "1")
    monkeypatch.setattr(profile_step, "measure_peak", lambda: {})
    (tmp_path / "own.yaml").write_text(SYNTHETIC_YAML)
    monkeypatch.setattr(profile_step, "peak_tflops", lambda *_: (0.5, "a test"))
    assert profile_step.main(ProfileOptions(steps=1), load_config(["--config", str(tmp_path / "own.yaml")])) == 0
    text = capsys.readouterr().out
    assert re.search(
        r"a step takes [\d.]+ ms without the profiler; MFU \d+ % \([\d.e-]+ of 0.5 TFLOP/s: a test\)", text
    )
    shares = [float(share) for share in re.findall(r" ([\d.]+) %  ", text)]
    assert "\nconvolution " in text and sum(shares) == pytest.approx(100, abs=0.5)
    assert "ProfilerStep" not in text  # the span of a step is no operation
    torch.set_num_threads(1)


def spans(trace: dict, name: str) -> list[tuple[float, float]]:
    """(start, end) in µs of each event whose name begins so, in the order of their starts."""
    found = [event for event in trace["traceEvents"] if event.get("ph") == "X" and event["name"].startswith(name)]
    return sorted((event["ts"], event["ts"] + event["dur"]) for event in found)


@pytest.mark.launches
def test_the_traces_of_two_ranks(tmp_path, monkeypatch, capfd):
    for name, value in {"NPROC": "2", "THREADS_PER_RANK": "1", "CUDA_VISIBLE_DEVICES": ""}.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "own.yaml").write_text(SYNTHETIC_YAML)
    options = ProfileOptions("ddp", steps=2, trace=tmp_path / "traces")
    code = profile_step.profile_on_ranks(options, ["--config", str(tmp_path / "own.yaml"), "--steps", "4"])
    printed = capfd.readouterr()
    assert code == 0, printed.err
    assert printed.out.count("a step takes") == 1 and str(tmp_path / "traces") in printed.out
    for rank in (0, 1):
        trace = json.loads(gzip.decompress((tmp_path / "traces" / f"rank{rank}.pt.trace.json.gz").read_bytes()))
        info = trace["distributedInfo"]
        assert (info["rank"], info["world_size"], info["backend"]) == (rank, 2, "gloo")
        steps, exchanges = spans(trace, "ProfilerStep#"), spans(trace, "c10d::allreduce_")
        in_steps = [sum(start <= began <= end for began, _ in exchanges) for start, end in steps]
        assert len(steps) == 2 and min(in_steps) > 0 and sum(in_steps) == len(exchanges)


def test_mistakes_are_sentences(tmp_path, monkeypatch):
    monkeypatch.setenv("THREADS_PER_RANK", "1")
    config = ["--config", "configs/smoke.yaml"]
    (tmp_path / "other.json").write_bytes(b"")
    with pytest.raises(UserError, match="choose a new folder"):
        profile_step.profile_on_ranks(ProfileOptions("ddp", trace=tmp_path), config)

    def run_out_of_memory(*_):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

    monkeypatch.setattr(profile_step, "main", run_out_of_memory)
    with pytest.raises(UserError, match=r"does not fit.*--global-batch"):
        profile_step.profile_flags(ProfileOptions(), ["--global-batch", "8"])
