"""The gallery: which sets it leaves out and why, and which prices are none.

.venv/bin/python -m pytest tests/publish/test_gallery_refused.py
"""

import json
import re
import shutil

import pytest
from result_sets import change
from support import few_fast
from test_gallery import NAMES, cells, make, publish

from benchmarks.common.system.errors import UserError
from scripts.publish import gallery, manifest
from scripts.publish.passive_page import BROKEN_STYLE, STYLE_SHEET, _strange_things, find_active
from scripts.publish.publishable import RULE
from scripts.publish.readme import PUBLISHED
from scripts.sets.result_set import load_set
from scripts.sets.set_text import UNKNOWN, describe_images
from scripts.studies.decide.training_cost import read_prices

SHOWN = "cpu2-epyc_torch2.15_202611b"


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """Two sets as ./bench publish leaves them."""
    folder = tmp_path_factory.mktemp("results") / "published"
    for name in (NAMES[0], NAMES[2]):
        publish(folder / name)
    return folder


@pytest.fixture
def own(two, tmp_path):
    return shutil.copytree(two, tmp_path / "published")


@pytest.mark.parametrize("name", ["environment.json", "equivalence.csv", "report.html"])
def test_a_set_with_a_link_is_left_out_whatever_rule_it_names(own, capsys, name):
    """Protects files outside of a set from being read out on a page. A set names the rule by which it was let in, and
    the older rules have no manifest. Mutant: links are looked for in the manifest's files only."""
    outside = own.parent / f"private {name}"
    shutil.move(own / NAMES[0] / name, outside)
    (own / NAMES[0] / name).symlink_to(outside)
    lose(manifest.MANIFEST)(own / NAMES[0])
    (own / NAMES[0] / "published.json").write_text('{"rule": 1}')
    assert len(cells(make(own, expected=1))) == 2
    assert f"{name} is a link" in capsys.readouterr().err


def lose(name):
    return lambda folder: (folder / name).unlink()


def spoil(folder):
    path = folder / "runs.csv"
    path.write_text(path.read_text().replace("Test CPU", "Fast CPU"))


def soil(folder):
    change(folder, "runs", lambda frame: frame.assign(dirty="yes"))
    manifest.write_manifest(folder, load_set(folder))


def unlist(folder):
    spoil(folder)
    lose(manifest.MANIFEST)(folder)


def say(**changes):
    """Other things in the manifest, whose checksums are right."""

    def harm(folder):
        found = json.loads((folder / manifest.MANIFEST).read_text())
        (folder / manifest.MANIFEST).write_text(json.dumps(found | changes))

    return harm


def old_and_unreadable(folder):
    """A set of an older rule, without a manifest, whose settings cannot be read."""
    unlist(folder)
    (folder / gallery.MARK).write_text(json.dumps({"rule": 1}))
    lose("settings.csv")(folder)
    (folder / "settings.csv").mkdir()


@pytest.mark.parametrize(
    ("harm", "words"),
    few_fast(
        [
            (lose("runs.csv"), "runs.csv is missing; git checkout"),
            (lose("report.html"), "report.html is missing"),
            (lose("steps.csv"), "steps.csv is missing; git checkout"),
            (spoil, "runs.csv is not what was published (sha256)"),
            (unlist, "manifest.json is missing; git checkout"),
            (soil, "made with local changes, which no commit has"),
            (lambda folder: (folder / "sweep.csv").write_text("strategy\n"), "sweep.csv is not in manifest.json"),
            (say(files={}), "runs.csv is not in manifest.json: it was not published"),
            (say(commit="HEAD"), "manifest.json says commit HEAD, and runs.csv abc"),
            (lambda folder: (folder / "manifest.json").write_text("{"), "manifest.json cannot be read"),
            (
                lambda folder: (folder / "report.html").write_text("<script>x()</script>"),
                "report.html holds &lt;script, which",
            ),
            (old_and_unreadable, "cannot read the results in"),
        ],
        {3, 4, 5, 6},
    ),
)
def test_a_set_that_cannot_be_believed_is_left_out_and_named(own, capsys, harm, words):
    """Protects the page from figures that nobody published, and from one set that takes all others with it. Mutants:
    checksums not compared; dirty sets shown; a manifest needed of no set; files beside the manifest's taken."""
    harm(own / NAMES[0])
    html = make(own, expected=1)
    assert len(cells(html)) == 2 and words in re.search(r"Left out.*?</div>", html, re.DOTALL)[0].replace("&#39;", "'")
    assert f"warning: {NAMES[0]} is left out: " in (output := capsys.readouterr().err)
    assert words.replace("&lt;", "<") in output


