"""The turns of two versions: a window counts once all of its ranks wait again (tests/interleaved_versions.py)."""

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from interleaved_versions import Options, Side, time_launch


@contextlib.contextmanager
def side_of(*said: str, limit_s: float = 5) -> Iterator[tuple[Side, list[socket.socket]]]:
    """A side whose ranks have said this, and their ends of the connections."""
    pairs = [socket.socketpair() for _ in said]
    with contextlib.ExitStack() as stack:
        for pair in pairs:
            for end in pair:
                stack.enter_context(end)
        for (_, rank), text in zip(pairs, said, strict=True):
            rank.sendall(text.encode())
        yield Side([ours for ours, _ in pairs], limit_s), [rank for _, rank in pairs]


def test_all_ranks_start_at_once_and_the_seconds_are_rank_0s_whichever_connected_first():
    with side_of("1 9.0 8.0\nready\n", "0 2.5 2.0\nready\n") as (side, ranks):
        side.start_window()
        assert [rank.recv(10, socket.MSG_DONTWAIT) for rank in ranks] == [b"go\n", b"go\n"]
        assert side.finish_window() == (2.5, 2.0)


def test_a_window_has_not_ended_while_one_rank_still_works():
    with side_of("0 2.5 2.0\nready\n", "1 2.5 2.0\n", limit_s=0.05) as (side, _), pytest.raises(TimeoutError):
        side.finish_window()


def test_a_rank_that_has_ended_is_waited_for_no_more():
    with side_of("0 2.5 2.0\n") as (side, ranks):
        ranks[0].shutdown(socket.SHUT_WR)
        assert side.finish_window() == (2.5, 2.0)


@pytest.mark.slow
def test_two_versions_take_turns_to_the_end():
    root = Path(__file__).parents[2]
    options = Options("HEAD", "HEAD", pairs=4, flags="--config configs/smoke.yaml --loader synthetic --image-size 32")
    assert len(time_launch((root, root), options)) == 4
