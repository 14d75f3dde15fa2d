"""Converts a trace of ByteDance's straggler analysis (Parquet) to the table that `holdfast timeline --operations` reads; run by the
Python of .deps/parquet.

    python parquet_operations.py TRACE.parquet TABLE.tsv
"""
import sys

import pyarrow.parquet

COLUMNS = {"step": "step", "rank": "rank", "replica": "dp_rank", "stage": "stage", "chunk": "mc", "kind": "optype",
           "begin_s": "start_ts", "duration_s": "duration"}


def main(source, target):
    table = pyarrow.parquet.read_table(source, columns=list(COLUMNS.values())).to_pydict()
    chunks = [-1 if chunk is None or chunk != chunk else int(chunk) for chunk in table["mc"]]
    columns = [chunks if name == "chunk" else table[source_name] for name, source_name in COLUMNS.items()]
    with open(target, "w", encoding="utf-8") as file:
        print(*COLUMNS, sep="\t", file=file)
        for row in zip(*columns):
            print(*row, sep="\t", file=file)


if __name__ == "__main__":
    main(*sys.argv[1:])
