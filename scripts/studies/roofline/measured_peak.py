"""Measures the peak of this machine's device once more, which MFU is over, and writes it to a set's environment.json.

    python -m scripts.studies.roofline.measured_peak --results results/latest     # on the machine that made the set

Every suite does that once. A busy machine shows too low a peak, so that MFU may be over 100 %.
Exit code: 2 for a mistake, such as a set of another device, or a published one.
"""

import dataclasses
from pathlib import Path

import tyro

from benchmarks.common.errors import UserError
from benchmarks.common.files import write_json
from scripts.results.result_set import load_set
from scripts.runner import preflight
from scripts.shared.programs import run_main_and_exit


@dataclasses.dataclass(frozen=True)
class PeakOptions:
    results: Path = Path("results/latest")
    """The result set."""


def main(options: PeakOptions) -> int:
    """Raises UserError for a published set, and for one that was made on another device."""
    from scripts.runner.device_peak import measure_peak  # torch

    if why := preflight.why_not_writable(options.results):
        raise UserError(why)
    results, peak = load_set(options.results), measure_peak()
    if others := sorted(set(results.ok_runs.device_name) - {peak["device_name"]}):
        raise UserError(f"{options.results} was made on {others[0]}, and this is {peak['device_name']}: measure there")
    write_json(options.results / "environment.json", results.environment | {"measured_peak": peak})
    found = ", ".join(f"{kind} {tflops:.4g} TFLOP/s" for kind, tflops in peak["tflops"].items())
    print(f"{peak['device_name']}: {found}; written to {options.results}/environment.json")
    return 0


if __name__ == "__main__":
    run_main_and_exit(lambda: main(tyro.cli(PeakOptions)))
