"""What fuzzing has found once stays fixed: every input of tests/fuzz/corpus/, in a child process each target.

.venv/bin/python -m pytest tests/fuzz/test_corpus.py
"""

import ctypes
import importlib
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fuzz import child
from fuzz.child import Child
from fuzz.run import CORPUS, TARGETS, prepared


@pytest.mark.parametrize("name", TARGETS)
def test_inputs_that_were_found_once_end_well(name):
    """Protects what was fixed: a value, a documented error or a warning, and never a traceback or a crash."""
    inputs = sorted((CORPUS / name).glob("*"))
    findings = {}
    with prepared(TARGETS[name]) as (seeds, folder), Child(TARGETS[name].attempt, folder) as one:
        sound = one.ask(seeds[0])
        for path in inputs:
            answer = one.ask(path.read_bytes())
            if answer.finding:
                findings[path.name] = f"{answer.finding}\n{answer.details[-500:]}"
    assert sound.outcome not in ("", "refused"), f"{sound}: a target that refuses what is right tries nothing"
    assert findings == {}


def misbehave(content: bytes, folder: Path) -> str:
    """Does what an input's name says."""
    match content:
        case b"crash":
            ctypes.string_at(0)
        case b"raise":
            raise ArithmeticError("planted")
        case b"program":
            subprocess.run(["true"], check=True)
        case b"socket":
            with socket.socket() as one:
                one.bind(("127.0.0.1", 0))
        case b"write":
            (folder.parent / "outside").write_text("")
        case b"import":
            (folder / "first_import.py").write_text("")
            sys.path.insert(0, str(folder))
            importlib.import_module("first_import")
            return "bytecode" if any(folder.glob("__pycache__")) else "fine"
        case b"hang":
            time.sleep(60)
        case b"memory":
            return str(len(bytearray(os.urandom(1024)) * 2**22))
    return "fine"


@pytest.mark.medium
def test_every_kind_of_finding_is_seen_and_the_next_input_is_tried(tmp_path, monkeypatch):
    """Protects the fuzzers: a harness that misses a crash, a program or a hang finds nothing for ever."""
    (tmp_path / "folder").mkdir()
    monkeypatch.setattr(child, "ANSWER_LIMIT_S", 1.0)
    monkeypatch.setattr(child, "MEMORY_LIMIT_MB", 100)
    seen = {}
    with Child(misbehave, tmp_path / "folder") as one:
        assert one.ask(b"import").outcome == "fine"  # bytecode in a new environment would count as a change outside
        for content in (b"crash", b"raise", b"program", b"socket", b"write", b"hang", b"memory"):
            seen[content.decode()] = one.ask(content).finding
            assert one.ask(b"good").outcome == "fine", content
    assert seen["crash"].startswith("crash: SIGSEGV at") and seen["hang"].startswith("hangs")
    assert seen["raise"].startswith("ArithmeticError at")
    assert seen["program"].startswith("forbidden: starts a program") and "socket" in seen["socket"]
    assert seen["write"].startswith("forbidden: writes outside") and seen["memory"]
