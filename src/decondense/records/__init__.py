"""Every file that one part of the package writes and another reads: its fields, its version, one reader, one writer.

    measurement   decondense.condensation/2   the meter on one model and one text
    training      decondense.train/2          one training run, with its snapshots in short form
    evaluation    decondense.evaluation/1     benchmarks on one model; the items lie beside it in items.parquet
    outcomes      decondense.outcomes/1       an evaluation in short form, beside a study's training run (outcomes.json)
    measured      decondense.measured/1       a measurement in short form, as a run of a study
    comparison    decondense.comparison/1     measurements side by side
    significance  decondense.significance/1   two sets of evaluations on the same items
    study         decondense.study/2          a claim: verdict, table, and the runs it rests on

`read` takes a file, or a folder that holds a result.json, and returns an instance of the record's class. A file that
does not fit its schema raises `Damaged` with the path and the field. Measurements of version 1 are read too. Numbers
that are not finite are null.
"""

from __future__ import annotations

from .base import Damaged, Number, Record, check_folder, check_foreign, find, known, parse, read
from .evaluation import AVERAGE, WEIGHTED, Differences, Evaluation, Outcomes, Significance, TaskOutcomes, differences
from .measurement import STATISTICS, Comparison, Interval, Measured, Measurement, Shift, Snapshot, State, in_short
from .study import Study, Table
from .training import HeldOut, Step, Training

__all__ = [
    "AVERAGE", "STATISTICS", "WEIGHTED", "Comparison", "Damaged", "Differences", "Evaluation", "HeldOut", "Interval",
    "Measured", "Measurement", "Number", "Outcomes", "Record", "Shift", "Significance", "Snapshot", "State", "Step",
    "Study", "Table", "TaskOutcomes", "Training", "check_folder", "check_foreign", "differences", "find",
    "in_short", "known", "parse", "read",
]  # fmt: skip
