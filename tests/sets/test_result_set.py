"""What a run is decides with which it is pooled, by what it is labelled, and what it is compared with.

.venv/bin/python -m pytest tests/sets/test_result_set.py
"""

import dataclasses
import json
from pathlib import Path

import pytest

from benchmarks.common.config.config import FIELD_TYPES, FIELDS, Config
from benchmarks.common.config.settings import NOT_COMPARED, READERS, requested_settings, settings_hash
from benchmarks.common.store.results import add_settings, append_rows
from scripts.pages.headline import headline
from scripts.pages.report_tables import describe_aa
from scripts.sets.identity import Identity, differing_fields
from scripts.sets.recorded_settings import parse_flags
from scripts.sets.result_set import load_set, same_hash_other_settings
from scripts.sets.strategy_cells import over_which_baseline

OLD = Path(__file__).parents[1] / "fixtures" / "old_schema"
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


def another(name):
    """A value of a configuration field that is not its default."""
    expected, default = FIELD_TYPES[name], getattr(Config(), name)
    if expected is bool:
        return not default
    if type(default) in (int, float):
        return default + 1
    if name == "cut":  # a number, or one of two words
        return 3
    choices = getattr(expected, "__args__", (f"{default}x",))
    return next(choice for choice in choices if choice not in (default, "auto"))


@pytest.mark.parametrize("name", [*FIELDS, "a field of the future"])
def test_runs_that_differ_in_a_field_are_two_groups_or_it_does_not_count(tmp_path, name):
    """Protects every mean. Seen to fail with norm and seed left out of Identity.fields."""
    value = another(name) if name in FIELDS else [1, 2]
    strategy = READERS.get(name, ["ddp"])[0]
    for half in (asked(strategy), asked(strategy, **{name: value}), asked(strategy)):
        add(tmp_path, half)
    if name in NOT_COMPARED:
        assert labels(tmp_path) == {"ddp": 3}
    else:
        found = labels(tmp_path)
        if name == "label":  # its value is the name
            assert found == {"ddp": 2, "ddp, again": 1}
            return
        assert sorted(found.values()) == [1, 2]
        if isinstance(value, bool):  # the default has the plain name
            assert found == {strategy: 2, f"{strategy}, {name if value else f'no {name}'}": 1}
        elif name in ("precision", "memory_format"):  # the value says what it is
            assert f"{strategy}, {value}" in found and all(label.count(", ") == 1 for label in found)
        else:
            assert all(label.startswith(f"{strategy}, {name} ") for label in found)
            assert not any(", " in label.removeprefix(f"{strategy}, ").replace("[1, 2]", "") for label in found), found


@pytest.mark.parametrize("name", READERS)
def test_an_option_that_a_strategy_does_not_read_is_no_setting_of_its_runs(tmp_path, name):
    """Protects `bench-all ARGS="--compression fp16"`: only Horovod's runs are others, the rest stay one group."""
    for round, half in enumerate((asked("single"), asked("single", **{name: another(name)}))):
        add(tmp_path, half, repeat=round + 1)
    assert labels(tmp_path) == {"single": 2}


@pytest.mark.parametrize("name", ["ranks", "nodes", "threads_per_rank", "fingerprint"])
def test_where_and_on_what_count_too(tmp_path, name):
    add(tmp_path, asked())
    add(tmp_path, asked(**{name: 7}))
    assert set(labels(tmp_path)) == {f"ddp, {name} {asked()[name]}", f"ddp, {name} 7"}


@pytest.mark.parametrize("name", [*MET, "num_shards", "a library's version"])
def test_resolved_settings_separate_runs(tmp_path, name):
    """Two commits are two groups, and so are a commit and the same with local changes."""
    add(tmp_path, asked())
    add(tmp_path, asked(), MET | {name: "other"})
    assert len(labels(tmp_path)) == 2


MACHINE = {"num_cores": 2, "cpu_flags": "ab", "cpu_capability": "AVX512", "kernel": "6.1", "host": "0123456789ab"}
MACHINE |= {"gpu_driver": "580.1", "nccl": "2.27.3", "nccl_conf": "none", "variables": "none"}


