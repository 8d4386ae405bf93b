"""`--launcher mpi` with the real Open MPI: on this machine and on hosts of the
test bed, each rank under a shim."""

import os
import pathlib
import shutil
import signal

import pytest
from control import Control, wait_for
from testbed import Hosts, needs_root
from trainer import TRAIN, VIT

TRAINER = os.environ.get("LOCKSTEP_TRAINER_BIN", TRAIN)

pytestmark = [
    needs_root,
    pytest.mark.skipif(shutil.which("mpirun") is None, reason="no Open MPI"),
]
needs_trainer = pytest.mark.skipif(
    not os.path.exists(TRAINER), reason="no lockstep-train"
)


@pytest.fixture(scope="module")
def hosts():
    with Hosts(3) as made:
        yield made


@pytest.fixture
def control(tmp_path):
    made = Control(tmp_path)
    yield made
    made.end_all()


@pytest.fixture
def far(control, hosts):
    control.environment.update(hosts.environment())
    control.environment["LOCKSTEP_TRAINER_BIN"] = TRAINER
    yield control
    for name in hosts.names:
        hosts.restore(name)


def nothing_left(hosts, marker, words=("orted",)):
    """Of ours, or of mpirun's, on any host."""
    for name in hosts.names:
        for word in (marker, "lockstep\0shim", *words):
            wait_for(
                lambda: not hosts.processes(name, word),
                message=lambda: f"{name}: {hosts.processes(name, word)}",
            )


def test_on_this_machine(control):
    result = control.call(
        *("run", "--launcher", "mpi", "--procs", "3", "--"),
        *("sh", "-c", "echo $RANK/$WORLD_SIZE $OMPI_COMM_WORLD_RANK $LOCAL_RANK"),
    )
    assert result.returncode == 0, result.stderr
    run = control.run()
    for rank in range(3):
        assert run.log(rank) == f"{rank}/3 {rank} {rank}\n"
    assert run.state()["launcher"] == "mpi"
    control.assert_nothing_left()


