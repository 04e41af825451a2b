"""./bench study overhead: real launches."""

import re
from pathlib import Path

import pytest

from benchmarks.common.errors import UserError
from scripts.studies import overhead
from scripts.studies.options import OverheadOptions


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
