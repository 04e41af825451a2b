"""What a run is decides with which it is pooled, by what it is labelled, and what it is compared with.

.venv/bin/python -m pytest tests/results/test_result_set.py
"""

import pandas
import pytest

from benchmarks.common.config import FIELDS, Config
from benchmarks.common.rows import append_rows
from scripts.results.answer import find_answer, over_which_baseline
from scripts.results.identity import Identity, differing_fields
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
    """One run whose settings are recorded; returns its run_id."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "runs.csv"
    run_id = f"run-{path.read_text().count(chr(10)) if path.exists() else 0}"
    name = add_settings(folder, half, met)
    known = {"schema": 2, "run_id": run_id, "settings": name, "strategy": half["strategy"], "status": status}
    append_rows(folder, "runs", [known | {"repeat": 1, "images_per_s": images_per_s if status == "ok" else None} | row])
    return run_id


def labels(folder):
    return {group.label: len(group.rows) for group in load_set(folder).groups}


def test_an_option_that_a_strategy_does_not_read_is_no_setting_of_its_runs(tmp_path):
    """`bench-all ARGS="--compression fp16"`: only Horovod's runs are others."""
    for round, half in enumerate((asked("single"), asked("single", compression="fp16"))):
        add(tmp_path, half, repeat=round + 1)
    assert labels(tmp_path) == {"single": 2}


MACHINE = {"num_cores": 2, "cpu_flags": "ab", "cpu_capability": "AVX512", "kernel": "6.1", "host": "0123456789ab"}
MACHINE |= {"gpu_driver": "580.1", "nccl": "2.27.3", "nccl_conf": "none", "variables": "none"}


def test_two_runs_of_other_kernels_are_two_groups_and_not_compared(tmp_path):
    """Protects speed-ups: 47 and 18 images/s were one mean, and a variable of one strategy was no difference."""
    slow = MACHINE | {"cpu_capability": "AVX2", "variables": "ATEN_CPU_CAPABILITY=avx2"}
    for half, met in ((asked("single", ranks=1), MACHINE), (asked(), MACHINE), (asked(), slow)):
        add(tmp_path, half, MET | met | {"world_size": 1})
    results = load_set(tmp_path)
    over = {group.label: results.baseline_of(group) for group in results.groups if group.strategy == "ddp"}
    assert [base and base.label for base in over.values()] == ["single", None]
    assert "variables ATEN_CPU_CAPABILITY=avx2" in [*over][1]


def test_a_published_host_is_not_known_elsewhere():
    """Protects the comparison of a published set with a new one: "host 1" is a name within its set."""
    one, two, mine, yours = (
        Identity(asked(), MET | {"host": host}) for host in ("host 1", "host 2", "0123456789ab", "ba9876543210")
    )
    assert differing_fields([one, two]) == differing_fields([mine, yours]) == ["host"]
    assert differing_fields([one, mine]) == differing_fields([yours, two]) == []


def test_auto_and_what_it_becomes_are_one_group(tmp_path):
    """Protects from two halves of one measurement, also where both have the same rounds."""
    met = MET | {"decoder": "nvimgcodec", "workers": 0}
    for repeat in (1, 2):
        add(tmp_path, asked(decoder="auto", workers="auto"), met, repeat=repeat)
        add(tmp_path, asked(decoder="nvimgcodec", workers=0), met, repeat=repeat)
    add(tmp_path, asked(decoder="pillow", workers=0), met | {"decoder": "pillow"})
    add(tmp_path, asked(decoder="nvimgcodec", workers=0), None, status="failed", repeat=3)
    results = load_set(tmp_path)
    assert {group.label: group.status_counts for group in results.groups} == {
        "ddp, decoder nvimgcodec": {"ok": 4, "failed": 1},
        "ddp, decoder pillow": {"ok": 1},
    }


def test_derived_fields_are_named_where_nothing_else_separates_groups(tmp_path):
    """Protects short labels: ranks say it, world_size and shards follow; alone they are named, and so are twins."""
    for ranks in (1, 2):
        add(
            tmp_path / "a", asked(ranks=ranks), MET | {"world_size": ranks, "num_shards": ranks, "backend": f"b{ranks}"}
        )
    assert set(labels(tmp_path / "a")) == {"ddp, ranks 1", "ddp, ranks 2"}
    for shards in (1, 2):
        add(tmp_path / "b", asked(), MET | {"num_shards": shards})
    assert set(labels(tmp_path / "b")) == {"ddp, num_shards 1", "ddp, num_shards 2"}
    for precision in ("bf16", "fp32"):
        add(tmp_path / "c", asked(), MET | {"precision": precision})
    assert set(labels(tmp_path / "c")) == {"ddp, precision resolved bf16", "ddp, precision resolved fp32"}


