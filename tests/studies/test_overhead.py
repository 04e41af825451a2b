"""./bench study overhead: an interval over pairs of launches, and real launches."""

import re
from pathlib import Path

import pytest

from benchmarks.common.errors import UserError
from scripts.studies import overhead
from scripts.studies.options import OverheadOptions

EXAMPLE = "epoch {}: loss 2.000, top-1 9.0 %, {:.1f} images/s"
SUITE = "epoch {} train  loss 2.0000  top-1   9.00 %  top-5  50.00 %  160 images in {:.2f} s"


def test_speeds_are_of_whole_epochs_without_the_first_and_launches_take_turns(monkeypatch, capsys):
    ratios, started = [1.25, 0.8, 1.0, 1.25, 0.8], []

    def run_ranks(program, num_ranks, folder):
        started.append(folder.name)
        if folder.name.startswith("A"):
            return "\n".join(EXAMPLE.format(*each) for each in enumerate([1.0, 100.0, 300.0]))  # 150 over both
        seconds = [99.0, *[160 / (150 * ratios[int(folder.name[-1]) - 1])] * 2]
        return "\n".join(SUITE.format(*each) for each in enumerate(seconds))

    monkeypatch.setattr(overhead, "run_ranks", run_ranks)
    for name, value in {"NPROC": "2", "NUM_GPUS": "0"}.items():
        monkeypatch.setenv(name, value)
    assert overhead.main(OverheadOptions(pairs=5, epochs=2, fail_under=0.98)) == 1  # its lower end is far below
    assert started[:6] == ["A 1", "B 1", "B 2", "A 2", "A 3", "B 3"]
    assert re.search(r"suite / example, images per second: (1\.00|0\.99)\d+ \[", capsys.readouterr().out)


@pytest.mark.launches
def test_real_launches_beside_the_example(tiny_data, tiny_config, monkeypatch, capsys):
    for name, value in {"NPROC": "2", "NUM_GPUS": "0", "THREADS_PER_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tiny_config.parent)  # a user names the file from where they are
    options = OverheadOptions(pairs=2, epochs=1, steps=6, config=tiny_config.name, data=str(tiny_data))
    assert overhead.main(options) == 0
    assert re.search(r"suite / example, images per second: [\d.]+", capsys.readouterr().out)
    vision_transformer = Path(tiny_config).parent / "vit.yaml"
    vision_transformer.write_text("arch: vit_b_16\n")
    with pytest.raises(UserError, match="choose a ResNet"):
        overhead.main(OverheadOptions(config=str(vision_transformer), data=str(tiny_data)))
