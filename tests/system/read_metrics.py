"""Reads the metrics of a run, and the curves if there are any, with the official parsers, and prints what they found as JSON; for
metrics_test.py and watch_test.py, by the Python of .deps/metrics.

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


def curves_of(directory):
    accumulator = event_accumulator.EventAccumulator(str(directory), size_guidance={event_accumulator.SCALARS: 0})
    accumulator.Reload()
    return {tag: [(event.step, event.value) for event in accumulator.Scalars(tag)] for tag in accumulator.Tags()["scalars"]}


def main(run):
    text = (run / "metrics.prom").read_text()
    curves = curves_of(run / "tensorboard") if (run / "tensorboard").exists() else {}
    print(json.dumps({"openmetrics": samples(openmetrics.text_string_to_metric_families(text)),
                      "prometheus": samples(parser.text_string_to_metric_families(text)), "tensorboard": curves}))


main(Path(sys.argv[1]))
