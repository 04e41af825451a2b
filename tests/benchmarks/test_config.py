"""The one place where a user's settings come in: mistakes are named, nothing is executed, later settings win.

.venv/bin/python -m pytest tests/benchmarks/test_config.py
"""

import typing

import pytest
from support import ROOT

from benchmarks.common.config import (
    FIELD_TYPES,
    FIELDS,
    LEAST,
    Config,
    load_config,
    read_yaml,
    resolve_global_batch,
    resolve_memory_format,
    resolve_precision,
)
from benchmarks.common.errors import UserError


@pytest.fixture
def yaml_file(tmp_path):
    """yaml_file(text): the path of a configuration with that text."""

    def write(text: str) -> str:
        path = tmp_path / "a file.yaml"
        path.write_text(text)
        return str(path)

    return write


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda path: path.name)
def test_the_configurations_that_we_ship_load(path):
    """Protects users from a renamed field that a file still has."""
    config = load_config(["--config", str(path)])
    assert config.config == str(path)
    assert len(read_yaml(str(path))) >= 5


def test_a_file_overrides_defaults_and_flags_override_the_file(yaml_file):
    """Protects the order: defaults, file, flags, the last flag last."""
    path = yaml_file("lr: 1\nglobal_batch: 64\naugment: false\nnorm: group\nweight_decay: 1e-3\n")
    args = ["--config", path, "--global-batch", "8", "--global-batch", "16", "--augment", "--resume"]
    config = load_config(args)
    assert (config.lr, config.global_batch, config.augment, config.norm) == (1.0, 16, True, "group")
    assert config.weight_decay == 1e-3 and config.resume is True  # YAML 1.1 reads 1e-3 as text
    assert config.momentum == Config().momentum
    assert load_config([f"--config={path}"]).global_batch == 64


