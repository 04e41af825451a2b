"""What a run is decides with which it is pooled, by what it is labelled, and what it is compared with.

.venv/bin/python -m pytest tests/results/test_result_set.py
"""

import pandas
import pytest

from benchmarks.common.config import FIELDS, Config
from benchmarks.common.rows import append_rows, read_table
from scripts.results.answer import find_answer
from scripts.results.result_set import load_set
from scripts.results.run_group import session_numbers
from scripts.results.settings import add_settings, requested_settings

MET = {
    "device": "cpu",
    "device_name": "Test CPU",
    "torch": "2.15.0",
    "world_size": 2,
    "precision": "fp32",
    "commit": "abc",
    "local_changes": "",
}


def asked(strategy="ddp", ranks=2, **fields):
    """The asked half of a run with the default configuration but for `fields`; those it does not know are added."""
    known = {name: value for name, value in fields.items() if name in FIELDS}
    return requested_settings(Config(**known), strategy, ranks, 1, 1, "2-40-23-abc") | fields


def add(folder, half, met=MET, status="ok", images_per_s=100.0, **row):
    """One run whose settings are recorded."""
    folder.mkdir(parents=True, exist_ok=True)
    run_id = f"run-{len(read_table(folder, 'runs'))}"
    known = {"run_id": run_id, "settings": add_settings(folder, half, met), "strategy": half["strategy"]}
    append_rows(folder, "runs", [known | {"status": status, "repeat": 1} | row])
    if status == "ok":
        append_rows(folder, "windows", [{"run_id": run_id, "window": 0, "images": images_per_s, "seconds": 1.0}])


def statuses(folder):
    return {group.label: group.status_counts for group in load_set(folder).groups}


def bases(folder):
    """Label of the baseline of each group with one, by the group's label."""
    results = load_set(folder)
    found = {group.label: results.baseline_of(group) for group in results.groups}
    return {label: base.label for label, base in found.items() if base}


def test_auto_and_what_it_becomes_are_one_group(tmp_path):
    met = MET | {"decoder": "nvimgcodec", "workers": 0}
    for repeat in (1, 2):
        add(tmp_path, asked(decoder="auto", workers="auto"), met, repeat=repeat)
        add(tmp_path, asked(decoder="nvimgcodec", workers=0), met, repeat=repeat)
    add(tmp_path, asked(decoder="pillow", workers=0), met | {"decoder": "pillow"})
    add(tmp_path, asked(decoder="nvimgcodec", workers=0), None, status="failed", repeat=3)
    found = {"ddp, decoder nvimgcodec": {"ok": 4, "failed": 1}, "ddp, decoder pillow": {"ok": 1}}
    assert statuses(tmp_path) == found


def test_a_run_without_resolved_settings_joins_the_group_of_its_request(tmp_path):
    """A killed run has no second half; a skipped strategy is a group of its own."""
    add(tmp_path, asked(lr=0.2), None, status="timeout")
    add(tmp_path, asked())
    add(tmp_path, asked(lr=0.2))
    add(tmp_path, asked(), {"commit": "abc", "local_changes": "x"}, status="failed")
    add(tmp_path, asked("apex_ddp"), None, status="skipped")
    assert statuses(tmp_path) == {
        "ddp, lr 0.1": {"ok": 1, "failed": 1},
        "ddp, lr 0.2": {"ok": 1, "timeout": 1},
        "apex_ddp": {"skipped": 1},
    }


def test_the_baseline_has_the_same_settings(tmp_path):
    """Ranks and a strategy's own options may differ, the model may not."""
    for norm in ("batch", "group"):
        add(tmp_path, asked("single", ranks=1, norm=norm), MET | {"world_size": 1, "num_shards": 1})
    add(tmp_path, asked(norm="group", bucket_cap_mb=5.0), MET | {"num_shards": 2})
    add(tmp_path, asked("horovod_ddp"), MET | {"horovod": "0.28.1"})
    add(tmp_path, asked("slurm", seed=3))
    assert bases(tmp_path) == {"ddp": "single, norm group", "horovod_ddp": "single, norm batch"}


@pytest.mark.parametrize(("ranks", "nodes", "also"), [(2, 1, {"ranks": 1}), (4, 2, {"threads_per_rank": 2})])
def test_of_several_baselines_it_is_the_one_that_was_asked_the_same(tmp_path, ranks, nodes, also):
    """Of two numbers of ranks in one set, and of a strategy on two nodes, whose baseline has one."""
    alone = {"device": "cuda", "world_size": 1, "num_shards": 1, "precision": "fp32"}
    for own in ({}, also):
        add(tmp_path, asked("single", **own), alone)
    add(tmp_path, asked(ranks=ranks, nodes=nodes), alone | {"world_size": ranks, "num_shards": ranks})
    results = load_set(tmp_path)
    (group,) = results.timed_groups_of("ddp")
    base = results.baseline_of(group).identity.requested
    assert (base["ranks"], base["nodes"], base["threads_per_rank"]) == (2, 1, 1)


def test_a_speed_up_is_over_the_same_precision(tmp_path):
    """It is of how the work is divided, never of the arithmetic. bf16 has channels_last, if nothing else is asked."""
    fp32, tf32 = MET | {"memory_format": "contiguous"}, MET | {"precision": "tf32"}
    bf16 = MET | {"precision": "bf16", "memory_format": "channels_last"}
    add(tmp_path, asked("single", precision="fp32"), fp32)
    add(tmp_path, asked("single", precision="bf16"), bf16)
    add(tmp_path, asked("ddp", precision="tf32"), tf32)
    add(tmp_path, asked("ddp_spawn", precision="bf16"), bf16)
    add(tmp_path, asked("ddp_amp"), bf16)
    add(tmp_path, asked("slurm"), fp32)
    add(tmp_path, asked("zero1", precision="bf16", memory_format="contiguous"), bf16 | {"memory_format": "contiguous"})
    assert bases(tmp_path) == {"ddp_spawn": "single, bf16", "ddp_amp": "single, bf16", "slurm": "single, fp32"}