def with_settings(half, **changes):
    """Other values in a half of each row's settings."""
    return lambda frame: frame.assign(**{half: [json.dumps(json.loads(cell) | changes) for cell in frame[half]]})


@pytest.mark.parametrize(
    ("table", "harm", "words"),
    few_fast(
        [
            ("settings", with_settings("met", device={}), "line 2, column met: device is {}"),
            ("settings", with_settings("met", device=[1]), "line 2, column met: device is [1]"),
            ("settings", with_settings("met", precision=[1]), "line 2, column met: precision is [1]"),
            ("settings", with_settings("met", precision="x" * 20_000), "line 2, column met: precision is 'xxx"),
            ("settings", with_settings("asked", seeds=5), "line 2, column asked: seeds is 5"),
            ("settings", with_settings("asked", seeds=[{}]), "line 2, column asked: seeds is [{}]"),
            ("settings", with_settings("asked", ranks="two"), "line 2, column asked: ranks is 'two'"),
            ("settings", with_settings("asked", lr=float("inf")), "line 2, column asked: lr is inf"),
            (
                "runs",
                lambda frame: frame.assign(world_size=float("inf")),
                "line 2, column world_size: inf is no number",
            ),
            ("runs", lambda frame: frame.assign(val_samples=float("-inf")), "line 2, column val_samples: -inf is no"),
            ("runs", lambda frame: frame.assign(**{"repeat": 1e300}), "line 2, column repeat: 1e+300 is no number"),
        ],
        {0, 7, 8},
    ),
)
def test_a_set_with_cells_of_other_kinds_is_left_out_by_its_line(own, capsys, table, harm, words):
    """Protects the page from one hostile set, which ended the whole gallery in a traceback, and whoever looks for the
    cell. Mutants: lists for words; numbers without an end."""
    change(own / NAMES[0], table, harm)
    publish_again(own / NAMES[0])
    assert len(cells(make(own, expected=1))) == 2
    assert f"{table}.csv, {words}" in capsys.readouterr().err


def publish_again(folder):
    """With the checksums of what is there now, which an attacker can work out too."""
    found = json.loads((folder / manifest.MANIFEST).read_text())
    (folder / manifest.MANIFEST).write_text(json.dumps(found | {"files": manifest.checksums(folder)}))


def test_a_precision_that_is_a_number_does_not_end_the_gallery(own):
    """Protects the other sets: a number and a word cannot be sorted. Mutant: the cell's own value."""
    change(own / NAMES[0], "settings", with_settings("met", precision=5))
    manifest.write_manifest(own / NAMES[0], load_set(own / NAMES[0]))
    assert len(cells(make(own))) == 4


def test_a_fingerprint_of_thousands_of_digits_is_none(own):
    """Mutant: any number of digits, which Python refuses to read."""
    change(own / NAMES[0], "settings", with_settings("asked", fingerprint=f"{'9' * 5000}-1-1-a"))
    assert describe_images(load_set(own / NAMES[0]).timed_groups) == UNKNOWN


def test_a_mark_that_is_nested_too_deeply_does_not_end_the_gallery(own):
    """Protects the other sets from one whose published.json no reader of JSON reads. Mutant: ValueError alone."""
    (own / NAMES[0] / gallery.MARK).write_text("[" * 200_000)
    assert {path.name for path in gallery.find_sets(own)} == {NAMES[0], NAMES[2]}


def test_no_mistake_in_one_set_ends_the_gallery(own, capsys, monkeypatch):
    """Protects the other sets from what nobody has thought of. Mutant: only errors of the user's."""
    real = gallery.load_set
    monkeypatch.setattr(gallery, "load_set", lambda path: real(path) if path.name != NAMES[0] else [][1])
    assert len(cells(make(own, expected=1))) == 2
    assert "figures cannot be worked out: IndexError" in capsys.readouterr().err


