"""Settings: mistakes are named, nothing is executed, later ones win."""

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
    """yaml_file(text): its path."""

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
    for path in (tmp_path / "missing.yaml", tmp_path / "latin.yaml"):
        with pytest.raises(UserError, match=str(path)):
            load_config(["--config", str(path)])


def test_a_configuration_of_others_runs_no_code(yaml_file, tmp_path):
    """Promise 1 of SECURITY.md."""
    victim = tmp_path / "executed"
    with pytest.raises(UserError):
        read_yaml(yaml_file(f"lr: !!python/object/apply:os.mkdir ['{victim}']"))
    assert not victim.exists()


def test_a_mistake_in_a_flag_is_named(capsys):
    with pytest.raises(SystemExit) as error:
        load_config(["--arch", "resnet5O"])
    assert error.value.code == 2 and "resnet50" in capsys.readouterr().err
    for flag, named in (("--global-bach=3", "global_batch"), ("--epochs=0", "epochs"), ("--lr=nan", "lr is nan")):
        with pytest.raises(UserError, match=named):
            load_config([flag])


@pytest.mark.parametrize(
    ("text", "flags", "batches"),
    [
        ("batch_per_device: 16", [], (0, 16)),
        ("batch_per_device: 16", ["--global-batch", "8"], (8, 0)),
        ("global_batch: 64", ["--batch-per-device=4"], (0, 4)),
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
        ("fp32", True, "bf16", "fp16", "bf16"),
        ("tf32", False, UserError, UserError, "tf32"),
        ("bf16", False, "bf16", UserError, "bf16"),
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
    """With SGD's learning rate it diverges; and a file's values for AdamW stay."""

    def loaded(*flags: object) -> tuple[float, int, float]:
        config = load_config([*map(str, flags)])
        return config.lr, config.lr_batch, config.weight_decay

    of_resnet, of_none = tmp_path / "resnet.yaml", tmp_path / "none.yaml"
    of_resnet.write_text("arch: resnet18\nlr: 0.5\nweight_decay: 0.25\n")
    of_none.write_text("lr: 0.002\n")
    assert loaded("--arch", "vit_b_16", "--weight-decay", "1e-4") == (3e-3, 4096, 1e-4)
    assert loaded("--config", of_resnet, "--arch", "vit_b_16") == (3e-3, 4096, 0.3)
    assert loaded("--config", of_resnet, "--arch", "resnet50") == (0.5, 256, 0.25)
    assert loaded("--config", of_none, "--arch", "vit_b_16") == (2e-3, 4096, 0.3)


def test_what_a_model_does_not_have_is_refused():
    for flag, named in (("--norm=group", "norm group"), ("--image-size=56", "use 64")):
        with pytest.raises(UserError, match=named):
            load_config(["--arch", "vit_b_16", flag])


def test_a_script_reads_the_configuration_that_the_plan_wrote(tmp_path):
    values = {"arch": "vit_b_16", "lr_batch": 256, "weight_decay": 1e-4}  # a ResNet's defaults, typed
    values |= {"data": 'a "b" #c: é', "lr": 1 / 3, "global_batch": 0, "batch_per_device": 3, "cut": 2, "resume": True}
    config = Config(**values, config="my own.yaml")
    folder = RunFolder.create(tmp_path, "ddp", 1)
    folder.write_plan(config, {"round": 1})
    read = load_config(["--config", str(folder.plan)])
    assert dataclasses.replace(read, config="my own.yaml") == config