def test_a_run_without_resolved_settings_joins_the_group_of_its_request(tmp_path):
    """Protects "2 ok, 1 failed": a killed run has no second half; a skipped strategy is a group of its own."""
    add(tmp_path, asked(lr=0.2), None, status="timeout")
    add(tmp_path, asked())
    add(tmp_path, asked(lr=0.2))
    add(tmp_path, asked(), {"commit": "abc", "local_changes": "x"}, status="failed")
    add(tmp_path, asked("apex_ddp"), None, status="skipped")
    groups = {group.label: group.status_counts for group in load_set(tmp_path).groups}
    assert groups == {
        "ddp, lr 0.1": {"ok": 1, "failed": 1},
        "ddp, lr 0.2": {"ok": 1, "timeout": 1},
        "apex_ddp": {"skipped": 1},
    }


def test_two_models_are_not_pooled(tmp_path):
    """The first wrong number: two CONFIGs, one of them with norm: group, were one row, "4 ok", and one mean."""
    rates = {"batch": 200.0, "group": 100.0}
    for norm in ("batch", "group"):
        for repeat in (1, 2):
            half = asked("single", ranks=1, config=f"{norm}.yaml", norm=norm)
            add(tmp_path, half, repeat=repeat, images_per_s=rates[norm], arch="resnet50", world_size=1)
    groups = {group.label: group for group in load_set(tmp_path).groups}
    assert {label: group.throughput.value for label, group in groups.items()} == pytest.approx(
        {"single, norm batch": 200, "single, norm group": 100}
    )


def test_the_baseline_has_the_same_settings(tmp_path):
    """Protects x single: ranks and a strategy's own options may differ, the model may not."""
    for norm in ("batch", "group"):
        add(tmp_path, asked("single", ranks=1, norm=norm), MET | {"world_size": 1, "num_shards": 1})
    add(tmp_path, asked(norm="group", bucket_cap_mb=5.0), MET | {"num_shards": 2})
    add(tmp_path, asked("horovod_ddp"), MET | {"horovod": "0.28.1"})
    add(tmp_path, asked("slurm", seed=3))
    results = load_set(tmp_path)
    bases = {group.strategy: results.baseline_of(group) for group in results.groups}
    assert bases["ddp"].label == "single, norm group" and bases["horovod_ddp"].label == "single, norm batch"
    assert bases["slurm"] is None and bases["single"] is None


@pytest.mark.parametrize(("ranks", "nodes", "also"), [(2, 1, {"ranks": 1}), (4, 2, {"threads_per_rank": 2})])
def test_of_several_baselines_it_is_the_one_that_was_asked_the_same(tmp_path, ranks, nodes, also):
    """Protects x single of two numbers of ranks in one set, and of a strategy on two nodes, whose baseline has one."""
    alone = {"device": "cuda", "world_size": 1, "num_shards": 1, "precision": "fp32"}
    for own in ({}, also):
        add(tmp_path, asked("single", **own), alone)
    add(tmp_path, asked(ranks=ranks, nodes=nodes), alone | {"world_size": ranks, "num_shards": ranks})
    results = load_set(tmp_path)
    (group,) = results.timed_groups_of("ddp")
    base = results.baseline_of(group).identity.requested
    assert (base["ranks"], base["nodes"], base["threads_per_rank"]) == (2, 1, 1)


def bases(folder):
    """Label of the baseline of each group with one, by the group's label."""
    results = load_set(folder)
    found = {group.label: results.baseline_of(group) for group in results.groups}
    return {label: base.label for label, base in found.items() if base}


def marks(folder):
    """What stands beside the ratio of each group that has a baseline."""
    results = load_set(folder)
    return {group.label: over_which_baseline(results, group) for group in results.groups if results.baseline_of(group)}


def test_a_speed_up_is_over_the_same_precision(tmp_path):
    """Protects x single: it is of how the work is divided, and never of the arithmetic, whoever asked for it."""
    for precision in ("fp32", "bf16"):
        add(tmp_path, asked("single", precision=precision), MET | {"precision": precision})
    add(tmp_path, asked("ddp", precision="tf32"), MET | {"precision": "tf32"})
    add(tmp_path, asked("ddp_spawn", precision="bf16"), MET | {"precision": "bf16"})
    add(tmp_path, asked("ddp_amp"), MET | {"precision": "bf16"})
    add(tmp_path, asked("slurm"))
    assert bases(tmp_path) == {"ddp_spawn": "single, bf16", "ddp_amp": "single, bf16", "slurm": "single, fp32"}
    assert marks(tmp_path)["slurm"] == ", over single, fp32"


def test_the_plain_baseline_keeps_its_name_and_no_other_is_one(tmp_path):
    """Protects tables of bench-all, which adds the baseline in bf16 and on all cores."""
    add(tmp_path, asked("single"))
    add(tmp_path, asked("single", precision="bf16"), MET | {"precision": "bf16"})
    add(tmp_path, asked("single") | {"threads_per_rank": 2})
    add(tmp_path, asked("ddp"))
    add(tmp_path, asked("ddp_amp"), MET | {"precision": "bf16"})
    (tmp_path / "environment.json").write_text('{"num_cores": 2}')
    assert [*labels(tmp_path)] == ["single", "single, bf16", "single, all cores", "ddp", "ddp_amp"]
    assert bases(tmp_path) == {"ddp": "single", "ddp_amp": "single, bf16"}
    assert marks(tmp_path) == {"ddp": "", "ddp_amp": ", over single, bf16"}
    add(tmp_path / "alone", asked("single") | {"threads_per_rank": 2})
    add(tmp_path / "alone", asked("ddp"))
    assert bases(tmp_path / "alone") == {}, "all cores are no baseline of one rank's share"


