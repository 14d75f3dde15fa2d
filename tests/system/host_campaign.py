"""Campaigns of `holdfast chaos` on hosts of hosts.py: for tests and tools/host_chaos."""
import json
import time

import harness
import hosts

SLOTS = 2
PATIENCE_S = 15
# What an option of `holdfast chaos` does: a deed of hosts.Cluster.
DEEDS = {"lose-host": "lose", "return-host": "power_on", "replace-host": "replace", "cut-link": "cut", "mend-link": "mend",
         "kill-host": "kill_trainers", "deafen-host": "deafen", "undeafen-host": "clean", "mute-host": "mute",
         "unmute-host": "clean", "spoil-link": "spoil", "clean-link": "clean", "slow-link": "slow", "fast-link": "fast",
         "unfit-host": "unfit", "fit-host": "fit", "sicken-host": "sicken", "cut-pair": "cut_pair", "mend-pair": "mend_pair", "stop-host": "stop",
         "continue-host": "go_on"}


def why_not():
    """Why this machine cannot do it all to hosts; None when it can."""
    return hosts.why_not() or hosts.why_no_links()


def start(cluster, campaign, config, *words):
    """Of the run directory `campaign`; on the first host. Its runs have a rank for each slot."""
    commands = [word for option, deed in DEEDS.items() for word in (f"--{option}", cluster.command(deed))]
    ranks = SLOTS * len(cluster.hosts)
    cluster.needs += [campaign.scene.text, campaign.directory, harness.PROGRAM, hosts.SHARED_MEMORY]
    return cluster.start(campaign, [str(harness.PROGRAM), "chaos", str(config), f"--directory={campaign.directory}", "--hostfile",
                                    str(cluster.write_hostfile(SLOTS)), f"--layouts={ranks}x1x1", *commands, *words])


def result(campaign):
    return json.loads((campaign.directory / "chaos.json").read_text())


def left_behind(cluster):
    """{host: what processes and shared memory are there} after a campaign. A host that was cut off may need a moment to notice."""
    def found():
        return {name: [*map(harness.describe, host.processes()), *host.shared_memory()]
                for name, host in cluster.hosts.items() if host.processes() or host.shared_memory()}

    until = time.monotonic() + PATIENCE_S
    while (left := found()) and time.monotonic() < until:
        time.sleep(0.2)
    return left
