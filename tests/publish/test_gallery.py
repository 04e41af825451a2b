"""The gallery: its figures and prices, its links, and its filters in a real browser.

.venv/bin/python -m pytest tests/publish/test_gallery.py
"""

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest
from result_sets import change, write_set

from scripts.pages.report_tables import table_rows
from scripts.publish import gallery, manifest
from scripts.publish.publishable import RULE
from scripts.sets.result_set import load_set
from scripts.studies.decide.training_cost import read_prices

EVIL = "<img src=x onerror=alert(1)>\"'&"
FIGURES = gallery.GALLERY_COLUMNS[gallery.GALLERY_COLUMNS.index("J/image") + 1 :]
NAMES = ("cpu2_a", "cpu2 b & <i>'c'", "cpu2_c")


def publish(folder: Path, **columns) -> Path:
    """A small set as ./bench publish leaves one, for what the gallery asks of it."""
    write_set(folder, **columns)
    shutil.rmtree(folder / "logs")
    (folder / "published.json").write_text(json.dumps({"rule": RULE, "at": f"2026-11-0{len(folder.name) % 9}"}))
    (folder / "report.html").write_text(f"<title>report of {folder.name.replace('<', '&lt;')}</title>")
    manifest.write_manifest(folder, load_set(folder))
    return folder


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """Three sets, of two machines and two precisions; one tells its energy, one is named by an attacker."""
    folder = tmp_path_factory.mktemp("results") / "published"
    publish(folder / NAMES[0], energy_j_per_image=2.5, precision="fp32")
    publish(folder / NAMES[1], device_name=EVIL, precision="fp32")
    publish(folder / NAMES[2], speeds={"single": 1000.0, "ddp": 1900.0}, precision="bf16")
    return folder


@pytest.fixture
def own(published, tmp_path):
    return shutil.copytree(published, tmp_path / "published")


def make(published: Path, price: str = "", expected: int = 0) -> str:
    """The page of the sets in a folder, beside it."""
    output = published.parent / "gallery.html"
    assert gallery.main(gallery.GalleryOptions(published, output, price)) == expected
    return output.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def page(published):
    return make(published, "3.60")


def cells(html: str) -> list[dict[str, str]]:
    """Each row of the table as text by its column, whitespace as one space."""
    found = []
    for row in re.findall(r"<tr[^>]* data-.*?</tr>", html, re.DOTALL):
        pairs = re.findall(r'<td[^>]*data-label="([^"]*)">(.*?)</td>', row, re.DOTALL)
        texts = {name: " ".join(re.sub(r"<[^>]*>", " ", cell).split()) for name, cell in pairs}
        found.append(texts | {"strategy": re.search(r"<th[^>]*>(.*?)</th>", row)[1], "set": row})
    return found


def test_false_alarms_of_a_a_comparisons_are_counted_over_all_sets():
    """Protects the promise of 1 in 20: undecided comparisons are no successes."""
    assert gallery.describe_aa_of_all(["no verdict"]) == ""
    found = gallery.describe_aa_of_all(["no verdict", "no difference seen", "slower", "faster"])
    assert "3 comparisons" in found and "seen in 2" in found