def test_ranks_have_both_environments(far, hosts):
    result = far.call(
        *("run", "--launcher", "mpi", "--hosts", "n1,n2", "--procs", "2", "--"),
        *("sh", "-c", "env; hostname; pwd"),
    )
    assert result.returncode == 0, result.stderr
    assert "lockstep: " not in result.stderr, result.stderr  # nothing to tell
    run = far.run()
    for rank in range(4):
        lines = run.log(rank).splitlines()
        told = dict(line.split("=", 1) for line in lines if "=" in line)
        assert told["RANK"] == told["OMPI_COMM_WORLD_RANK"] == str(rank)
        assert told["WORLD_SIZE"] == told["OMPI_COMM_WORLD_SIZE"] == "4"
        assert told["LOCAL_RANK"] == told["OMPI_COMM_WORLD_LOCAL_RANK"]
        assert told["NODE_RANK"] == str(rank // 2)
        assert told["MASTER_ADDR"] == hosts.address("n1")
        assert told["LOCKSTEP_RUN_ID"] == run.path.name
        assert "LOCKSTEP_SHIM" not in told  # it holds the key
        assert f"node{rank // 2 + 1}" in lines
        # Nothing of ours stays on a host, but for what is kept for next time.
        home = hosts.hosts[f"n{rank // 2 + 1}"].home
        assert not list(home.rglob("nodes/*")), list(home.rglob("nodes/*"))
    hostfile = (run.path / "mpi" / "hostfile").read_text()
    assert hostfile == "n1 slots=2\nn2 slots=2\n"
    nothing_left(hosts, run.path.name)


def test_hostfile_and_workdir(far, hosts):
    (far.folder / "hostfile").write_text("# ours\nn1 slots=1\nn3 slots=2\n")
    (far.folder / "code").mkdir()
    (far.folder / "code" / "hello.sh").write_text("echo hello $(hostname)\n")
    result = far.call(
        *("run", "--launcher", "mpi", "--hostfile", "hostfile"),
        *("--workdir", "code", "--", "sh", "hello.sh"),
    )
    # Without --procs the slots count.
    assert result.returncode == 0, result.stderr
    run = far.run()
    assert [run.log(rank) for rank in range(3)] == [
        "hello node1\n",
        "hello node3\n",
        "hello node3\n",
    ]


def test_options_of_mpirun(far):
    far.script(
        "job.yaml",
        "resources: {launcher: mpi, hosts: [n1, n2]}\n"
        "mpi: {options: [--mca, mpi_abort_delay, '1']}\n"
        "run: echo $OMPI_MCA_mpi_abort_delay\n",
    )
    result = far.call("run", "job.yaml")
    assert result.returncode == 0, result.stderr
    assert far.run().log(1) == "1\n"
    far.script(
        "bad.yaml",
        "resources: {launcher: mpi, hosts: [n1]}\n"
        "mpi: {options: [--no-such-option]}\nrun: echo never\n",
    )
    result = far.call("run", "bad.yaml")
    assert result.returncode == 3
    assert "mpirun" in result.stderr and "no-such-option" in result.stderr


@needs_trainer
def test_the_trainer_uses_mpi(far, hosts):
    result = far.call(
        *("run", "--launcher", "mpi", "--hosts", "n1,n2", "--procs", "1"),
        *("--env", "OMP_NUM_THREADS=1", "--", TRAINER, *VIT),
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    run = far.run()
    inits = [e for e in run.events() if e["kind"] == "init" and e["rank"] >= 0]
    assert {e["facts"]["collective"] for e in inits} == {"mpi"}
    # What rank 0 left on its host is here.
    assert (run.path / "metrics.csv").exists()
    assert (run.path / "checkpoints" / "last.safetensors").stat().st_size > 0
    assert not (run.path / "python").exists()  # ours, not the program's
    home = hosts.hosts["n1"].home
    assert not list(home.rglob("nodes/*")), list(home.rglob("nodes/*"))


@needs_trainer
@pytest.mark.parametrize("where", ["", "hosts: [n1, n2], "])
def test_a_mistyped_key_is_refused_before_the_start(far, where):
    far.script(
        "job.yaml",
        f"resources: {{{where}launcher: mpi}}\n"
        "train:\n  recipe: vit\n  optim: {lrr: 1}\n",
    )
    result = far.call("run", "job.yaml")
    assert result.returncode == 2, result.stderr
    assert "job.yaml:4" in result.stderr and "optim.lr" in result.stderr
    assert not far.runs()


def test_a_failing_rank_is_named(far, hosts):
    result = far.call(
        *("run", "--launcher", "mpi", "--hosts", "n1,n2", "--procs", "2", "--"),
        *("sh", "-c", "if test $RANK = 2; then echo bad luck; exit 5; fi; sleep 1000"),
    )
    assert result.returncode == 1
    assert "rank 2 failed on n2" in result.stderr
    assert "exit code 5" in result.stderr and "bad luck" in result.stderr
    nothing_left(hosts, far.run().path.name)


def test_retries_start_again(far, hosts):
    program = (
        "if test $LOCKSTEP_GENERATION = 0 && test $RANK = 1; then exit 1; fi; "
        "echo generation $LOCKSTEP_GENERATION rank $RANK"
    )
    result = far.call(
        *("run", "--launcher", "mpi", "--hosts", "n1,n2", "--retries", "1", "--"),
        *("sh", "-c", program),
    )
    assert result.returncode == 0, result.stderr
    run = far.run()
    for rank in (0, 1):
        assert f"generation 1 rank {rank}" in run.log(rank)


@pytest.mark.parametrize("way", ["interrupt", "stop"])
def test_stop_is_graceful(far, hosts, way):
    program = "trap 'echo saved; exit 0' TERM; echo up; while true; do sleep 0.1; done"
    started = far.start(
        *("run", "--launcher", "mpi", "--hosts", "n1,n2", "--", "bash", "-c", program)
    )
    wait_for(
        lambda: far.runs()
        and all((far.run().path / f"ranks/{r}.log").exists() for r in (0, 1))
        and all("up" in far.run().log(rank) for rank in (0, 1))
    )
    if way == "interrupt":
        started.send_signal(signal.SIGINT)
    else:
        assert far.call("stop", "last").returncode == 0
    assert started.wait(60) == 130, started.stderr.read()
    assert all("saved" in far.run().log(rank) for rank in (0, 1))
    nothing_left(hosts, far.run().path.name)


def test_a_cut_host_does_not_hang_it(far, hosts):
    """mpirun alone waits for minutes."""
    started = far.start(
        *("run", "--launcher", "mpi", "--hosts", "n1,n2", "--", "sleep", "1000")
    )
    wait_for(lambda: hosts.processes("n2", "sleep\0001000"))
    hosts.cut("n2")
    assert started.wait(60) == 3, started.stderr.read()
    told = started.stderr.read()
    assert "n2" in told, told
    far.assert_nothing_left()
    # Its ranks end by themselves: their shim lost its lease, and takes Open
    # MPI's daemon along, which would wait for the network.
    nothing_left(hosts, far.run().path.name)
    hosts.restore("n2")


WAITS_ONCE = (
    "echo generation $LOCKSTEP_GENERATION rank $RANK/$WORLD_SIZE "
    "$OMPI_COMM_WORLD_SIZE on $(hostname); "
    "test $LOCKSTEP_GENERATION != 0 || exec sleep 1003"
)


def test_retries_after_a_lost_host(far, hosts):
    """On the hosts that are left."""
    started = far.start(
        *("run", "--launcher", "mpi", "--hosts", "n1,n2,n3", "--retries", "1"),
        *("--", "sh", "-c", WAITS_ONCE),
    )
    wait_for(lambda: all(hosts.processes(name, "sleep\0001003") for name in hosts.names))
    hosts.cut("n2")
    _, told = started.communicate(timeout=120)
    assert started.returncode == 0, told
    assert "node n2 was lost" in told and "restart 1 of 1" in told, told
    run = far.run()
    assert "generation 1 rank 0/2 2 on node1\n" in run.log(0)
    assert "generation 1 rank 1/2 2 on node3\n" in run.log(1)
    state = run.state()
    assert state["state"] == "done" and state["generation"] == 1
    assert state["world_size"] == 2
    nothing_left(hosts, run.path.name)
    hosts.restore("n2")


def test_retries_wait_for_the_first_host(far, hosts):
    """It has the checkpoints: without it there is no next generation."""
    started = far.start(
        *("run", "--launcher", "mpi", "--hosts", "n1,n2", "--retries", "1"),
        *("--", "sh", "-c", WAITS_ONCE),
    )
    wait_for(lambda: all(hosts.processes(n, "sleep\0001003") for n in ("n1", "n2")))
    hosts.cut("n1")
    wait_for(lambda: "n1 was lost" in (far.run().path / "console.jsonl").read_text())
    hosts.restore("n1")
    _, told = started.communicate(timeout=120)
    assert started.returncode == 0, told
    run = far.run()
    for rank in (0, 1):
        line = f"generation 1 rank {rank}/2 2 on node{rank + 1}\n"
        assert line in run.log(rank), run.log(rank)


def test_retries_use_a_host_that_came_back(far, hosts):
    """One whose shim was killed answers still."""
    started = far.start(
        *("run", "--launcher", "mpi", "--hosts", "n1,n2", "--retries", "1"),
        *("--", "sh", "-c", WAITS_ONCE),
    )
    wait_for(lambda: all(hosts.processes(n, "sleep\0001003") for n in ("n1", "n2")))
    for pid, line in hosts.processes("n2", "lockstep"):
        if " shim " in f"{line} ":
            os.kill(pid, signal.SIGKILL)
    _, told = started.communicate(timeout=120)
    assert started.returncode == 0, told
    run = far.run()
    for rank in (0, 1):
        line = f"generation 1 rank {rank}/2 2 on node{rank + 1}\n"
        assert line in run.log(rank), run.log(rank)
    nothing_left(hosts, run.path.name)


def test_detached(far, hosts):
    go = hosts.shared / "go"
    go.unlink(missing_ok=True)
    program = f"while test ! -e {go}; do sleep 0.1; done; echo went"
    result = far.call(
        *("run", "--launcher", "mpi", "--hosts", "n1,n2", "--detach", "--"),
        *("sh", "-c", program),
    )
    assert result.returncode == 0, result.stderr
    assert "running" in far.call("ps").stdout
    go.touch()
    result = far.call("attach", "last")
    assert result.returncode == 0, result.stderr
    assert "went" in result.stderr
    assert far.run().state()["state"] == "done"


def test_the_key_is_in_no_command_line(far, hosts):
    started = far.start(
        *("run", "--launcher", "mpi", "--hosts", "n1,n2", "--", "sleep", "1002")
    )
    wait_for(lambda: hosts.processes("n2", "sleep\0001002"))
    key_files = [
        path
        for name in ("n1", "n2")
        for path in hosts.hosts[name].home.rglob(".key-*")
    ]
    assert key_files
    key = key_files[0].read_text().strip()
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in key_files)
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                assert key.encode() not in (entry / "cmdline").read_bytes()
            except OSError:
                pass
    started.send_signal(signal.SIGINT)
    started.wait(60)


def test_what_needs_hosts_is_refused_without(control):
    result = control.call("run", "--launcher", "mpi", "--nodes", "2", "--", "true")
    assert result.returncode == 2 and "2 nodes need hosts" in result.stderr
    for launcher in ("mpi", "slurm"):
        control.script(
            "job.yaml",
            f"resources: {{launcher: {launcher}}}\nenvs: {{n1: {{A: 1}}}}\nrun: 'true'\n",
        )
        result = control.call("run", "job.yaml")
        assert result.returncode == 2, result.stderr
        assert "envs.n1.A" in result.stderr and "--hosts" in result.stderr
    assert not control.runs()


def test_no_mpirun(control):
    result = control.call(
        *("run", "--launcher", "mpi", "--", "true"), env={"PATH": "/nowhere"}
    )
    assert result.returncode in (2, 3)
    assert "mpirun is not installed" in result.stderr
