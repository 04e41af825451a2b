"""What runs of earlier commits of this suite allow other people: the code of a commit has no fix that came later.

weaknesses(commit, "ddp", num_nodes=1)      # ["the stores of torchrun listen on all interfaces"]
"""

import dataclasses
from typing import Literal

from benchmarks.common.system import source_version


@dataclasses.dataclass(frozen=True)
class Weakness:
    """What a run of an earlier commit allows other people."""

    mended_by: str
    """Hash of a commit. Those that come after it do not have the weakness."""
    strategies: tuple[str, ...]
    """Empty: all."""
    what: str
    nodes: Literal["any", "one", "several"] = "any"
    """one: over several nodes today's runs do the same."""
    is_prevented_in_worktrees: bool = False
    """Whether a run that worktrees.checked_out surrounds does not have it."""
    needs_foreign_images: bool = False
    """Whether only a file of a data set from somebody else can use it."""


UNPICKLES = "ranks unpickle what another user of the machine can send"
LISTENS = "ranks listen on the network"
WEAKNESSES = (
    Weakness("b92f636db4172a27f8b3aa57ec0b18ff153f3012", (), "the stores of torchrun listen on all interfaces"),
    Weakness("af0ef33b25f30b19a2cbd339a436c4120eff2a39", ("dataparallel",), "NCCL listens on the network"),
    Weakness("abd413ea741abeb9663de9436c09c970e42724da", ("slurm",), LISTENS, nodes="one"),
    Weakness(
        "11695b8354b16e06e0048a47fe14941ad6781f3a",
        ("slurm",),
        "a node that does not share the checkout may run what another user has put into its place",
    ),
    Weakness(
        "11695b8354b16e06e0048a47fe14941ad6781f3a",
        ("horovod_ddp",),
        "a host that does not share the checkout may run what another user has put into its place",
        nodes="several",
    ),
    Weakness(
        "66d25db68fe8ada8b0b93a4b5e837d27a8483ab9",
        ("horovod_ddp",),
        "tokens and passwords of the environment stand on command lines, which every user of the machine can read",
        is_prevented_in_worktrees=True,
    ),
    Weakness(
        "7f47f080364fedd54cce5cbdcc4c5f082d1aedaf",
        ("horovod_ddp",),
        "a server on all interfaces unpickles, and every user of the machine can read its key",
        nodes="several",
    ),
    Weakness("2d46a88605bcf67eef7b3eeb00d9142088e09864", ("pipeline_parallel",), UNPICKLES),
    Weakness("50c115c41a29c4710c56001a0bb05a030ec4f83e", ("zero1",), UNPICKLES),
    Weakness("467c6441c18bbb443b5a2e9690cb243247eb5501", ("horovod_ddp",), UNPICKLES),
    Weakness(
        "d4a028505b4e1e8efe77de5b7afaafe01c7fa7dc",
        (),
        "a file of the data set may start Ghostscript",
        needs_foreign_images=True,
    ),
)


def weaknesses(
    commit: str, strategy: str, num_nodes: int, in_worktree: bool = False, foreign_images: bool = True
) -> list[str]:
    """What a run of the strategy at this commit allows others, or may allow, in a shallow clone that lacks the fix.

    in_worktree: the run is one of worktrees.checked_out. foreign_images: the data set may come from somebody else.
    """
    found = []
    for weakness in WEAKNESSES:
        concerned = strategy in (weakness.strategies or (strategy,)) and weakness.nodes in (
            "any",
            "several" if num_nodes > 1 else "one",
        )
        prevented = (in_worktree and weakness.is_prevented_in_worktrees) or (
            weakness.needs_foreign_images and not foreign_images
        )
        if concerned and not prevented and not _contains(commit, weakness.mended_by):
            if _has(weakness.mended_by):
                found.append(weakness.what)
            elif source_version.is_shallow():
                found.append(f"{weakness.what} (or this shallow clone lacks the fix: git fetch --unshallow)")
    return found


def _contains(commit: str, mended_by: str) -> bool:
    return source_version.git("merge-base", "--is-ancestor", mended_by, commit) is not None


def _has(commit: str) -> bool:
    return source_version.git("cat-file", "-e", f"{commit}^{{commit}}") is not None
