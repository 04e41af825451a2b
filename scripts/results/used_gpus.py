"""The telemetry of the GPUs that a run computes on. Needs no torch."""

import pandas


def drop_unused_gpus(telemetry: pandas.DataFrame, runs: pandas.DataFrame) -> pandas.DataFrame:
    """The samples without those of GPUs that a run leaves idle: it computes on the first `world_size` of those that can
    be seen. Samples of GPUs of a run that `runs` lacks are dropped, too."""
    numbers = pandas.to_numeric(telemetry.device.str.extract(r"^gpu(\d+)$")[0])
    places = numbers.groupby(telemetry.run_id).rank(method="dense")
    num_used = pandas.to_numeric(telemetry.run_id.map(runs.drop_duplicates("run_id").set_index("run_id").world_size))
    return telemetry[places.isna() | (places <= num_used)]
