"""Commands for people to paste. Needs no torch.

>>> bench_command("data pack", pack="full", data="/data/of $(me)")
"./bench data pack --pack full --data '/data/of $(me)'"
"""

import shlex

NOT_SHOWN = "..."
"""For a value that no line for bash can hold."""


def shell_word(value: object) -> str:
    text = str(value)
    return shlex.quote(text) if text.isprintable() else NOT_SHOWN


def bench_command(command: str, *arguments: object, **options: object) -> str:
    """A list is several words of one option."""
    words = ["./bench", command, *map(shell_word, arguments)]
    for name, value in options.items():
        flag = f"--{name.replace('_', '-')}"
        values = [*map(shell_word, value)] if isinstance(value, list | tuple) else [shell_word(value)]
        joined = len(values) == 1 and values[0].startswith("-")  # else it would pass for an option itself
        words += [f"{flag}={values[0]}"] if joined else [flag, *values]
    return " ".join(words)
