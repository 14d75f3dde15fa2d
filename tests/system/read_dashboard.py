"""Reads a dashboard with Grafana's own library, writes it again, and prints what was lost or changed, a line each; for metrics_test.py,
by the Python of .deps/metrics.

    python read_dashboard.py DASHBOARD.json
"""
import json
import sys
from pathlib import Path

from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard


def differences(before, after, place=""):
    if isinstance(before, dict) and isinstance(after, dict):
        for key, value in before.items():
            if key in after:
                yield from differences(value, after[key], f"{place}/{key}")
            else:
                yield f"{place}/{key} is in no dashboard of Grafana"
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for number, (one, other) in enumerate(zip(before, after, strict=True)):
            yield from differences(one, other, f"{place}/{number}")
    elif before != after:
        yield f"{place} is {before!r}, and became {after!r}"


def main(path):
    register_default_plugins()
    before = json.loads(path.read_text())
    for line in differences(before, json.loads(JSONEncoder().encode(Dashboard.from_json(before)))):
        print(line)


main(Path(sys.argv[1]))