@pytest.mark.medium
def test_figures_are_the_report_s_and_prices_are_worked_out_from_them(published, page):
    """Protects whoever decides by money. By hand: 3.60 an hour is 0.001 a second; mutant: 60 for 3600 in the price."""
    rows = cells(page)
    assert len(rows) == 6
    row = next(each for each in rows if each["strategy"] == "single" and each["precision"] == "bf16")
    results = load_set(published / NAMES[2])
    rate = results.timed_groups_of("single")[0].throughput
    message = next(each for each in table_rows(results) if each["strategy"] == "single")
    assert (row["images/s"], row["x single"]) == (message["images/s"], message["x single"])
    number = {name: float(text.partition("[")[0].replace(",", "")) for name, text in row.items() if name in FIGURES}
    assert number["1,000 images / unit of money"] == pytest.approx(rate.value, rel=5e-3)
    assert number["epoch, s"] == pytest.approx(1_281_167 / rate.value, rel=2e-3)
    assert number["epoch, cost"] == pytest.approx(1_281_167 / rate.value / 1000, rel=5e-3)
    assert number["90 epochs, s"] == pytest.approx(90 * 1_281_167 / rate.value, rel=2e-3)
    assert number["90 epochs, cost"] == pytest.approx(90 * 1_281_167 / rate.value / 1000, rel=5e-3)
    low, high = re.search(r"\[(.*), (.*)\]", row["epoch, s"]).groups()  # the slowest rate is the longest epoch
    assert float(high.replace(",", "")) == pytest.approx(1_281_167 / rate.low, rel=2e-3)
    assert float(low.replace(",", "")) == pytest.approx(1_281_167 / rate.high, rel=2e-3)
    assert {row["images"] for row in rows} == {"2 classes, 40 training and 23 validation images"}
    assert {row["J/image"] for row in rows} == {"2.5 [2.5, 2.5]", ""}, "what was not measured is empty, not 0"


@pytest.mark.medium
def test_nodes_are_paid_for_each(own):
    """Protects a cluster's cost. Mutant: nodes left out of the price."""

    def doubled(frame):
        frame.loc[frame.strategy == "ddp", "nodes"] = "2"
        return frame

    before = {row["strategy"]: row for row in cells(make(own, "3.60")) if row["precision"] == "bf16"}
    change(own / NAMES[2], "runs", doubled)
    manifest.write_manifest(own / NAMES[2], load_set(own / NAMES[2]))
    after = {row["strategy"]: row for row in cells(make(own, "3.60")) if row["precision"] == "bf16"}
    cost = [float(each["ddp"]["epoch, cost"].split()[0]) for each in (before, after)]
    assert cost[1] == pytest.approx(2 * cost[0], rel=1e-2) and before["single"] == after["single"]
    assert after["ddp"]["devices"] == "2 on 2 nodes"


@pytest.mark.medium
def test_without_a_price_there_are_no_costs(own):
    html = make(own)
    assert not any("cost" in name or "money" in name for row in cells(html) for name in row)
    assert "./bench gallery --price-per-hour" in html


def test_a_price_for_each_set():
    names = ["a", "b", "c"]
    assert read_prices(["a=1", "c=2.5"], names, "--price-per-hour") == {"a": 1.0, "c": 2.5}
    assert read_prices(["0.4"], names, "--price-per-hour") == dict.fromkeys(names, 0.4)
    assert read_prices([], names, "--price-per-hour") == {}


@pytest.mark.medium
def test_the_repository_s_own_sets_make_a_page(tmp_path):
    """Every set that is published is shown, whatever rule let it in."""
    html = (tmp_path / "gallery.html", gallery.main(gallery.GalleryOptions(output=tmp_path / "gallery.html")))[
        0
    ].read_text()
    assert (
        all(path.name in html for path in gallery.find_sets(gallery.GalleryOptions.published))
        and "Left out" not in html
    )


class Links(HTMLParser):
    def __init__(self, html):
        super().__init__()
        self.hrefs, self.ids, self.loaded = [], set(), []
        self.feed(html)

    def handle_starttag(self, tag, pairs):
        pairs = dict(pairs)
        self.ids |= {pairs["id"]} if "id" in pairs else set()
        self.hrefs += [pairs["href"]] if tag == "a" else []
        self.loaded += [tag for name in ("src", "srcset", "onerror", "onload") if name in pairs]
        self.loaded += [tag] if tag in ("link", "img", "iframe", "object") else []


def test_the_page_is_self_contained_and_every_link_leads_somewhere(published, page):
    """Protects a page that is sent by mail, and every row's set, proof and command."""
    found = Links(page)
    assert not found.loaded and not re.search(r"https?:|//[a-z]|url\(|@import", page)
    assert len([href for href in found.hrefs if href.startswith("#again-")]) == 6
    for href in found.hrefs:
        if href.startswith("#"):
            assert href[1:] in found.ids, href
        else:
            assert (published.parent / unquote(href)).is_file(), href
    assert "./bench reproduce " in page and "--strategies single" in page and "--strategies ddp" in page