@pytest.mark.parametrize("name", [*MACHINE, "contents"])
def test_an_older_runs_machine_is_unknown_and_no_mismatch(tmp_path, name):
    """Protects old sets: a run that did not record a field is with the one group that may be its own; where there are
    two, with neither. Mutants: an absent field is a value; the older run joins the first of two groups."""
    other = MACHINE | {name: "other"}
    add(tmp_path, asked(contents="9-of-9-a"), MET | MACHINE)
    add(tmp_path, asked(), repeat=2)
    assert labels(tmp_path) == {"ddp": 2}
    images = {"contents": "9-of-9-b"} if name == "contents" else {"contents": "9-of-9-a"}
    add(tmp_path, asked(**images), MET | (MACHINE if name == "contents" else other), repeat=3)
    assert sorted(labels(tmp_path).values()) == [1, 1, 1]


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
    """Protects from two halves of one measurement, also where both have the same rounds.
    Mutant: a contradiction is a round twice in a group, however it was requested."""
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
    assert not results.contradictions


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
    # without settings, the names of the two files keep them apart
    old = tmp_path / "old"
    old.mkdir()
    for n, norm in enumerate(rates):
        append_rows(old, "runs", [{"run_id": f"{n}", "strategy": "single", "status": "ok", "config": norm}])
    assert set(labels(old)) == {"single, config batch", "single, config group"}


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


# --- bad input -----------------------------------------------------------------------------------------------------


def write_json(folder, run_id, **content):
    path = folder / "logs" / run_id / "settings.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(content))


def test_a_lost_hash_is_taken_from_the_runs_folder(tmp_path, capsys):
    for repeat, norm in enumerate(("batch", "group", "batch"), 1):
        run_id = add(tmp_path, asked(norm=norm), repeat=repeat)
        write_json(tmp_path, run_id, schema=1, asked=asked(norm=norm), met=MET)
    lines = (tmp_path / "settings.csv").read_text().splitlines(keepends=True)
    (tmp_path / "settings.csv").write_text("".join(lines[:-1]))
    assert labels(tmp_path) == {"ddp, norm batch": 2, "ddp, norm group": 1}
    output = capsys.readouterr().err
    assert output.count("\n") == 1 and "settings.csv lacks the hash" in output and "taken from logs" in output


@pytest.mark.parametrize("left", ["nothing", "a newer schema", "half a file", "no seeds"])
def test_a_row_without_settings_is_kept_by_its_columns(tmp_path, capsys, left):
    add(tmp_path, asked())
    run_id = add(tmp_path, asked(), status="failed", arch="resnet50")
    ok_id = add(tmp_path, asked(norm="group"), arch="resnet50", device_name="Test CPU")
    text = (tmp_path / "runs.csv").read_text().splitlines(keepends=True)
    text[2:] = [line.replace(line.split(",")[2], "", 1) for line in text[2:]]
    (tmp_path / "runs.csv").write_text("".join(text))
    if left == "a newer schema":
        write_json(tmp_path, run_id, schema=99, asked={}, expected={})
        write_json(tmp_path, ok_id, schema=99, asked={}, expected={})
    elif left == "half a file":
        for name in (run_id, ok_id):
            (tmp_path / "logs" / name).mkdir(parents=True)
            (tmp_path / "logs" / name / "settings.json").write_text('{"schema": 1, "ask')
    elif left == "no seeds":  # a number where a list is expected ended the report in a traceback
        for name in (run_id, ok_id):
            write_json(tmp_path, name, schema=1, asked=asked() | {"seeds": 5}, met=MET)
    assert labels(tmp_path) == {"ddp": 2, "ddp, settings not recorded": 1}
    output = capsys.readouterr().err
    assert output.count("\n") == 1 and "(2 runs, such as run-2)" in output
    words = {"nothing": "there is no logs", "a newer schema": "of schema 99", "half a file": "cannot be read"}
    words["no seeds"] = "no value of a setting"
    assert words[left] in output


