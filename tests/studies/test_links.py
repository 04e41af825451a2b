"""The link model against cases worked by hand, and a fit that finds what was planted.

.venv/bin/python -m pytest tests/studies/test_links.py
"""

import numpy
import pytest

from benchmarks.common.system.errors import UserError
from scripts.studies.allreduce.links import (
    LINKS_COLUMNS,
    Link,
    bandwidths,
    fit_link,
    hierarchical,
    links_row,
    read_links,
    ring,
    tree,
)
from scripts.studies.allreduce.uncertain_value import UncertainValue, exact, summarize_draws

LINK = Link(latency_s=1e-3, bytes_per_s=1e6)


def test_a_ring_by_hand():
    """4 devices, 1 MB: 6 messages of 250 kB, each 1 ms + 250 ms."""
    assert ring(1e6, 4, LINK) == pytest.approx(6 * (0.001 + 0.25))
    assert ring(1e6, 2, LINK) == pytest.approx(2 * (0.001 + 0.5))
    assert ring(1e6, 1, LINK) == 0


def test_a_tree_by_hand():
    """8 devices: 3 levels up and 3 down, and all bytes twice; 5 devices need 3 levels as well."""
    assert tree(1e6, 8, LINK) == pytest.approx(6 * 0.001 + 2.0)
    assert tree(1e6, 5, LINK) == tree(1e6, 8, LINK)
    assert tree(1e6, 1, LINK) == 0


def test_a_hierarchy_by_hand():
    """2 nodes of 4: the ring within a node, and a ring of 2 over a quarter of the bytes, on the slower link."""
    slow = Link(5e-3, 1e5)
    within, across = 6 * (0.001 + 0.25), 2 * (0.005 + 125_000 / 1e5)
    assert hierarchical(1e6, 4, 2, LINK, slow) == pytest.approx(within + across)
    assert hierarchical(1e6, 4, 2, LINK, slow, tree) == pytest.approx(within + 2 * 0.005 + 2 * 250_000 / 1e5)


def test_bandwidths_are_those_of_nccl_tests():
    """1 GB in 0.1 s: 10 GB/s; over 2 ranks the bus carries as much, over 8 ranks 7/4 of it."""
    assert bandwidths(1e9, 0.1, 2) == pytest.approx((1e10, 1e10))
    assert bandwidths(1e9, 0.1, 8) == pytest.approx((1e10, 1.75e10))


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_fit_finds_the_link_that_was_planted(ranks):
    """Protects alpha and beta from the number of ranks: a ring's times give its link back, noise an interval."""
    rng = numpy.random.default_rng(0)
    planted, sizes = Link(5e-5, 2e9), [2**power for power in range(10, 29, 2)]
    clean = numpy.array([ring(size, ranks, planted) for size in sizes])
    seconds = clean * numpy.exp(0.02 * rng.standard_normal((10, len(sizes))))
    fit = fit_link("gloo", ranks, sizes, seconds, 0.4 * seconds)
    for known, value in ((fit.latency_s, 5e-5), (fit.bytes_per_s, 2e9)):
        assert known.low < value < known.high and known.value == pytest.approx(value, rel=0.03)
    assert fit.busy.value == pytest.approx(0.4)


def test_sizes_too_small_to_tell_leave_a_link_that_can_be_read():
    """Protects a short bench-allreduce: times that fall with size had a bandwidth without end, which predict refused.
    Mutant: s_per_byte without its least."""
    seconds = numpy.array([[1e-3, 9e-4, 8e-4], [1e-3, 1e-3, 9e-4]])
    fit = fit_link("gloo", 2, [1024, 4096, 16384], seconds, seconds)
    assert numpy.isfinite([fit.bytes_per_s.low, fit.bytes_per_s.value, fit.bytes_per_s.high]).all()


def test_one_round_has_no_interval():
    with pytest.raises(UserError, match="2 or more"):
        fit_link("gloo", 2, [1024], numpy.ones((1, 1)), numpy.ones((1, 1)))


@pytest.mark.parametrize(
    "planted",
    [
        UncertainValue(1.0, 0.8, 1.25),
        UncertainValue(4.0, 2.7, 14.0),
        UncertainValue(1.0, 1.0, 3.0),
        UncertainValue(0.3, 0.0, 1.0),
    ],
    ids=str,
)
def test_draws_have_the_interval_that_they_are_drawn_from(planted):
    """Also where the number is not in the middle of it, or it reaches 0; half of the draws are below the number."""
    draws = numpy.concatenate([planted.draw(numpy.random.default_rng(seed)) for seed in range(20)])
    known = summarize_draws(draws)
    assert known.value == planted.value and draws.min() >= 0
    assert (known.low, known.high) == pytest.approx((planted.low, planted.high), rel=0.05, abs=0.02)
    assert numpy.median(draws) == pytest.approx(planted.value, rel=0.05)


def test_an_exact_number_is_drawn_as_it_is():
    assert (exact(0.0).draw(numpy.random.default_rng(0)) == 0).all()
    assert (exact(3.0).draw(numpy.random.default_rng(0)) == 3).all()


def link_file(path, **changes):
    known = {"latency_s": 1e-4, "bytes_per_s": 1e9, "busy": 0.5}
    row = {"path": "gloo", "ranks": 2}
    for name, value in known.items():
        row |= {name: value, f"{name}_low": value, f"{name}_high": value}
    row |= changes
    path.write_text(",".join(LINKS_COLUMNS) + "\n" + ",".join(str(row[name]) for name in LINKS_COLUMNS) + "\n")
    return path


def test_a_link_file_is_read_back(tmp_path):
    fit = read_links(link_file(tmp_path / "links.csv"))["gloo"]
    assert fit.bytes_per_s == exact(1e9) and fit.busy == exact(0.5)
    assert links_row(fit).keys() == set(LINKS_COLUMNS)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"bytes_per_s": 0}, "line 2: bytes_per_s is 0"),
        ({"bytes_per_s_low": -1}, "bytes_per_s"),
        ({"bytes_per_s": "fast"}, "bytes_per_s is no number"),
        ({"latency_s": "nan"}, "latency_s is no number"),
        ({"busy_high": 2}, "busy from 0 to 1"),
        ({"busy_low": -0.1}, "busy from 0 to 1"),
        ({"busy_low": 0.6}, r"busy is 0.5, outside of its interval \[0.6, 0.5\]"),
        ({"ranks": ""}, "line 2: ranks is ''"),
        ({"ranks": "two"}, "ranks is 'two'"),
        ({"ranks": 1}, "ranks is '1', not a number from 2 on"),
        ({"latency_s": 2e-4}, "latency_s is 0.0002, outside of its interval"),
    ],
)
def test_an_impossible_link_is_refused(tmp_path, changes, says):
    """Protects from a division by nothing: the line, what is wrong, and what to do."""
    with pytest.raises(UserError, match=says) as refused:
        read_links(link_file(tmp_path / "links.csv", **changes))
    assert "./bench study allreduce" in str(refused.value)


def test_a_missing_link_file_says_what_makes_one(tmp_path):
    with pytest.raises(UserError, match=r"\./bench study allreduce"):
        read_links(tmp_path / "links.csv")
    (tmp_path / "links.csv").write_bytes(b"path,ranks\n\xff,2\n")
    with pytest.raises(UserError, match=r"is no table.*utf-8"):
        read_links(tmp_path / "links.csv")
    (tmp_path / "links.csv").write_text("path,ranks\ngloo,2\n")
    with pytest.raises(UserError, match="no column latency_s"):
        read_links(tmp_path / "links.csv")