def test_names_are_escaped(page):
    assert "<img" not in page and "<i>" not in page and "&lt;img src=x onerror=alert(1)&gt;" in page


def test_without_javascript_it_is_a_plain_table(page):
    """Rows are there and shown as they are written; the form, which would do nothing, is not."""
    assert page.count('<tr role="row" data-') == 6 and not re.search(r"<tr[^>]*hidden", page)
    assert '<form id="filters" hidden>' in page


# --- in a browser -------------------------------------------------------------------------------------------------

browser = pytest.mark.skipif(not shutil.which("chromium"), reason="needs chromium; apt-get install chromium")


def browse(path: Path, tmp_path: Path) -> str:
    """The page's DOM after its scripts, from headless Chromium."""
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=4000", "--dump-dom", path.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=120).stdout


PROBE = """<script>
const seen = () => rows.filter(row => row.getClientRects().length).length;
const names = () => [...document.querySelectorAll("tr.set")].filter(row => row.getClientRects().length).length;
const said = [innerWidth, document.documentElement.scrollWidth, form.getClientRects().length, seen()];
for (const [name, value] of CHOICES) {
  form.elements[name].value = value;
  form.elements[name].dispatchEvent(new Event("change", {bubbles: true}));
  said.push(seen(), names(), document.getElementById("count").value);
}
form.querySelector("button").click();
const hrefs = [...document.querySelectorAll("tr[data-set] a")].map(each => each.href);
setTimeout(() => { parent.document.title = JSON.stringify([...said, seen(), hrefs]); }, 100);
</script></body>"""


@browser
@pytest.mark.parametrize("width", [390, pytest.param(1200, marks=pytest.mark.medium)])
@pytest.mark.medium
def test_the_filters_and_the_page_s_width_in_a_browser(published, page, tmp_path, width):
    """Protects what a reader clicks, on a phone too. Mutant: `===` for `!==` in the filter shows the other rows."""
    choices = [("precision", "fp32"), ("strategy", "ddp"), ("hardware", EVIL), ("precision", "bf16")]
    inner = page.replace("</body>", PROBE.replace("CHOICES", json.dumps(choices).replace("<", "\\u003c")))
    inner = inner.replace("&", "&amp;").replace('"', "&quot;")
    path = published.parent / f"frame {width}.html"  # beside the page, so that links lead where its own lead
    path.write_text(f'<iframe style="width: {width}px; height: 900px; border: 0" srcdoc="{inner}"></iframe>')
    title = re.search(r"<title>(.*?)</title>", browse(path, tmp_path), re.DOTALL)[1].replace("&amp;", "&")
    inner_width, scroll_width, form_shown, num_rows, *message, after_reset, hrefs = json.loads(title)
    assert inner_width == width and scroll_width <= width and form_shown and num_rows == 6
    assert message == [4, 2, "4 of 6 rows", 2, 2, "2 of 6 rows", 1, 1, "1 of 6 rows", 0, 0, "0 of 6 rows"], "rows, sets"
    assert after_reset == 6
    files = [Path(unquote(href.removeprefix("file://").partition("#")[0])) for href in hrefs if "again" not in href]
    assert len(files) == 12 and all(path.is_file() for path in files)


@browser
@pytest.mark.medium
def test_a_click_opens_the_set_and_shows_the_command(published, page, tmp_path):
    """The first row's links, followed by a real browser: the set's report, and the place of its command."""
    click = "<script>document.querySelectorAll('tr[data-set] a')[{number}].click()</script>"
    set_page, again = published.parent / "set.html", published.parent / "again.html"
    set_page.write_text(page.replace("</body>", click.format(number=0)))
    assert "<title>report of " in browse(set_page, tmp_path)
    message = "document.title = document.querySelector(':target').textContent"
    message = f"<script>addEventListener('hashchange', () => {{ {message} }})</script>"
    again.write_text(page.replace("</body>", message + click.format(number=2)))
    title = re.search(r"<title>(.*?)</title>", browse(again, tmp_path), re.DOTALL)[1]
    assert re.match(r"\./bench reproduce .* --strategies (single|ddp)$", title), title
