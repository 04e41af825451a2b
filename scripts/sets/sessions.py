"""Which sitting a run was of: the runs of a set that follow one another, up to an hour without any.

    from scripts.sets.sessions import measured_in_other_sessions, session_numbers

Two sittings are two days: what the machine did in between is in the ratio of runs of one to runs of the other, and no
repeat shows it. Needs no torch.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

import pandas

PAUSE_S = 3600


def session_numbers(runs: pandas.DataFrame) -> pandas.Series:
    """The number of each row's sitting, int [num_rows], from 0 on. runs: rows of runs.csv, of all statuses.

    A sitting ends PAUSE_S after the end of its last run. A row without a time is of the first.
    """
    began = pandas.to_datetime(runs.started_at.astype(str), format="ISO8601", utc=True, errors="coerce")
    began_s = (began - began.min()).dt.total_seconds().dropna().sort_values(kind="stable")
    ended_s = (began_s + runs.wall_s[began_s.index].fillna(0).clip(lower=0)).cummax()
    return (began_s - ended_s.shift() > PAUSE_S).cumsum().reindex(runs.index, fill_value=0).astype(int)


def measured_in_other_sessions(runs: Mapping[str, Sequence[tuple[float, int]]]) -> list[str]:
    """The strategies that were measured at another time than most. runs: by strategy, (round, sitting) of each run.

    Rounds that all ran in one sitting, and further ones that all ran in the next, set nobody apart.
    """
    if not runs:
        return []
    whole = Counter(frozenset(sitting for _, sitting in own) for own in runs.values())
    usual = whole.most_common(1)[0][0]
    rounds: dict[float, Counter] = {}
    for own in runs.values():
        for number, sitting in own:
            rounds.setdefault(number, Counter())[sitting] += 1
    most = {number: found.most_common(1)[0][0] for number, found in rounds.items()}
    return [
        name
        for name, own in runs.items()
        if {sitting for _, sitting in own} != usual or any(sitting != most[number] for number, sitting in own)
    ]