@pytest.mark.parametrize(
    "text",
    [
        "<script>x()</script>",
        "<scr\0ipt>",
        "<SCRIPT src=x>",
        "<img src=x onerror=x()>",
        "<p onclick = x()>",
        '<p title=">" onmouseover=x()>',
        "<a href=javascript:x()>a</a>",
        "<a href='&#106;avascript:x()'>a</a>",
        "<svg><use href='data:image/svg+xml,x#y'/></svg>",
        "<svg><a xlink:href=x><text>a</text></a></svg>",
        "<svg><set attributeName=href to=x /></svg>",
        "<svg/onload=x()>",
        "<svg o\x1b(Bnload=x()>",  # ISO-2022-JP, which a browser may guess: o and nload are one word
        "<iframe srcdoc=x>",
        "<object data=x>",
        "<form action=x>",
        "<base href=x>",
        "<meta http-equiv=refresh content='0;url=x'>",
        "<meta charset=iso-2022-jp>",
        "<link rel=stylesheet href=x>",
        "<style>@import 'x'</style>",
        "<p style='background:url(//x)'>",
        r"<style>@\69mport '//x'</style>",
        r"<style>@\00069 mport '//x'</style>",
        "<style>@\\69\r\nmport '//x'</style>",
        r"<p style='background:u\72 l(//x)'>",
        r"<p style='background:\u\r\l(//x)'>",
        "<p style='background:&#117;rl(//x)'>",
        "<p style='background:&#117rl&lpar;//x)'>",
        r"<p style='background:&#92;75rl(//x)'>",
        r"<svg><rect fill=u\72l(//x) /></svg>",
        "<svg><rect fill='&#x75;rl(//x#y)'/></svg>",
        "<p style='background:image-set(\"//x\" 1x)'>",
        "<p style='background:-webkit-image-set(\"//x\" 1x)'>",
        r"<p style='background:image\2d set(\"//x\" 1x)'>",
        "<style>p { background: src('//x') }</style>",
        "<style>p { background: image('//x') }",
        "<p style='background: cross-fade(\"//x\", red)'>",
        "<style>@font-face { font-family: x }</style>",
        """<p>style="</p><style>/*"*/ p { background: paint(x) }</style>""",
        "<style <p>> p { background: paint(x) }</style>",
        r"<style>p { color: r\65 d }</style>",
        "<a href='#x' ping='//x'>a</a>",
        "<a href='#x' attributionsrc='//x'>a</a>",
        "<svg xml:base='//x'><use href='#x'/></svg>",
        "<!--[if IE]><x><![endif]-->",
        "<?xml-stylesheet href=x?>",
        "<math><mtext></mtext></math>",
        "<custom-element>",
    ],
)
def test_a_report_that_could_run_or_load_something_is_seen(tmp_path, text):
    """Protects who clicks a report in the gallery from somebody else's page. Mutants: each alternative of ACTIVE left
    out; tags by a parser only."""
    page = tmp_path / "report.html"
    page.write_text(f"<!doctype html><html><p>a &lt;script&gt; b</p>{text}")
    assert find_active(page)
    page.write_bytes(f"<html>{text}".encode("utf-16"))
    assert find_active(page)


def test_a_page_of_broken_styles_is_read_in_linear_time():
    """Protects the gallery from one set that would take weeks: each `<style ` was searched for its end in all the rest.
    Mutant: a style's attributes may hold another tag."""
    matched = [
        [*STYLE_SHEET.finditer("<style " * number), *BROKEN_STYLE.finditer("<style " * number)] for number in (2, 9)
    ]
    assert [len(each) for each in matched] == [2, 9]
    assert all(found[0] == "<style" for each in matched for found in each)
    assert next(_strange_things("<style " * 200_000)) == "<style"


@pytest.mark.medium
def test_reports_of_this_suite_run_and_load_nothing():
    """Protects every set of ours from being left out. Mutant: a tag of the template that TAGS lacks."""
    pages = [*PUBLISHED.glob("*/report.html")]
    assert pages and [find_active(page) for page in pages] == [""] * len(pages)


@pytest.mark.medium
def test_a_report_with_backslashes_in_its_commands_is_passive(tmp_path):
    """Protects a set whose ARGS have a backslash. Mutant: backslashes refused outside of styles."""
    page = tmp_path / "report.html"
    page.write_text(f"{(PUBLISHED / SHOWN / 'report.html').read_text()}<pre>ARGS=&#39;--x a\\b@c f(x)&#39;</pre>")
    assert find_active(page) == ""