def test_one_hash_for_two_settings_is_reported_and_nothing_pooled(tmp_path, capsys):
    for norm in ("batch", "group"):
        run_id = add(tmp_path / "a", asked(norm=norm))
        write_json(tmp_path / "a", run_id, schema=1, asked=asked(norm=norm), met=MET)
    names = [settings_hash(asked(norm=norm), MET) for norm in ("batch", "group")]
    for table in ("runs", "settings"):
        path = tmp_path / "a" / f"{table}.csv"
        path.write_text(path.read_text().replace(names[1], names[0]))
    assert labels(tmp_path / "a") == {"ddp, norm batch": 1, "ddp, norm group": 1}
    assert "different settings under one hash" in capsys.readouterr().err
    for name in ("b", "c"):
        add(tmp_path / name, asked(norm="batch" if name == "b" else "group"))
    path = tmp_path / "c" / "settings.csv"
    path.write_text(path.read_text().replace(names[1], names[0]))
    sets = [load_set(tmp_path / name) for name in ("b", "c")]
    (sentence,) = same_hash_other_settings(sets)
    assert names[0] in sentence and same_hash_other_settings(sets[:1] * 2) == []


def test_a_run_id_cannot_choose_a_folder(tmp_path, capsys):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "settings.json").write_text(json.dumps({"schema": 1, "asked": asked(seed=9)}))
    row = {"schema": 2, "run_id": str(elsewhere), "strategy": "ddp", "status": "ok", "images_per_s": 1.0}
    append_rows(tmp_path, "runs", [row])
    (group,) = load_set(tmp_path).groups
    assert "seed" not in group.settings and not group.identity.recorded


# --- older schemas -------------------------------------------------------------------------------------------------


def test_a_set_of_the_old_schema_loads_by_its_columns_and_says_so(capsys):
    """A few rows of the published set, as it was written by schema 1: same groups, same numbers."""
    groups = {group.label: group for group in load_set(OLD).groups}
    assert {label: group.status_counts for label, group in groups.items()} == {
        "single": {"ok": 2},
        "ddp": {"ok": 2},
        "apex_ddp": {"skipped": 1},
        "model_parallel, split_size 2": {"ok": 2},
        "model_parallel, split_size 4": {"ok": 2},
    }
    assert groups["single"].throughput.value == pytest.approx(176.6, rel=0.1)
    assert groups["ddp"].settings["config"] == "configs/smoke.yaml" and groups["ddp"].settings["world_size"] == 2
    output = capsys.readouterr().err
    assert output.count("\n") == 1 and "older schema" in output and "9 runs" in output


def test_an_old_set_that_is_continued_keeps_old_and_new_runs_apart(tmp_path):
    for name in ("runs", "windows"):
        (tmp_path / f"{name}.csv").write_bytes((OLD / f"{name}.csv").read_bytes())
    add(tmp_path, asked())
    add(tmp_path, asked(seed=1))
    add(tmp_path, asked("single", ranks=1))
    old = {label: n for label, n in labels(tmp_path).items() if label.endswith(", settings not recorded")}
    new = {
        label: n for label, n in labels(tmp_path).items() if label.startswith(("single", "ddp")) and label not in old
    }
    assert sorted(old.values()) == [2, 2] and sorted(new.values()) == [1, 1, 1]
    assert ["seed 0" in label for label in new] == ["ddp" in label and "seed 1" not in label for label in new]


@pytest.mark.parametrize(
    ("options", "field", "value"),
    [
        ("--seed 1 --split-size 4", "split_size", "4"),
        ("--split_size=4", "split_size", "4"),
        ("--split-size 4 --split-size 8", "split_size", "8"),
        ("--split-size-x 4", "split_size", None),
        ("", "split_size", None),
        ("--augment", "augment", "yes"),
        ("--augment --no-augment", "augment", "no"),
    ],
)
def test_the_flags_of_old_rows_are_read_as_a_command_line_is(options, field, value):
    # The last one wins, - and _ are the same.
    assert parse_flags(options).get(field) == value


