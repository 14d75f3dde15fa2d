"""Campaigns of `holdfast chaos` on hosts of hosts.py: for tests and tools/host_chaos."""
import json

import harness
import hosts

SLOTS = 2
# What an option of `holdfast chaos` does: a deed of hosts.Cluster.
DEEDS = {"lose-host": "lose", "return-host": "power_on", "replace-host": "replace", "cut-link": "cut", "mend-link": "mend",
         "kill-host": "kill_trainers", "deafen-host": "deafen", "undeafen-host": "clean", "mute-host": "mute",
         "unmute-host": "clean", "spoil-link": "spoil", "clean-link": "clean", "slow-link": "slow", "fast-link": "fast"}


def why_not():
    """Why this machine cannot do it all to hosts; None when it can."""
    return hosts.why_not() or hosts.why_no_links()


def start(cluster, campaign, config, *words):
    """Of the run directory `campaign`; on the first host. Its runs have a rank for each slot."""
    commands = [word for option, deed in DEEDS.items() for word in (f"--{option}", cluster.command(deed))]
    ranks = SLOTS * len(cluster.hosts)
    return cluster.start(campaign, [str(harness.PROGRAM), "chaos", str(config), f"--directory={campaign.directory}", "--hostfile",
                                    str(cluster.write_hostfile(SLOTS)), f"--layouts={ranks}x1x1", *commands, *words])


def result(campaign):
    return json.loads((campaign.directory / "chaos.json").read_text())
