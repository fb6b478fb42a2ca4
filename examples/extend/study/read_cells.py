"""Print the objective of every cell of a study.

python examples/extend/study/read_cells.py <run folder>
"""

import sys

import polars as pl

cells, values = (pl.read_parquet(f"{sys.argv[1]}/{name}.parquet") for name in ("cells", "values"))
print(
    values.filter(metric="objective")
    .join(cells, "cell")
    .select("problem", "solver", "seed", "value")
)