def test_the_set_owns_its_tables_and_reads_each_once(tmp_path, monkeypatch):
    add(tmp_path, asked())
    (tmp_path / "environment.json").write_text('{"num_cores": 2, "packages": "no"}')
    results = load_set(tmp_path)
    assert results.table("telemetry").empty and results.table("telemetry") is results.table("telemetry")
    assert results.environment == {"num_cores": 2}
    assert dataclasses.replace(results, name="x").table("runs") is results.table("runs")


def test_a_second_study_in_a_set_leaves_the_first_its_baseline(tmp_path):
    """Protects speed-ups: with two baselines, each group has the one that was asked the same."""
    for ranks in (2, 4):
        for strategy in ("single", "ddp"):
            add(tmp_path, asked(strategy, ranks))
    results = load_set(tmp_path)
    assert [results.baseline_of(group).settings["ranks"] for group in results.timed_groups_of("ddp")] == [2, 4]


def bases(folder):
    """Label of the baseline of each group with one, by the group's label."""
    results = load_set(folder)
    found = {group.label: results.baseline_of(group) for group in results.groups}
    return {label: base.label for label, base in found.items() if base}


def marks(folder):
    """What stands beside the ratio of each group that has a baseline."""
    results = load_set(folder)
    return {group.label: over_which_baseline(results, group) for group in results.groups if results.baseline_of(group)}


def test_of_few_runs_mixed_precision_is_marked_too(tmp_path):
    """Protects `./bench run single ddp_amp`: two of its three groups are in bf16, and the plain `single` is not.
    Mutant: a mark for the precision of the fewest groups alone."""
    add(tmp_path, asked("single"))
    add(tmp_path, asked("single", precision="bf16"), MET | {"precision": "bf16"})
    add(tmp_path, asked("ddp_amp"), MET | {"precision": "bf16"})
    assert marks(tmp_path) == {"ddp_amp": "over bf16 single"}
    add(tmp_path / "one", asked("single", precision="bf16"), MET | {"precision": "bf16"})
    add(tmp_path / "one", asked("ddp", precision="bf16"), MET | {"precision": "bf16"})
    assert marks(tmp_path / "one") == {"ddp": ""}, "a set of one precision"


def test_a_speed_up_is_over_the_same_precision(tmp_path):
    """Protects x single: it is of how the work is divided, and never of the arithmetic, whoever asked for it."""
    for precision in ("fp32", "bf16"):
        add(tmp_path, asked("single", precision=precision), MET | {"precision": precision})
    add(tmp_path, asked("ddp", precision="tf32"), MET | {"precision": "tf32"})
    add(tmp_path, asked("ddp_spawn", precision="bf16"), MET | {"precision": "bf16"})
    add(tmp_path, asked("ddp_amp"), MET | {"precision": "bf16"})
    add(tmp_path, asked("slurm"))
    over_bf16 = dict.fromkeys(("ddp_spawn", "ddp_amp"), "single, bf16")
    assert bases(tmp_path) == over_bf16 | {"slurm": "single, fp32"}
    assert marks(tmp_path) == dict.fromkeys(over_bf16, "over bf16 single") | {"slurm": "over fp32 single"}


def test_the_plain_baseline_keeps_its_name_and_no_other_is_one(tmp_path):
    """Protects tables of bench-all, which adds the baseline in bf16 and on all cores. Mutants: labels without `others`;
    a baseline with any number of threads."""
    add(tmp_path, asked("single"))
    add(tmp_path, asked("single", precision="bf16"), MET | {"precision": "bf16"})
    add(tmp_path, asked("single") | {"threads_per_rank": 2})
    add(tmp_path, asked("ddp"))
    add(tmp_path, asked("ddp_amp"), MET | {"precision": "bf16"})
    (tmp_path / "environment.json").write_text('{"num_cores": 2}')
    assert [*labels(tmp_path)] == ["single", "single, bf16", "single, all cores", "ddp", "ddp_amp"]
    assert bases(tmp_path) == {"ddp": "single", "ddp_amp": "single, bf16"}
    assert marks(tmp_path) == {"ddp": "", "ddp_amp": "over bf16 single"}
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
    """Protects A/A: two groups, one family, and no strategy of its own. Mutants: a label
    that does not separate; one that makes a baseline; one that is ranked."""
    results = aa_set(tmp_path / "same", (101.0, 100.5, 101.5, 99.5, 98.5))
    assert [group.label for group in results.groups] == ["single", "single, again", "ddp"]
    assert results.baseline_label_of == {"single, again": "single", "ddp": "single"}
    assert [group.label for group in results.rankable_groups] == ["single", "ddp"]
    assert [*results.aa_comparisons] == ["single, again"] and [*results.speedups_without_aa] == ["ddp"]
    said = "the settings are equal, and no difference was seen; the minimum detectable effect is "
    assert said in describe_aa(results)
    assert {over_which_baseline(results, group) for group in results.groups} == {""}, "all are in one precision"
    assert headline(results)[0].startswith("In fp32, ddp is the fastest strategy, 1.99 [")
    assert not any("again" in sentence for sentence in headline(results))