def test_the_plain_baseline_keeps_its_name_and_no_other_is_one(tmp_path):
    """bench-all adds the baseline in bf16 and on all cores."""
    add(tmp_path, asked("single"))
    add(tmp_path, asked("single", precision="bf16"), MET | {"precision": "bf16"})
    add(tmp_path, asked("single") | {"threads_per_rank": 2})
    add(tmp_path, asked("ddp"))
    add(tmp_path, asked("ddp_amp"), MET | {"precision": "bf16"})
    (tmp_path / "environment.json").write_text('{"num_cores": 2}')
    assert [*statuses(tmp_path)] == ["single", "single, bf16", "single, all cores", "ddp", "ddp_amp"]
    assert bases(tmp_path) == {"ddp": "single", "ddp_amp": "single, bf16"}
    add(tmp_path / "alone", asked("single") | {"threads_per_rank": 2})
    add(tmp_path / "alone", asked("ddp"))
    assert bases(tmp_path / "alone") == {}, "all cores are no baseline of one rank's share"


def test_an_a_a_comparison_is_of_the_baseline_and_no_baseline_itself(tmp_path):
    """Two groups, one family, and no strategy of its own."""
    pairs = ((100.0, 101.0), (102.0, 100.5), (101.0, 101.5), (99.0, 99.5), (100.0, 98.5))
    for number, (first, second) in enumerate(pairs, 1):
        add(tmp_path, asked("single"), images_per_s=first, repeat=number)
        add(tmp_path, asked("single", label="again"), images_per_s=second, repeat=number)
        add(tmp_path, asked("ddp"), images_per_s=2 * first - number % 2, repeat=number)
    results = load_set(tmp_path)
    assert [group.label for group in results.groups] == ["single", "single, again", "ddp"]
    assert results.baseline_label_of == {"single, again": "single", "ddp": "single"}
    assert [group.label for group in results.rankable_groups] == ["single", "ddp"]
    assert results.speedups["single, again"].verdict == "no difference seen"
    assert find_answer(results).fastest_sentence.startswith("ddp is the fastest in fp32: ")


def test_a_speed_up_in_fp16_is_over_one_rank_of_what_can_train_in_it(tmp_path):
    """The baseline has no gradient scaler, and its fp32 is another work."""
    met = MET | {"precision": "fp16"}
    add(tmp_path, asked("single"))
    add(tmp_path, asked("ddp_amp", 1), met | {"world_size": 1})
    add(tmp_path, asked("ddp_amp", 4), met | {"world_size": 4})
    add(tmp_path, asked("apex_ddp", 4), MET | {"precision": "apex-O1", "world_size": 4})
    assert bases(tmp_path) == dict.fromkeys(("ddp_amp, ranks 4", "apex_ddp"), "ddp_amp, ranks 1")


def test_batches_a_device_are_compared_and_other_batches_are_not(tmp_path):
    """Weak scaling is the only place where two batches meet in one ratio."""
    weak = {"global_batch": 0, "batch_per_device": 16}
    add(tmp_path / "weak", asked("single", **weak), MET | {"global_batch": 16})
    add(tmp_path / "weak", asked("ddp", **weak), MET | {"global_batch": 32})
    add(tmp_path / "weak", asked("slurm", **weak | {"batch_per_device": 8}), MET | {"global_batch": 16})
    assert bases(tmp_path / "weak") == {"ddp": "single"}
    add(tmp_path / "strong", asked("single", global_batch=16))
    add(tmp_path / "strong", asked("ddp", global_batch=32))
    assert bases(tmp_path / "strong") == {}


def test_an_hour_without_runs_begins_another_session_and_its_rounds_are_not_paired(tmp_path):
    """`make bench-ddp` a week later has round 1 again. A long run is no pause."""
    hours = {"01:00": 7200, "03:30": 10, "05:00": 10}
    rows = {"started_at": [f"2026-01-02T{hour}:00+00:00" for hour in hours], "wall_s": [*hours.values()]}
    assert session_numbers(pandas.DataFrame(rows)).tolist() == [0, 0, 1]
    for strategy, day in (("single", 1), ("ddp", 8)):
        add(tmp_path, asked(strategy), started_at=f"2026-01-0{day}T03:04:05+00:00")
    assert load_set(tmp_path).speedups["ddp"].num_rounds == 0


def test_all_ratios_of_a_set_are_one_family(tmp_path):
    """The fastest is picked after looking: every comparable pair has its share."""
    for strategy, speed in (("single", 100), ("ddp", 150), ("slurm", 152), ("zero1", 120)):
        for repeat in range(1, 6):
            add(tmp_path, asked(strategy), images_per_s=speed + repeat % 3, repeat=repeat)
    results = load_set(tmp_path)
    ddp, zero1 = (results.timed_groups_of(name)[0] for name in ("ddp", "zero1"))
    assert len(results.ratios) == 6 and results.speedups["ddp"] == results.ratios["ddp", "single"]
    assert results.ratio(ddp, zero1).value == pytest.approx(1 / results.ratio(zero1, ddp).value)
    add(tmp_path, asked("fsdp", norm="group"))
    other = load_set(tmp_path)
    assert other.ratio(*other.timed_groups_of("fsdp"), *other.timed_groups_of("ddp")) is None
