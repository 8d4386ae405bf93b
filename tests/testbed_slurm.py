"""A real Slurm: munged, slurmctld and slurmds of our own, either all on this
machine or one slurmd on each host of a test bed.

    with Slurm() as slurm:                  # sn1 ... sn4, this machine
    with Hosts(4) as hosts, Slurm(hosts) as slurm:        # node1 ... node4
        subprocess.run(["sbatch", ...], env={**env, **slurm.environment()})

slurm.shared is a folder that all nodes see under the same name. A job that is
queued again starts some six seconds later (cred_expire). Do not hurry it by
`scontrol update starttime=now`: within the second in which it was ended its
nodes refuse it ("Job credential revoked"), and Slurm lets it fail.
"""

import contextlib
import os
import shutil
import socket

import pytest
from testbed import Bed, command, machine_lock, sweep, wait_for

needs_slurm = pytest.mark.skipif(
    shutil.which("slurmctld") is None or os.geteuid() != 0,
    reason="Slurm is not installed, or not root",
)

CONFIG = """\
ClusterName=lk{token}
SlurmctldHost={host}({address})
SlurmctldPort={control_port}
SlurmdPort={node_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_interval=1,bf_interval=1
KillWait={kill_wait}
SlurmdTimeout=10
SlurmctldTimeout=10
SlurmdParameters=config_overrides
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
PartitionName=small Nodes=ALL MaxTime=60 State=UP
{more}
"""

# Jobs of `urgent` take the nodes of `yielding`, whose jobs are told so {grace}
# seconds before and queued again.
PREEMPTION = """\
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=yielding Nodes=ALL PriorityTier=1 GraceTime={grace} State=UP
PartitionName=urgent Nodes=ALL PriorityTier=9 PreemptMode=OFF State=UP
"""


def free_ports(count):
    """Ports that are free now; Slurm cannot bind to 0."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("0.0.0.0", 0))
        return [one.getsockname()[1] for one in sockets]


class Slurm(Bed):
    def __init__(self, hosts=None, count=4, cpus=8, kill_wait=2, more=""):
        super().__init__()
        self.hosts = hosts
        self.cpus = cpus
        self.kill_wait = kill_wait  # seconds from SIGTERM to SIGKILL
        self.more = more  # lines of slurm.conf
        self.nodes = (
            [host.hostname for host in hosts.hosts.values()]
            if hosts
            else [f"sn{number + 1}" for number in range(count)]
        )
        self.config = self.folder / "slurm.conf"
        self.shared = hosts.shared if hosts else self.folder / "shared"

    def __enter__(self):
        try:
            with machine_lock():
                sweep()
                self.open()
            self.shared.mkdir(exist_ok=True)
            self.write_config()
            self.start_munge()
            self.start(
                *("slurmctld", "-D", "-f", self.config, "-c"),
                log="slurmctld.out",
                env=self.everything(),
            )
            for name in self.nodes:
                self.start_node(name)
            wait_for(self.all_idle, "all Slurm nodes are idle", 60)
            return self
        except BaseException as error:
            logs = self.log("slurmctld.log")[-2000:] + self.log("slurmctld.out")
            self.close()
            raise RuntimeError(f"Slurm did not start: {error}\n{logs}") from error

    def __exit__(self, *_):
        with contextlib.suppress(Exception):
            self.call("scancel", "--user", "root", timeout=10, check=False)
        with contextlib.suppress(Exception):
            wait_for(lambda: not self.jobs(), "jobs are gone", 15)
        for process in reversed(list(self.children)):
            self.end(process, gently=5)
        self.close()

    def environment(self):
        return {"SLURM_CONF": str(self.config)}

    def everything(self):
        return {**os.environ, **self.environment()}

    def call(self, *words, **options):
        """A Slurm command; its output."""
        return command(*words, env=self.everything(), **options)

    def jobs(self):
        """[(id, state)] of jobs that Slurm still has in its queue."""
        lines = self.call("squeue", "-h", "-o", "%i %T").splitlines()
        return [tuple(line.split()) for line in lines]

    def state(self, job):
        """As scontrol says: PENDING, RUNNING, COMPLETED, ...; None: unknown."""
        text = self.call("scontrol", "-o", "show", "job", job, check=False)
        fields = dict(word.split("=", 1) for word in text.split() if "=" in word)
        return fields.get("JobState")

    def all_idle(self):
        for process in self.children:
            assert process.poll() is None, f"{process.args} ended"
        states = self.call("sinfo", "-h", "-N", "-o", "%T", check=False).split()
        # -N gives a line for each partition of a node.
        return states and set(states) == {"idle"}

    def write_config(self):
        control, *ports = free_ports(1 + len(self.nodes))
        (self.folder / "state").mkdir(mode=0o755)
        lines = []
        for name, port in zip(self.nodes, ports):
            (self.folder / f"spool-{name}").mkdir()
            line = f"NodeName={name} CPUs={self.cpus} State=UNKNOWN"
            if self.hosts:
                alias = f"n{self.nodes.index(name) + 1}"
                line += f" NodeAddr={self.hosts.address(alias)}"
            else:
                line += f" NodeAddr=127.0.0.1 NodeHostname={socket.gethostname()}"
                line += f" Port={port}"
            lines.append(line)
        self.config.write_text(
            CONFIG.format(
                token=self.token,
                host=socket.gethostname().split(".")[0],
                address=self.hosts.own_address if self.hosts else "127.0.0.1",
                control_port=control,
                node_port=ports[0],
                folder=self.folder,
                kill_wait=self.kill_wait,
                nodes="\n".join(lines),
                more=self.more,
            )
        )
        (self.folder / "cgroup.conf").write_text("")

    def start_munge(self):
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        socket_path = self.folder / "munge.socket"
        self.start(
            *("munged", "--foreground", "--force", "-S", socket_path),
            f"--key-file={key}",
            f"--pid-file={self.folder}/munged.pid",
            f"--log-file={self.folder}/munged.log",
            f"--seed-file={self.folder}/munged.seed",
            log="munged.out",
        )
        wait_for(socket_path.exists, "munged listens")

    def start_node(self, name):
        words = ["slurmd", "-D", "-N", name, "-f", str(self.config)]
        log = f"slurmd-{name}.out"
        if self.hosts is None:
            return self.start(*words, log=log, env=self.everything())
        alias = f"n{self.nodes.index(name) + 1}"
        # A process of the host: it goes when the host does.
        return self.hosts.popen(
            alias, f"export SLURM_CONF={self.config}; exec {' '.join(words)}", log=log
        )
