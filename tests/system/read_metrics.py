"""Reads the metrics of a run with the official parsers, and prints what they found as JSON; for metrics_test.py, by the Python of
.deps/metrics.

    python read_metrics.py RUN
"""
import json
import sys
from pathlib import Path

from prometheus_client import parser
from prometheus_client.openmetrics import parser as openmetrics
from tensorboard.backend.event_processing import event_accumulator


def samples(families):
    return [(sample.name, sorted(sample.labels.items()), sample.value) for family in families for sample in family.samples]


def main(run):
    text = (run / "metrics.prom").read_text()
    accumulator = event_accumulator.EventAccumulator(str(run / "tensorboard"), size_guidance={event_accumulator.SCALARS: 0})
    accumulator.Reload()
    curves = {tag: [(event.step, event.value) for event in accumulator.Scalars(tag)] for tag in accumulator.Tags()["scalars"]}
    print(json.dumps({"openmetrics": samples(openmetrics.text_string_to_metric_families(text)),
                      "prometheus": samples(parser.text_string_to_metric_families(text)), "tensorboard": curves}))


main(Path(sys.argv[1]))
