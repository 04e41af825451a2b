"""Rows of a pandas table, typed loosely: pandas' stubs give every cell a union of a dozen types."""

from collections.abc import Iterator
from typing import Any

import pandas


def iterate_rows(table: pandas.DataFrame) -> Iterator[Any]:
    """The rows as named tuples, with a field for each column and `Index`."""
    yield from table.itertuples()
