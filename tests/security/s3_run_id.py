#!/usr/bin/env python3
"""S3: text of a run directory or of a list of hosts reaches a shell, or a command that reaches hosts.

Somebody prepares a run directory (or may write into it), or has a say in what a host is called. The victim launches the run on
two hosts; a command stands for ssh, which does with its words what sshd does: a shell reads them, with blanks between.
"""
import attack

AGENT = """#!/bin/sh
case "$1" in -*) touch '{option}'; exit 255;; esac
shift
exec sh -c "$*"
"""


def launch(scene, agent, *words, hosts=("--host", "a:1,b:1")):
    return scene.holdfast("launch", "-np", "2", *hosts, "--wait-for-hosts", "1", "run.toml", *words, patience_s=30,
                          PRTE_MCA_plm_ssh_agent=str(agent))


def run_attack(scene):
    by_shell, by_option = scene.folder / "by-shell", scene.folder / "by-option"
    agent = scene.folder / "agent"
    agent.write_text(AGENT.format(option=by_option))
    agent.chmod(0o755)
    (scene.run / "launch").mkdir(parents=True)
    (scene.run / "launch/token").write_text("0123456789abcdef")
    (scene.run / "run_id").write_text(f"x;touch {by_shell}")
    done = launch(scene, agent)
    scene.expect(by_shell.exists(), "what is in RUN/run_id was run by a shell", f"RUN/run_id: {attack.last_line(done)}")
    for name in (f"-oProxyCommand=touch${{IFS}}{by_option}", f"a;touch${{IFS}}{by_shell}"):
        by_shell.unlink(missing_ok=True)
        by_option.unlink(missing_ok=True)
        (scene.folder / "hosts").write_text(f"{name} slots=1\nb slots=1\n")
        (scene.run / "run_id").unlink(missing_ok=True)
        done = launch(scene, agent, hosts=("--hostfile", "hosts"))
        scene.expect(by_option.exists(), f"the host {name} was an option of the command that reaches hosts",
                     f"a host named {name}: {attack.last_line(done)}")
        scene.expect(by_shell.exists(), f"the host {name} was run by a shell", "no shell ran it")
    token = "0123456789abcdef"
    done = scene.holdfast("launch", "--on-host", "finish", token, "../../x;y")
    scene.expect(done.returncode != 2, "a host takes any text for the id of a run", f"--on-host: {attack.last_line(done)}")


if __name__ == "__main__":
    attack.main(run_attack, __doc__)
