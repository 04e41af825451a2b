"""Writes fields.md, columns.md and variables.md.

python docs/generate.py
"""

import ast
import itertools
import sys
import typing
from collections.abc import Sequence
from pathlib import Path

DOCS = Path(__file__).resolve().parent
sys.path.insert(0, str(DOCS.parent))

from benchmarks.common import columns, config  # noqa: E402
from scripts.runner import variables  # noqa: E402

BY_LAUNCHERS = (
    variables.Rule("OMP_NUM_THREADS", "where torchrun would take 1", "THREADS_PER_RANK"),
    variables.Rule(
        "GLOO_SOCKET_IFNAME NCCL_SOCKET_IFNAME",
        "on one machine nothing listens beyond it; across machines they are yours",
        variables.LOOPBACK,
    ),
    variables.Rule("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "ranks meet by a file, and not by a port", "1"),
    variables.Rule(
        " ".join(variables.MALLOC),
        "glibc keeps what a step frees, and the kernel need not clear it anew; left alone where one of these, "
        f"{' or '.join(variables.OWN_MALLOC[2:])}, is set",
        str(variables.LARGEST),
    ),
)


def pages() -> dict[str, str]:
    return {"fields.md": fields_page(), "columns.md": columns_page(), "variables.md": variables_page()}


def fields_page() -> str:
    meanings = field_meanings()
    rows = []
    for name, field in config.FIELDS.items():
        values = [value for value in literals(config.FIELD_TYPES[name]) if value not in ("", field.default)]
        default = field.default if field.default != "" else "-"
        rows.append([f"`{name}`", f"`{default}`", " ".join(f"`{value}`" for value in values), meanings[name]])
    return f"""# Fields of a configuration

`./bench run -- --global-batch 64` sets one; `--no-` before a name that is True sets it to False.

{table(["field", "default", "or", "means"], rows)}
"""


def field_meanings() -> dict[str, str]:
    """The docstring below each field of Config, in one line."""
    module = ast.parse(Path(config.__file__).read_text())
    (body,) = (node.body for node in module.body if isinstance(node, ast.ClassDef) and node.name == "Config")
    found = {}
    for field, docstring in itertools.pairwise(body):
        if isinstance(field, ast.AnnAssign) and isinstance(docstring, ast.Expr):
            found[ast.unparse(field.target)] = " ".join(str(ast.literal_eval(docstring.value)).split())
    return found


def literals(kind: object) -> list[object]:
    """All values of the Literals in a type, such as int | Literal["auto"]."""
    if typing.get_origin(kind) is typing.Literal:
        return list(typing.get_args(kind))
    return [value for part in typing.get_args(kind) for value in literals(part)]


def columns_page() -> str:
    rows = [[f"`{column.name}`", column.meaning] for column in columns.RUNS]
    return f"""# Columns of runs.csv

{table(["column", "is"], rows)}
"""


def variables_page() -> str:
    not_recorded = ", ".join(f"`{name}`" for name in variables.NOT_RECORDED)
    return f"""# Variables of the environment

What a shell holds for other programs must not change a run unseen. `./bench` and the launchers clear, set or record it
before any rank starts.

## Cleared

{rules_table(variables.CLEARED)}

## Set

{rules_table([*variables.SET, *BY_LAUNCHERS])}

## Recorded

They stay, and are a setting of each run (`variables` in settings.csv): runs that differ in one are not averaged, and
`./bench compare` names it.

{rules_table(variables.RECORDED)}

Not recorded: {not_recorded}.
"""


def rules_table(rules: Sequence[variables.Rule]) -> str:
    names = [", ".join(f"`{name}`" for name in rule.names.split()) for rule in rules]
    if rules[0].value:
        rows = [[name, f"`{rule.value}`", rule.why] for name, rule in zip(names, rules, strict=True)]
        return table(["variable", "value", "why"], rows)
    return table(["variable", "why"], [[name, rule.why] for name, rule in zip(names, rules, strict=True)])


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    for name, text in pages().items():
        (DOCS / name).write_text(text)