def test_no_command_is_made_of_a_strange_name(own):
    """Protects who pastes what is printed from a manifest's author. Mutant: the name as it stands."""
    say(files={"runs.csv;touch${IFS}ran": "00", "gone.csv": "00"})(own / NAMES[0])
    faults = manifest.find_faults(own / NAMES[0], manifest.read_manifest(own / NAMES[0]))
    lines = sorted(line for line in faults if "missing" in line)[::-1]
    assert [(line.startswith("gone.csv"), "git checkout" in line) for line in lines] == [(False, False), (True, True)]


@pytest.mark.parametrize("harm", ["no runs.csv", "no manifest", "a torn manifest", "a changed file", "a folder in it"])
def test_no_command_brings_back_files_of_other_sets(own, capsys, harm):
    """Protects uncommitted changes of other sets: git takes the * of a folder's name for every set. And the terminal,
    which a name coloured. Mutants: the command of any name; of any folder in a set; the name as it stands."""
    strange = own / "\x1b[31m*"
    if harm == "a folder in it":
        say(files={"*/gone.csv": "00"})(own / NAMES[0])
        strange = own / NAMES[0]
    else:
        (own / NAMES[0]).rename(strange)
        if harm == "a changed file":
            (strange / "report.html").write_text("<p>other</p>")
        elif harm == "a torn manifest":
            (strange / manifest.MANIFEST).write_text("{")
        else:
            (strange / ("runs.csv" if harm == "no runs.csv" else manifest.MANIFEST)).unlink()
    html, said = make(own, expected=1), capsys.readouterr().err
    assert " is left out: " in said and "\x1b" not in said + html
    assert not [line for line in re.findall("git checkout[^;<]*", said + html) if "*" in line]


def test_what_make_report_adds_is_no_harm(own):
    """report.pdf is made where there is a LaTeX; git and the manifest do not keep it."""
    (own / NAMES[0] / manifest.MADE_LATER).write_text("%PDF")
    (own / NAMES[0] / ".suite").touch()
    assert len(cells(make(own))) == 4


@pytest.mark.parametrize("name", [".suite/evil.svg", "charts/report.pdf"])
def test_a_file_that_only_looks_like_one_of_the_suites_is_said(own, capsys, name):
    """Protects from what no manifest lists. Mutants: a folder of a lock's name; report.pdf anywhere."""
    (own / NAMES[0] / name).parent.mkdir(exist_ok=True)
    (own / NAMES[0] / name).touch()
    make(own, expected=1)
    assert name.split("/")[0] in capsys.readouterr().err


def test_a_hidden_file_is_said(own, capsys):
    """Protects from what no manifest lists: .gitattributes of a set of somebody. Mutant: hidden files left out."""
    (own / NAMES[0] / ".gitattributes").touch()
    make(own, expected=1)
    assert ".gitattributes is hidden, and no published set has such a file" in capsys.readouterr().err


def test_sets_of_the_older_rules_may_lack_a_manifest(own):
    """And the page says so. Mutant: a manifest needed of every set."""
    lose(manifest.MANIFEST)(own / NAMES[0])
    (own / NAMES[0] / gallery.MARK).write_text(json.dumps({"rule": 1, "reason": "older than manifests"}))
    html = make(own)
    assert len(cells(html)) == 4 and "No checksums: older than manifests" in html


def test_the_date_of_a_set_may_be_anything(own):
    """Mutant: dates of two kinds compared, which is a TypeError."""
    (own / NAMES[0] / gallery.MARK).write_text(json.dumps({"rule": 1, "at": 3}))
    assert len(gallery.find_sets(own)) == 2


def test_no_published_set_is_a_mistake(tmp_path):
    with pytest.raises(UserError, match="no set is published in"):
        gallery.find_sets(tmp_path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("cheap", "'cheap' is no price"),
        ("-1", "'-1' is no price"),
        ("0", "'0' is no price"),
        ("nan", "'nan' is no price"),
        ("1e999", "'1e999' is no price"),
        ("1e-323", "'1e-323' is no price"),
        ("1e10", "'1e10' is no price"),
        ("2,50", "'2,50' is no price"),
        ("a=", "'' is no price"),
        ("cpu2_d=1", "no published set has that name; did you mean cpu2_"),
        ("1 2", "one number for all"),
    ],
)
def test_a_price_that_is_none_is_refused(text, words):
    """Protects costs. Mutant: any number over 0, of which 1e-323 an hour is 0 a second."""
    with pytest.raises(UserError, match=re.escape(words)):
        read_prices(text.split(), ["cpu2_a", "cpu2_c"], "--price-per-hour", "published set")


