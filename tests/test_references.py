"""What docstrings, comments and READMEs name is there: files, modules, functions, and names in backticks.

    .venv/bin/python -m pytest tests/test_references.py

A reader searches for the name that a sentence gives. A function that was renamed leaves such sentences behind.
"""

import ast
import builtins
import functools
import io
import re
import textwrap
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import ROOT

FOLDERS = ("benchmarks", "configs", "launchers", "scripts", "tests", "docs", ".ci")
FILES = sorted(path for name in FOLDERS for path in (ROOT / name).rglob("*") if path.is_file())
FILES += sorted(path for path in [*ROOT.glob("*"), ROOT / "results/README.md"] if path.is_file())
PATHS = [path.as_posix() for path in FILES]
SHIPPED = [path for path in FILES if path.suffix == ".py" and path.parts[len(ROOT.parts)] in ("benchmarks", "scripts")]
DOCUMENTS = [path for path in FILES if path.suffix == ".md"]
MODULES: dict[str, list[Path]] = {}
for shipped in SHIPPED:
    MODULES.setdefault(shipped.stem, []).append(shipped)

FILE = re.compile(r"(?<![\w<>*/.{}-])[\w./-]*\w\.(?:py|sh)\b")
LABEL = re.compile(r"\[`?([\w/]+\.\w+)`?\]\(([^)#]+)\)")
DOTTED = re.compile(r"(?<![\w./-])([a-z_]\w*)\.([A-Za-z_]\w*)\b(?!\.)")
BACKTICKS = re.compile(r"(?<!`)`([A-Za-z_]\w*)(?:\(\))?`")
GENERATED = re.compile(r"<!--([\w.]+)-->.*?<!--/-->", re.DOTALL)  # figures in READMEs, as they were measured
OTHER_KINDS = {"csv", "html", "json", "lock", "log", "md", "pdf", "png", "pt", "py", "sh", "svg", "tex", "txt", "yaml"}
# Files of others, each named with its project: Triton, PyTorch, FlashAttention, PyTorch's examples, Horovod.
FOREIGN_FILES = {
    "triton/runtime/build.py",
    "test/test_cuda_primary_ctx.py",
    "tests/test_flash_attn.py",
    "imagenet/main.py",
    "examples/pytorch/pytorch_synthetic_benchmark.py",
}
# Of bash, pandas, torchgpipe, oneDNN, ATen, Slurm, Kubernetes and browsers, and of a user's own job there.
FOREIGN_NAMES = {
    "__pycache__",  # Python makes it
    "BASH_ENV", "Index", "balance_by_time", "SBATCH_CONSTRAINT", "SBATCH_RESERVATION", "JOB_COMPLETION_INDEX", "POD_0",
    "innerWidth", "ONEDNN_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY",
}  # fmt: skip
ABSENT_FILES = {"benchmarks/all.py"}  # named because it is not there