def test_an_a_a_comparison_that_finds_a_difference_is_a_false_alarm(tmp_path):
    results = aa_set(tmp_path, (120.0, 122.0, 121.5, 119.0, 120.5))
    assert describe_aa(results).endswith("a false alarm, or an effect of the order of runs.")
    assert "single" in headline(results)[0] and "again" not in headline(results)[0]
    assert describe_aa(load_set(OLD)) == ""


def test_runs_from_before_labels_are_runs_without_one(tmp_path):
    """Protects sets that are continued: old runs are pooled with new ones, and not with those under a second name."""
    old = {name: value for name, value in asked("single").items() if name != "label"}
    add(tmp_path, old)
    add(tmp_path, asked("single"))
    add(tmp_path, asked("single", label="again"))
    assert labels(tmp_path) == {"single": 2, "single, again": 1}


def test_a_speed_up_in_fp16_is_over_one_rank_of_what_can_train_in_it(tmp_path):
    """Protects x single on GPUs without bf16: the baseline has no gradient scaler, and its fp32 is another work."""
    met = MET | {"precision": "fp16"}
    add(tmp_path, asked("single"))
    add(tmp_path, asked("ddp_amp", 1), met | {"world_size": 1})
    add(tmp_path, asked("ddp_amp", 4), met | {"world_size": 4})
    add(tmp_path, asked("apex_ddp", 4), MET | {"precision": "apex-O1", "world_size": 4})
    assert bases(tmp_path) == dict.fromkeys(("ddp_amp, ranks 4", "apex_ddp"), "ddp_amp, ranks 1")
    assert marks(tmp_path) == dict.fromkeys(("ddp_amp, ranks 4", "apex_ddp"), "over ddp_amp, ranks 1")


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


@pytest.mark.parametrize(
    "facts",
    [
        {"platform": True, "python": ["3"], "collect_env": {}},
        {"num_cores": True, "memory_gb": "much"},
        {"num_cores": 10**30, "memory_gb": float("nan")},
        {"packages": {"torch": [1]}},
        {"measured_peak": {"device_name": "CPU", "tflops": {"fp32": "fast"}}},
        {"measured_peak": {"device_name": "CPU", "tflops": {"fp32": 0}}},
        {"measured_peak": {"device_name": "CPU", "tflops": [1], "threads": 1}},
        {"measured_peak": {"device_name": "CPU", "tflops": {"fp32": 1}, "threads": "all"}},
        {"measured_peak": {"device_name": "CPU", "tflops": {"fp32": 1}, "passes": {"fp32": 1}}},
        {"measured_peak": {"device_name": "CPU", "tflops": {"fp32": 1}, "passes": [{"fp32": -1}]}},
    ],
)
def test_facts_of_the_machine_that_no_suite_writes_are_left_out(tmp_path, facts):
    """Protects reports of somebody else's set: texts are joined, and MFU divides by the peak. Mutants: each condition
    of FACT_CHECKS and of _is_peak left out."""
    (tmp_path / "environment.json").write_text(json.dumps({"schema": 2} | facts))
    assert load_set(tmp_path).environment == {"schema": 2}
