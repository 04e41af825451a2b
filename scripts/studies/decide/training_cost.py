"""What training costs on machines that are paid by the hour: the price of an hour, and machines of a run.

Needs no torch.
"""

import difflib
import math
from collections.abc import Sequence

from benchmarks.common.errors import UserError
from scripts.results.formatting import printable
from scripts.results.run_group import RunGroup

NUM_EPOCHS = 90  # what ImageNet is trained for in the papers
LEAST_PRICE, MOST_PRICE = 1e-6, 1e9  # of an hour, in any currency; costs beyond are no numbers


def num_machines(group: RunGroup) -> float:
    """How many machines a run of the group occupies; one where its set does not say."""
    nodes = float(group.ok_runs.iloc[0].nodes)
    return max(1.0, nodes if nodes > 0 else 1.0)


def read_prices(words: Sequence[str], names: Sequence[str]) -> dict[str, float]:
    """The price of one machine for one hour by the name of a set, for those that have one.

    words: one number for all sets, or NAME=NUMBER for each of some. names: of the sets.
    Raises UserError for what is no price and for an unknown name.
    """
    text = printable(" ".join(words))
    example = "give a number such as 2.50, or of single sets: --price NAME=2.50"
    prices: dict[str, float] = {}
    for word in words:
        name, equals_sign, number = word.rpartition("=")
        try:
            price = float(number)
        except ValueError:
            price = math.nan
        if not LEAST_PRICE <= price <= MOST_PRICE:
            raise UserError(f"--price is {text!r}, and {number!r} is no price; {example}")
        if equals_sign and name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(names)}"
            raise UserError(f"--price names {name!r}, and no set has that name; {hint}")
        if not equals_sign and len(words) > 1:
            raise UserError(f"--price is {text!r}: one number for all, or NAME=NUMBER for each; {example}")
        prices |= {name: price} if equals_sign else dict.fromkeys(names, price)
    return prices
