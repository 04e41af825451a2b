"""The chart of ./bench study loaders: every loader with its rate, n and interval, every cause with its share.

.venv/bin/python -m pytest tests/studies/test_loaders_chart.py
"""

import pandas

from scripts.studies.loaders.chart import loaders_chart

RATES = pandas.DataFrame(
    [
        (1, "torchvision, Pillow", 5, 600.0, 580.0, 620.0, 1.0, None),
        (1, "ours, nvimgcodec", 5, 1100.0, 1050.0, 1150.0, 1.83, 0.97),
        (1, "bare nvimgcodec loop", 5, 1130.0, 1100.0, 1160.0, 1.88, None),
        (1, "DALI, CPU", 2, 650.0, None, None, None, None),
        (2, "torchvision, Pillow", 5, 1200.0, 1100.0, 1300.0, 1.0, None),
        (2, "ours, packed full", 5, 9000.0, 8800.0, 9200.0, 7.5, None),
    ],
    columns=["cores", "loader", "n", "images_per_s", "low", "high", "times_plain", "times_bare"],
).assign(image_size=224, machine="AMD EPYC, 2 cores, Linux")
COSTS = pandas.DataFrame(
    [
        (name, cause, spent * scale, 0.97 - 0.02 * number, 20)
        for name, scale in (("folder, nvimgcodec", 5), ("packed, full", 1))
        for number, (cause, spent) in enumerate(
            [("bare loop", 180.0), ("seeding", 2.0), ("crop parameters", 5.0), ("collate", 12.0), ("queue", -1.0)]
        )
    ],
    columns=["loader", "cause", "us_per_image", "bare_share", "n"],
)


def test_the_chart_has_every_rate_with_n_and_starts_at_zero():
    figure = loaders_chart(RATES, COSTS)
    one, two, causes = figure.axes
    words = [text.get_text() for axes in figure.axes for text in axes.texts]
    assert "1,100, 1.83x, 0.97 of its bare loop  (n = 5)" in words and "650.0  (n = 2)" in words
    assert [len(one.patches), len(two.patches)] == [4, 2]
    assert all(axes.get_xlim()[0] == 0 for axes in figure.axes)
    assert "AMD EPYC, 2 cores" in figure.get_suptitle() and "224 px" in figure.get_suptitle()
    assert [text.get_text() for text in causes.get_legend().get_texts()] == list(COSTS.cause.unique())
    assert min(patch.get_width() for patch in causes.patches) == 0  # below zero is noise, not a bar to the left
    assert "bare loop: 89%; queue: -5.0" in words  # but it is said


def test_an_interval_of_two_windows_does_not_squeeze_the_bars():
    """Protects the bars: two windows have an interval to 3,600,000 images/s. Mutant: the axis takes all of it."""
    wide = RATES.copy()
    wide.loc[5, ["low", "high"]] = 22.0, 3.6e6
    assert loaders_chart(wide, COSTS).axes[1].get_xlim()[1] < 3 * 9000.0