@pytest.mark.parametrize(
    "text, message",
    [
        ("global_bach: 3", "unknown key 'global_bach'; did you mean `global_batch`?"),
        ("zzz: 3", "unknown key 'zzz'; ./bench flags lists"),
        ("config: other.yaml", "unknown key 'config'"),  # a file cannot name a file
        ("arch: resnet5O", "arch is 'resnet5O'; did you mean resnet50? it takes resnet18, "),
        ("norm: [batch]", "norm is ['batch']; did you mean batch? it takes batch, group, sync"),
        ("global_batch: 32.0", "global_batch is 32.0; it takes int"),
        ("global_batch: '32'", "global_batch is '32'; it takes int"),
        ("cut: middle", "cut is 'middle'; it takes int, auto"),
        ("global_batch: true", "global_batch is True; it takes int"),
        ("epochs:", "epochs is None; it takes int"),
        ("resume: 1", "resume is 1; it takes bool"),
        ("data: 7", "data is 7; it takes str"),
        ("lr: fast", "lr is 'fast'; it takes float"),
        ("- lr", "must hold `name: value` lines, but holds a list"),
        ("lr: [", "is not plain YAML: "),
    ],
)
def test_a_mistake_in_a_file_is_named(yaml_file, text, message):
    """Protects the reader of the message: the file, the key, and the nearest right one or the allowed values."""
    path = yaml_file(text)
    with pytest.raises(UserError) as error:
        read_yaml(path)
    assert message in str(error.value) and path in str(error.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    (tmp_path / "latin.yaml").write_bytes(b"data: \xe9")
    for path in (tmp_path / "missing.yaml", tmp_path, tmp_path / "latin.yaml"):
        with pytest.raises(UserError, match="cannot read the configuration"):
            load_config(["--config", str(path)])


def test_a_configuration_of_others_runs_no_code(yaml_file, tmp_path):
    """Promise 1 of SECURITY.md."""
    victim = tmp_path / "executed"
    with pytest.raises(UserError, match="is not plain YAML"):
        read_yaml(yaml_file(f"lr: !!python/object/apply:os.mkdir ['{victim}']"))
    assert not victim.exists()


@pytest.mark.parametrize(
    "flags, words",
    [
        (["--arch", "resnet5O"], ["resnet5O", "resnet50"]),
        (["--global-batch", "many"], ["--global-batch", "many"]),
        (["--norm", "sink"], ["sink", "sync"]),
    ],
)
def test_a_mistake_in_a_flag_is_named(flags, words, capsys):
    """Protects the command line as the file: exit code 2, what was wrong, and what is near."""
    with pytest.raises(SystemExit) as error:
        load_config(flags)
    assert error.value.code == 2
    message = capsys.readouterr().err
    assert all(word in message for word in words), message


def test_a_flag_that_is_none_gets_the_nearest():
    with pytest.raises(UserError, match=r"--global-bach.*global_batch"):
        load_config(["--global-bach=3"])


@pytest.mark.medium
def test_every_number_is_held_to_its_least_value():
    """Protects against a new field that takes a negative number of anything, or infinity."""
    numeric = {name for name, kind in FIELD_TYPES.items() if {int, float} & {kind, *typing.get_args(kind)}}
    assert LEAST.keys() <= numeric
    for name in numeric:
        flag, least = "--" + name.replace("_", "-"), LEAST.get(name, 0)
        for value in [str(least - 1)] + (["nan", "inf"] if FIELD_TYPES[name] is float else []):
            with pytest.raises(UserError, match=f"{name} is .* must be at least"):
                load_config([flag, value])
        if name != "global_batch":  # one of the two batches is not 0
            assert getattr(load_config([flag, str(least)]), name) == least


def test_a_value_that_the_strategy_cannot_honour_is_refused():
    """Protects against a setting that is silently ignored, such as SyncBatchNorm under DataParallel."""
    with pytest.raises(UserError, match="cannot honour norm=sync; it takes batch or group"):
        load_config(["--norm", "sync"], norm=("batch", "group"))
    assert load_config(["--norm", "group"], norm=("batch", "group")).norm == "group"


def test_defaults_are_valid_and_every_field_says_what_it_is():
    """Protects --help, and a default outside its own limits."""
    assert load_config([]) == Config()
    source = (ROOT / "benchmarks/common/config.py").read_text()
    for name in FIELDS:
        after = source.split(f"\n    {name}: ")[1].splitlines()
        assert after[1].startswith('    """'), name


@pytest.mark.parametrize(
    ("text", "flags", "batches"),
    [
        ("", [], (256, 0)),
        ("batch_per_device: 16", [], (0, 16)),
        ("batch_per_device: 16", ["--global-batch", "8"], (8, 0)),
        ("global_batch: 64", ["--batch-per-device=4"], (0, 4)),
        ("global_batch: 0\nbatch_per_device: 16", [], (0, 16)),  # as a run's own file has it
    ],
)
def test_one_batch_is_asked_for_and_a_flag_beats_the_file(yaml_file, text, flags, batches):
    """Protects against a batch that is silently another one: the later place wins, and the other option is 0."""
    config = load_config(["--config", str(yaml_file(text)), *flags])
    assert (config.global_batch, config.batch_per_device) == batches
    assert resolve_global_batch(config, 3).global_batch == (batches[0] or 3 * batches[1])


@pytest.mark.parametrize(
    ("text", "flags"),
    [
        ("global_batch: 64\nbatch_per_device: 16", []),
        ("lr: 1", ["--global-batch", "8", "--batch-per-device", "4"]),
        ("global_batch: 0", []),
    ],
)
def test_both_batches_or_none_are_refused(yaml_file, text, flags):
    """Protects the same: nobody guesses which of the two is meant."""
    with pytest.raises(UserError, match="either global_batch or batch_per_device; set one"):
        load_config(["--config", yaml_file(text), *flags])


CPU, VOLTA, AMPERE = None, (7, 0), (8, 0)


@pytest.mark.parametrize(
    ("asked", "mixed", "on_cpu", "on_volta", "on_ampere"),
    [
        ("auto", False, "fp32", "fp32", "bf16"),
        ("auto", True, "bf16", "fp16", "bf16"),
        ("fp32", False, "fp32", "fp32", "fp32"),
        ("fp32", True, "bf16", "fp16", "bf16"),
        ("tf32", False, "needs a GPU", "needs a GPU of compute capability 8", "tf32"),
        ("bf16", False, "bf16", "older ones emulate it", "bf16"),
        ("fp16", False, "gradient scaler", "gradient scaler", "gradient scaler"),
        ("fp16", True, "needs a GPU; use bf16", "fp16", "fp16"),
    ],
)
def test_what_a_precision_comes_to(asked, mixed, on_cpu, on_volta, on_ampere):
    """Protects each row's arithmetic: auto is one rule, and what a device or a script cannot do is refused."""
    for capability, expected in ((CPU, on_cpu), (VOLTA, on_volta), (AMPERE, on_ampere)):
        try:
            met = resolve_precision(asked, capability, mixed)
        except UserError as error:
            assert expected in str(error)
        else:
            assert met == expected


def test_what_a_memory_format_comes_to():
    """Protects GPUs with tensor cores, which want channels_last, and fp32, in which it was slower on a V100."""
    assert Config().memory_format == "auto"
    found = {precision: resolve_memory_format("auto", precision) for precision in ("fp32", "tf32", "bf16", "fp16")}
    assert found == {"fp32": "contiguous"} | dict.fromkeys(("tf32", "bf16", "fp16"), "channels_last")
    assert resolve_memory_format("contiguous", "bf16") == "contiguous"
    assert resolve_memory_format("channels_last", "fp32") == "channels_last"


@pytest.mark.parametrize("cut", ["auto", 3])
def test_a_cut_is_auto_or_a_number(yaml_file, cut):
    path = str(yaml_file(f"cut: {cut}\n"))
    assert load_config(["--config", path]).cut == load_config(["--cut", str(cut)]).cut == cut
    assert load_config([]).cut == "auto"
