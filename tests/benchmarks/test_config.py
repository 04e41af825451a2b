"""The one place where a user's settings come in: mistakes are named, nothing is executed, later settings win."""

import dataclasses

import pytest
from support import ROOT

from benchmarks.common.config import (
    Config,
    load_config,
    read_yaml,
    resolve_global_batch,
    resolve_memory_format,
    resolve_precision,
)
from benchmarks.common.errors import UserError
from benchmarks.common.run_folder import RunFolder


@pytest.fixture
def yaml_file(tmp_path):
    """yaml_file(text): the path of a configuration with that text."""

    def write(text: str) -> str:
        path = tmp_path / "a file.yaml"
        path.write_text(text)
        return str(path)

    return write


def test_the_configurations_that_we_ship_load():
    for path in (ROOT / "configs").glob("*.yaml"):
        assert load_config(["--config", str(path)]).config == str(path) and read_yaml(str(path))


def test_a_file_overrides_defaults_and_flags_override_the_file(yaml_file):
    path = yaml_file("lr: 1\nglobal_batch: 64\naugment: false\nnorm: group\nweight_decay: 1e-3\ncut: 3\n")
    config = load_config(["--config", path, "--global-batch", "8", "--global-batch", "16", "--augment", "--resume"])
    assert (config.lr, config.global_batch, config.augment, config.norm, config.cut) == (1.0, 16, True, "group", 3)
    assert config.weight_decay == 1e-3 and config.resume is True  # YAML 1.1 reads 1e-3 as text
    assert config.momentum == Config().momentum
    assert load_config([f"--config={path}", "--cut", "auto"]).cut == "auto"


