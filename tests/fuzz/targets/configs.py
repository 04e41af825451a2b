"""A configuration file: values of the right types, or a sentence."""

from pathlib import Path

from fuzz.edits import edited
from hypothesis import strategies as st

from benchmarks.common.config.config import FIELDS, load_config
from benchmarks.common.system.errors import UserError

CONFIGS = Path(__file__).resolve().parents[3] / "configs"
TOKENS = [name.encode() for name in FIELDS]
TOKENS += [
    b"010",
    b"0x1f",
    b"1:30",
    b"1_0",
    b"1e400",
    b".inf",
    b"-.nan",
    b"yes",
    b"~",
    b"null",
    b"''",
    b"-1",
    b"1" * 5000,
]
TOKENS += [b"!!int ''", b"!!bool x", b"!!timestamp x", b"!!binary x", b"!!python/object/apply:os.system ['true']"]
TOKENS += [
    b"!!set {a}",
    b"!!float x",
    b"!!omap [a]",
    b"2026-13-45",
    b"<<: *a",
    b"<<: 1",
    b"&a",
    b"*a",
    b"? [",
    b"- ",
    b"|\n",
]
TOKENS += [b"{" * 400, b"[" * 3000, b"a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a]\nc: [*b,*b,*b,*b,*b]\n"]
TOKENS += [
    b"%YAML 9.9\n---\n",
    b"---\n",
    b"...\n",
    b"\xef\xbb\xbf",
    b"\xff\xfe",
    b"\xe2\x80\xa8",
    b"\t",
    b"\r",
    b"#",
    b"!<x> y",
]


def seeds(folder: Path) -> list[bytes]:
    """The repository's own."""
    return [path.read_bytes() for path in sorted(CONFIGS.glob("*.yaml"))] + [
        b"arch: resnet18\nlr: 1e-1\nworkers: auto\n"
    ]


def inputs(found: list[bytes]) -> st.SearchStrategy[bytes]:
    return edited(found, TOKENS)


def attempt(content: bytes, folder: Path) -> str:
    path = folder / "config.yaml"
    path.write_bytes(content)
    try:
        load_config(["--config", str(path)])
    except UserError as error:
        assert len(str(error)) < 2000, "a message of pages"
        return "refused"
    except SystemExit as end:
        assert end.code == 2
        return "refused"
    return "read"