@pytest.mark.medium
def test_no_name_of_a_strategy_brings_options_into_a_command_of_the_gallery(own):
    """Protects whoever pastes a line of the gallery: a set's strategy may have an option for a name, such as the folder
    that the new runs are written to. Mutant: the name as it stands."""
    theirs = lambda frame: frame.assign(strategy=frame.strategy.replace("ddp", "'--results=/home/victim"))  # noqa: E731
    change(own / NAMES[0], "runs", theirs)
    publish_again(own / NAMES[0])
    commands = re.findall(r"<code[^>]*>(.*?)</code>", make(own))
    assert len(commands) == 4 and not [line for line in commands if "victim" in line]
    assert [line for line in commands if line.startswith("# the command of a strategy is left out")]


@pytest.mark.parametrize("table", gallery.LINKED_TABLES)
def test_a_set_with_a_table_that_a_spreadsheet_would_run_is_left_out(own, capsys, table):
    """Protects whoever opens a table that the page links to. Mutant: no look."""
    change(own / NAMES[0], table.removesuffix(".csv"), lambda frame: frame.assign(reason="=HYPERLINK(0)"))
    publish_again(own / NAMES[0])
    assert len(cells(make(own, expected=1))) == 2
    assert f"{table} has a cell that a spreadsheet would run" in capsys.readouterr().err


@pytest.mark.parametrize(
    "spoiled",
    few_fast(
        [
            lambda text: b"\xef\xbb\xbf=1+1," + text.encode(),
            lambda text: b"\xff\xfe" + f"{text}=1+1".encode("utf-16-le"),
            lambda text: f"{text}=1+1".encode("utf-16-le"),
            lambda text: f"{text}\0=1+1".encode(),
            lambda text: f"{text}\xa0".encode("latin-1"),
            lambda text: b"sep=;\nstrategy;=1+1\n" + text.encode(),
            lambda text: b'"SEP=;"\nstrategy;=1+1\n' + text.encode(),
            lambda text: f"{text}x;=1+1\n".encode(),
            lambda text: f'{text}x;""@SUM(A1)\n'.encode(),
            lambda text: f"{text}x\t-1+A1\n".encode(),
            lambda text: f'{text}x, "=HYPERLINK(""x"")"\n'.encode(),
            lambda text: f'{text}x, ",",=HYPERLINK(1),"\n'.encode(),
            lambda text: b"ID;P,\n" + text.encode(),
            lambda text: b' "ID"\n' + text.encode(),
        ],
        {1, 5, 8, 10, 11, 12},
    ),
)
def test_a_table_that_only_a_spreadsheet_reads_otherwise_is_left_out(own, capsys, spoiled):
    """Protects whoever opens a linked table from formulas that a reader of UTF-8 with commas does not see. Mutants: a
    byte order mark, a null character or sep= let through; bytes that are not UTF-8 replaced; commas alone looked at; a
    text that begins with ID, which Excel reads as SYLK with its macros, let through; blanks before a quote, which a
    spreadsheet skips, left in."""
    table = own / NAMES[0] / "equivalence.csv"
    table.write_bytes(spoiled(table.read_text()))
    publish_again(own / NAMES[0])
    assert len(cells(make(own, expected=1))) == 2
    assert "equivalence.csv has a cell that a spreadsheet would run, or another encoding" in capsys.readouterr().err


def test_no_control_character_is_in_the_page(own):
    """Protects whoever prints the page on a terminal, and browsers that take escape codes for an encoding: a folder's
    name and published.json have them. And the other sets from text that has no bytes. Mutant: the page as it stands."""
    lose("runs.csv")(own / NAMES[0])
    (own / NAMES[0]).rename(own / "a\x1b(Bset")
    (own / NAMES[2] / gallery.MARK).write_text(json.dumps({"rule": RULE, "at": "2026\x1b[2J\x9b2J\ud800"}))
    publish_again(own / NAMES[2])
    html = make(own, expected=1)
    assert "a?(Bset" in html and "2026?[2J?2J?" in html
    assert not re.search(r"[\x00-\x08\x0b\x0e-\x1f\x7f-\x9f]", html)
