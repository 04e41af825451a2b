"""The reference reads as the loader does, bit for bit: with every decoder, and of every kind of image."""

import dataclasses

import pytest
import torch
from hard_images import HARD, write_hard
from support import loaders

from benchmarks.common.config import Config
from benchmarks.common.images import DECODERS, import_problem
from scripts.data import pack
from scripts.verify.reference_images import decode, labelled_images, training_batch

CPU, STEPS = torch.device("cpu"), 2
HERE = [
    pytest.param(name, marks=pytest.mark.skipif(bool(import_problem(name)), reason=str(import_problem(name))))
    for name in DECODERS
]


@pytest.fixture(scope="module")
def hard_data(tmp_path_factory):
    return write_hard(tmp_path_factory.mktemp("hard data"))


@pytest.mark.parametrize("source", [*HERE, "packed"])
@pytest.mark.parametrize("augment", [True, False])
def test_the_reference_reads_every_image_as_the_loader_does(source, augment, hard_data, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a cache"))
    monkeypatch.setenv("PACKED", str(tmp_path / "packed"))
    fields = {"loader": "packed"} if source == "packed" else {"decoder": source}
    config = Config(data=str(hard_data), image_size=64, global_batch=len(HARD), steps=STEPS, workers=0)
    config = dataclasses.replace(config, augment=augment, **fields)
    if source == "packed":
        pack.main(pack.PackOptions(str(hard_data)))
    train, val = loaders(**vars(config))
    met = dataclasses.replace(config, decoder=train.resolved["decoder"])
    for step, (images, target) in enumerate(train):
        expected, expected_target = training_batch(met, 0, step, CPU)
        differing = (images != expected).flatten(1).any(1).nonzero().flatten().tolist()
        assert not differing and torch.equal(target, expected_target), differing
    ((images, target),) = val
    of_val = labelled_images(hard_data / "val")
    expected, expected_target = decode(met, of_val, [(number, None) for number in range(len(HARD))], CPU)
    differing = [of_val[n][0].name for n in (images != expected).flatten(1).any(1).nonzero().flatten()]
    assert not differing and torch.equal(target, expected_target)