def aa_set(folder, again):
    """Five rounds of single, of single under a second name with other throughputs, and of ddp."""
    for number, (first, second) in enumerate(zip((100.0, 102.0, 101.0, 99.0, 100.0), again, strict=True), 1):
        add(folder, asked("single"), images_per_s=first, repeat=number)
        add(folder, asked("single", label="again"), images_per_s=second, repeat=number)
        add(folder, asked("ddp"), images_per_s=2 * first - number % 2, repeat=number)
    return load_set(folder)


def test_an_a_a_comparison_is_of_the_baseline_and_no_baseline_itself(tmp_path):
    """Protects A/A: two groups, one family, and no strategy of its own."""
    results = aa_set(tmp_path / "same", (101.0, 100.5, 101.5, 99.5, 98.5))
    assert [group.label for group in results.groups] == ["single", "single, again", "ddp"]
    assert results.baseline_label_of == {"single, again": "single", "ddp": "single"}
    assert [group.label for group in results.rankable_groups] == ["single", "ddp"]
    assert results.speedups["single, again"].verdict == "no difference seen"
    assert find_answer(results).fastest_sentence.startswith("ddp is the fastest in fp32: ")


def test_a_speed_up_in_fp16_is_over_one_rank_of_what_can_train_in_it(tmp_path):
    """Protects x single on GPUs without bf16: the baseline has no gradient scaler, and its fp32 is another work."""
    met = MET | {"precision": "fp16"}
    add(tmp_path, asked("single"))
    add(tmp_path, asked("ddp_amp", 1), met | {"world_size": 1})
    add(tmp_path, asked("ddp_amp", 4), met | {"world_size": 4})
    add(tmp_path, asked("apex_ddp", 4), MET | {"precision": "apex-O1", "world_size": 4})
    assert bases(tmp_path) == dict.fromkeys(("ddp_amp, ranks 4", "apex_ddp"), "ddp_amp, ranks 1")


def test_batches_a_device_are_compared_and_other_batches_are_not(tmp_path):
    """Protects weak scaling, and that it is the only place where two batches meet in one ratio."""
    weak = {"global_batch": 0, "batch_per_device": 16}
    add(tmp_path / "weak", asked("single", **weak), MET | {"global_batch": 16})
    add(tmp_path / "weak", asked("ddp", **weak), MET | {"global_batch": 32})
    add(tmp_path / "weak", asked("slurm", **weak | {"batch_per_device": 8}), MET | {"global_batch": 16})
    assert bases(tmp_path / "weak") == {"ddp": "single"}
    add(tmp_path / "strong", asked("single", global_batch=16))
    add(tmp_path / "strong", asked("ddp", global_batch=32))
    assert bases(tmp_path / "strong") == {}


def test_a_row_whose_settings_are_lost_is_a_group_of_its_own(tmp_path, capsys):
    add(tmp_path, asked())
    for repeat in (1, 2):
        add(tmp_path, asked(norm="group"), repeat=repeat)
    lines = (tmp_path / "settings.csv").read_text().splitlines(keepends=True)
    (tmp_path / "settings.csv").write_text("".join(lines[:-1]))
    assert sorted(labels(tmp_path).values()) == [1, 2] and "ddp" in labels(tmp_path)
    assert capsys.readouterr().err.splitlines()[-1].count("settings.csv lacks the hash") == 1


def test_a_run_that_is_there_twice_counts_once(tmp_path):
    """As where two sets were joined by hand."""
    add(tmp_path, asked())
    rows = (tmp_path / "runs.csv").read_text()
    (tmp_path / "runs.csv").write_text(rows + rows.splitlines(keepends=True)[-1])
    assert labels(tmp_path) == {"ddp": 1}


def test_an_hour_without_runs_begins_another_session_and_its_rounds_are_not_paired(tmp_path):
    """`make bench-ddp` a week later has round 1 again. Mutant: a long run that counts as a pause."""
    hours = {"01:00": 7200, "03:30": 10, "05:00": 10, "": float("nan")}
    rows = {"started_at": [hour and f"2026-01-02T{hour}:00+00:00" for hour in hours], "wall_s": [*hours.values()]}
    assert session_numbers(pandas.DataFrame(rows)).tolist() == [0, 0, 1, 0]
    for strategy, day in (("single", 1), ("ddp", 8)):
        add(tmp_path, asked(strategy), started_at=f"2026-01-0{day}T03:04:05+00:00")
    assert load_set(tmp_path).speedups["ddp"].num_rounds == 0


def test_all_ratios_of_a_set_are_one_family(tmp_path):
    """Protects sentences on the fastest, which is picked after looking: every comparable pair has its share."""
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
