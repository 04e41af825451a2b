"""The session of each run: a row of runs with no pause of more than an hour. Two are as two days. Needs no torch."""

from collections import Counter
from collections.abc import Mapping, Sequence

import pandas

PAUSE_S = 3600


def session_numbers(runs: pandas.DataFrame) -> pandas.Series:
    """The number of each row's session, int [num_rows], from 0 on. runs: rows of runs.csv, of all statuses.

    A session ends PAUSE_S after the end of its last run. A row without a time is of the first.
    """
    began = pandas.to_datetime(runs.started_at.astype(str), format="ISO8601", utc=True, errors="coerce")
    began_s = (began - began.min()).dt.total_seconds().dropna().sort_values(kind="stable")
    ended_s = (began_s + runs.wall_s[began_s.index].fillna(0).clip(lower=0)).cummax()
    return (began_s - ended_s.shift() > PAUSE_S).cumsum().reindex(runs.index, fill_value=0).astype(int)


def measured_in_other_sessions(runs: Mapping[str, Sequence[tuple[float, int]]]) -> list[str]:
    """The strategies that were measured at another time than most. runs: by strategy, (round, session) of each run.

    A set whose first rounds are of one session and whose later rounds are of another has no such strategy.
    """
    if not runs:
        return []
    whole = Counter(frozenset(session for _, session in rounds_of_run) for rounds_of_run in runs.values())
    usual = whole.most_common(1)[0][0]
    rounds: dict[float, Counter] = {}
    for rounds_of_run in runs.values():
        for round_number, session in rounds_of_run:
            rounds.setdefault(round_number, Counter())[session] += 1
    most = {round_number: found.most_common(1)[0][0] for round_number, found in rounds.items()}
    return [
        name
        for name, rounds_of_run in runs.items()
        if {session for _, session in rounds_of_run} != usual
        or any(session != most[round_number] for round_number, session in rounds_of_run)
    ]