@pytest.mark.parametrize(
    "text, named",
    [
        ("global_bach: 3", "`global_batch`"),
        ("arch: resnet5O", "resnet50"),
        ("cut: middle", "cut is 'middle'"),
        ("global_batch: 32.0", "global_batch is 32.0"),
        ("resume: 1", "resume is 1"),
        ("epochs:", "epochs is None"),
        ("- lr", "a list"),
        ("lr: [", "plain YAML"),
    ],
)
def test_a_mistake_in_a_file_is_named(yaml_file, text, named):
    path = yaml_file(text)
    with pytest.raises(UserError) as error:
        read_yaml(path)
    assert named in str(error.value) and path in str(error.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    (tmp_path / "latin.yaml").write_bytes(b"data: \xe9")
    for path in (tmp_path / "missing.yaml", tmp_path, tmp_path / "latin.yaml"):
        with pytest.raises(UserError, match=str(path)):
            load_config(["--config", str(path)])


def test_a_configuration_of_others_runs_no_code(yaml_file, tmp_path):
    """Promise 1 of SECURITY.md."""
    victim = tmp_path / "executed"
    with pytest.raises(UserError):
        read_yaml(yaml_file(f"lr: !!python/object/apply:os.mkdir ['{victim}']"))
    assert not victim.exists()


@pytest.mark.parametrize("flags, near", [(["--arch", "resnet5O"], "resnet50"), (["--global-batch", "many"], "many")])
def test_a_mistake_in_a_flag_ends_with_2_and_is_named(flags, near, capsys):
    with pytest.raises(SystemExit) as error:
        load_config(flags)
    assert error.value.code == 2 and near in capsys.readouterr().err


def test_a_flag_that_is_none_gets_the_nearest():
    with pytest.raises(UserError, match=r"--global-bach.*global_batch"):
        load_config(["--global-bach=3"])


@pytest.mark.parametrize("flag, value", [("epochs", "0"), ("workers", "-1"), ("lr", "nan"), ("timeout-s", "inf")])
def test_a_number_out_of_range_is_refused(flag, value):
    with pytest.raises(UserError, match=flag.replace("-", "_")):
        load_config([f"--{flag}", value])


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
    config = load_config(["--config", yaml_file(text), *flags])
    assert (config.global_batch, config.batch_per_device) == batches
    assert resolve_global_batch(config, 3).global_batch == (batches[0] or 3 * batches[1])


@pytest.mark.parametrize("text", ["global_batch: 64\nbatch_per_device: 16", "global_batch: 0"])
def test_both_batches_or_none_are_refused(yaml_file, text):
    with pytest.raises(UserError, match="global_batch or batch_per_device"):
        load_config(["--config", yaml_file(text)])


CPU, VOLTA, AMPERE = None, (7, 0), (8, 0)


@pytest.mark.parametrize(
    ("asked", "scales_gradients", "on_cpu", "on_volta", "on_ampere"),
    [
        ("auto", False, "fp32", "fp32", "bf16"),
        ("auto", True, "bf16", "fp16", "bf16"),
        ("fp32", False, "fp32", "fp32", "fp32"),
        ("fp32", True, "bf16", "fp16", "bf16"),
        ("tf32", False, UserError, UserError, "tf32"),
        ("bf16", False, "bf16", UserError, "bf16"),
        ("fp16", False, UserError, UserError, UserError),
        ("fp16", True, UserError, "fp16", "fp16"),
    ],
)
def test_what_a_precision_comes_to(asked, scales_gradients, on_cpu, on_volta, on_ampere):
    for capability, expected in ((CPU, on_cpu), (VOLTA, on_volta), (AMPERE, on_ampere)):
        if expected is UserError:
            with pytest.raises(UserError, match=asked):
                resolve_precision(asked, capability, scales_gradients)
        else:
            assert resolve_precision(asked, capability, scales_gradients) == expected


def test_tensor_cores_get_channels_last_unless_a_layout_is_asked_for():
    found = {precision: resolve_memory_format("auto", precision) for precision in ("fp32", "tf32", "bf16", "fp16")}
    assert found == {"fp32": "contiguous"} | dict.fromkeys(("tf32", "bf16", "fp16"), "channels_last")
    assert resolve_memory_format("contiguous", "bf16") == "contiguous"


def test_adamw_has_defaults_of_its_own(tmp_path):
    """Protects who adds `--arch` to a command for ResNets from SGD's learning rate, with which AdamW diverges; and who
    chose values for AdamW from losing them."""

    def loaded(*flags: object) -> tuple[float, int, float]:
        config = load_config([*map(str, flags)])
        return config.lr, config.lr_batch, config.weight_decay

    of_resnet, of_none = tmp_path / "resnet.yaml", tmp_path / "none.yaml"
    of_resnet.write_text("arch: resnet18\nlr: 0.5\nweight_decay: 0.25\n")
    of_none.write_text("lr: 0.002\n")
    assert loaded("--arch", "resnet18") == (0.1, 256, 1e-4)
    assert loaded("--arch", "vit_b_16") == (3e-3, 4096, 0.3) and loaded("--arch=convnext_tiny") == (4e-3, 4096, 0.05)
    assert loaded("--arch", "vit_b_16", "--lr", "0.1", "--weight-decay", "1e-4") == (0.1, 4096, 1e-4)
    assert loaded("--config", of_resnet, "--arch", "vit_b_16") == (3e-3, 4096, 0.3)
    assert loaded("--config", of_resnet, "--arch", "resnet50") == (0.5, 256, 0.25)
    assert loaded("--config", of_none, "--arch", "vit_b_16") == (2e-3, 4096, 0.3)


@pytest.mark.parametrize(
    "flags, named",
    [
        ("--arch vit_b_16 --norm group", "norm group"),
        ("--arch vit_b_16 --image-size 56", "use 64"),
        ("--arch convnext_tiny --image-size 31", "at least 32"),
    ],
)
def test_what_a_model_does_not_have_is_refused(flags, named):
    with pytest.raises(UserError, match=named):
        load_config(flags.split())


@pytest.mark.parametrize(
    "values",
    [
        {"arch": "vit_b_16", "lr": 0.1, "lr_batch": 256, "weight_decay": 1e-4},  # a ResNet's defaults, typed
        {"data": 'a "b" #c: é', "lr": 1 / 3, "global_batch": 0, "batch_per_device": 3, "cut": 2, "resume": True},
    ],
)
def test_a_script_reads_the_configuration_that_the_plan_wrote(tmp_path, values):
    """To the last bit: what was resolved at the plan is what the script trains."""
    config = Config(**values, config="my own.yaml")
    folder = RunFolder.create(tmp_path, "ddp", 1)
    folder.write_plan(config, {"round": 1})
    read = load_config(["--config", str(folder.plan)])
    assert dataclasses.replace(read, config="my own.yaml") == config