@functools.cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@functools.cache
def top_level_names(path: Path) -> set[str]:
    """Functions, classes, constants and imports of a module."""
    found = set()
    for node in tree_of(path).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {alias.asname or alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            found |= {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
    return found


@functools.cache
def all_names(path: Path) -> set[str]:
    """Every name in a module's code, and every word of a string that is no docstring."""
    found, texts = set(), {*docstrings(path)}
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.alias):
            found |= {*node.name.split(".")}
        elif isinstance(node, ast.arg | ast.keyword) and node.arg:
            found.add(node.arg)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value not in texts:
            found |= {*re.findall(r"\w+", node.value)}
    return found


@functools.cache
def names_of_the_project() -> set[str]:
    """Every name in code, launchers, configurations and the Makefile; of tests, and of files and folders."""
    found = {part for path in FILES for part in (*path.relative_to(ROOT).parts, path.stem)}
    for path in FILES:
        if path in SHIPPED:
            found |= all_names(path)
        elif path.suffix == ".py":
            found |= top_level_names(path)
        elif path.suffix in (".sh", ".yaml", ".j2") or path.name in ("Makefile", "pyproject.toml"):
            found |= {*re.findall(r"\w+", path.read_text())}
    return found | FOREIGN_NAMES


def docstrings(path: Path) -> Iterator[str]:
    """Every docstring of a module, also those below fields and constants."""
    for node in ast.walk(tree_of(path)):
        body = getattr(node, "body", [])
        for each in body if isinstance(body, list) else []:
            if (
                isinstance(each, ast.Expr)
                and isinstance(each.value, ast.Constant)
                and isinstance(each.value.value, str)
            ):
                yield each.value.value


def comments(path: Path) -> Iterator[str]:
    for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
        if token.type == tokenize.COMMENT:
            yield token.string


def stale_names(text: str, folder: Path) -> list[str]:
    """What a text names and the project lacks: files, names in backticks, and `module.name`. folder: of its file."""
    text = GENERATED.sub("", text)
    missing = [name for name in FILE.findall(text) if not exists(name, folder)]
    missing += [f"{label} ({target})" for label, target in LABEL.findall(text) if not target.endswith(label)]
    missing += [name for name in BACKTICKS.findall(text) if name not in names_of_the_project()]
    for module, name in DOTTED.findall(text):
        if module in MODULES and name not in OTHER_KINDS:
            missing += [f"{module}.{name}"] * (not any(name in all_names(path) for path in MODULES[module]))
    return missing


@functools.cache
def exists(name: str, folder: Path) -> bool:
    """Whether a file is there: from the root, from the folder of the text, or below any folder."""
    if name in FOREIGN_FILES | ABSENT_FILES or (ROOT / name).exists() or (folder / name).exists():
        return True
    return any(path.endswith(f"/{name}") for path in PATHS)


def stale_examples(docstring: str, names: set[str]) -> list[str]:
    """What the indented examples of a module's docstring call or import, and neither `names` nor that module has."""
    missing: list[str] = []
    for example in re.findall(r"(?m)(?:^ {4}.*\n?)+|^from .*\n?", docstring):
        try:
            tree = ast.parse(textwrap.dedent(re.sub(r"(?m):$", ": ...", example)))
        except SyntaxError:  # a command of the shell
            continue
        nodes = [*ast.walk(tree)]
        imports = [node for node in nodes if isinstance(node, ast.ImportFrom)]
        own = {alias.name for node in imports for alias in node.names}
        own |= {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
        calls = {node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
        missing += sorted(calls - names - own - {"main", *dir(builtins)})  # main: of whoever copies it
        missing += [
            f"{node.module}.{alias.name}" for node in imports for alias in node.names if lacks(node, alias.name)
        ]
    return missing


def lacks(node: ast.ImportFrom, name: str) -> bool:
    """Whether an import from our code names what is not there."""
    module = (node.module or "").split(".")
    if module[0] not in ("benchmarks", "scripts"):
        return False
    path = ROOT.joinpath(*module)
    if path.is_dir():
        return not ((path / f"{name}.py").exists() or (path / name).is_dir())
    return not path.with_suffix(".py").exists() or name not in top_level_names(path.with_suffix(".py"))


@pytest.mark.medium
def test_what_the_code_says_of_itself_is_there():
    """Protects a reader who searches for what a docstring or a comment names."""
    found = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in SHIPPED
        for text in (*docstrings(path), *comments(path))
        for name in stale_names(text, path.parent)
    }
    assert found == set()


@pytest.mark.medium
def test_what_documents_name_is_there():
    """Protects the same in every README: files, labels of links, names in backticks."""
    named = {path.relative_to(ROOT): stale_names(path.read_text(), path.parent) for path in DOCUMENTS}
    found = {f"{path}: {name}" for path, names in named.items() for name in names}
    assert found == set()


@pytest.mark.medium
def test_examples_in_docstrings_call_what_is_there():
    """Protects whoever copies the example at the top of a module."""
    found = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in SHIPPED
        for name in stale_examples(ast.get_docstring(tree_of(path)) or "", top_level_names(path))
    }
    assert found == set()


@pytest.mark.parametrize(
    "text, stale",
    [
        ("as scripts/runner/no_such_file.py says", ["scripts/runner/no_such_file.py"]),
        ("as run_plan.py and scripts/runner/run_plan.py say", []),
        ("[cautions.py](scripts/sets/set_warnings.py)", ["cautions.py", "cautions.py (scripts/sets/set_warnings.py)"]),
        ("`no_such_name` and `run_planned`", ["no_such_name"]),
        ("the rule of stopping_rule.enough and of stopping_rule.precise_enough", ["stopping_rule.enough"]),
        ("in `settings.csv`, of settings.json; <!--faults-->no_such_file.py<!--/-->", []),
    ],
)
@pytest.mark.medium
def test_a_stale_name_is_seen(text, stale):
    """Mutants of what was stale once. Figures that were measured keep the names of their day."""
    assert stale_names(text, ROOT) == stale


@pytest.mark.parametrize(
    "example, stale",
    [
        ("    for runs in rounds(left): ...", ["rounds"]),
        ("    for runs in generate_rounds(left):\n        print(runs)", []),
        ("from scripts.sets.result_set import load, load_set", ["scripts.sets.result_set.load"]),
        ("    from scripts.runner import no_module, run_plan", ["scripts.runner.no_module"]),
        ("    python -m scripts.runner.no_module", []),
    ],
)
def test_a_stale_example_is_seen(example, stale):
    assert stale_examples(f"What it is.\n\n{example}\n", {"generate_rounds"}) == stale
