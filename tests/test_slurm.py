"""`--launcher slurm` with a real Slurm of four nodes on this machine."""

import os
import pathlib
import re
import signal

import pytest
from control import Control, wait_for
from testbed_slurm import Slurm, needs_slurm
from trainer import TRAIN

TRAINER = os.environ.get("LOCKSTEP_TRAINER_BIN", TRAIN)

pytestmark = needs_slurm


@pytest.fixture(scope="module")
def slurm():
    with Slurm() as made:
        yield made


@pytest.fixture
def control(slurm, request):
    folder = slurm.shared / re.sub(r"\W", "_", request.node.name)
    folder.mkdir()
    made = Control(folder)
    made.environment.update(slurm.environment())
    yield made
    # However a run ended: its nodes, which are this machine, keep nothing.
    for one in made.runs():
        folder = pathlib.Path("/tmp", f"lockstep-{one.path.name}")
        wait_for(lambda: not folder.exists(), message=lambda: list(folder.rglob("*")))
    made.end_all()


def run(control, *words, options=(), **more):
    return control.call("run", "--launcher", "slurm", *options, "--", *words, **more)


def test_ranks_and_their_environment(control, slurm):
    result = run(
        control,
        *("sh", "-c", "echo $RANK/$WORLD_SIZE $SLURM_PROCID $NODE_RANK $SLURMD_NODENAME"),
        options=("--nodes", "2", "--procs", "2"),
    )
    assert result.returncode == 0, result.stderr
    made = control.run()
    for rank in range(4):
        words = made.log(rank).split()
        assert words[:3] == [f"{rank}/4", str(rank), str(rank // 2)]
    assert made.log(0).split()[3] == made.log(1).split()[3] != made.log(2).split()[3]
    state = made.state()
    assert state["launcher"] == "slurm" and state["state"] == "done"
    assert state["job_id"] in result.stderr
    # What holds the key is for the owner alone.
    orders = made.path / "slurm" / "orders.json"
    assert orders.stat().st_mode & 0o777 == 0o600
    control.assert_nothing_left()


def test_time_limit_partition_and_options(control, slurm):
    control.script(
        "job.yaml",
        "name: asked\nresources: {launcher: slurm}\nmax_duration: 30m\n"
        "slurm: {partition: small, options: [--comment=ours]}\n"
        "run: scontrol show job $SLURM_JOB_ID\n",
    )
    result = control.call("run", "job.yaml")
    assert result.returncode == 0, result.stderr
    told = control.run().log(0)
    assert "Partition=small" in told and "Comment=ours" in told
    assert "JobName=asked" in told
    assert "TimeLimit=00:32:00" in told  # with the grace and a minute to store


def test_what_slurm_refuses_is_said(control):
    control.script(
        "job.yaml",
        "resources: {launcher: slurm}\nslurm: {partition: no-such}\nrun: 'true'\n",
    )
    result = control.call("run", "job.yaml")
    assert result.returncode in (2, 3)
    assert "invalid partition" in result.stderr.lower(), result.stderr
    assert not control.runs()


@pytest.mark.skipif(not os.path.exists(TRAINER), reason="no lockstep-train")
def test_srun_starts_the_trainer_by_itself(slurm, tmp_path):
    """No MASTER_ADDR, no lockstep: what srun says is enough."""
    words = ["vit", "data=synthetic", "experiment=tiny", "data.length=32",
             "data.batch_size=4", "model.depth=1", "trainer.max_steps=2",
             "trainer.device=cpu", f"out={tmp_path / 'run'}"]
    slurm.call("srun", "-N", "1", "-n", "2", TRAINER, *words)
    ranks = {line.split(",")[0]
             for line in (tmp_path / "run" / "timing.csv").read_text().splitlines()[1:]}
    assert ranks == {"0", "1"}


@pytest.mark.skipif(not os.path.exists(TRAINER), reason="no lockstep-train")
def test_a_mistyped_key_is_refused_before_the_start(control, slurm):
    control.environment["LOCKSTEP_TRAINER_BIN"] = TRAINER
    control.script(
        "job.yaml",
        "resources: {launcher: slurm}\ntrain:\n  recipe: vit\n  optim: {lrr: 1}\n",
    )
    result = control.call("run", "job.yaml")
    assert result.returncode == 2, result.stderr
    assert "job.yaml:4" in result.stderr and "optim.lr" in result.stderr
    assert not control.runs() and not slurm.jobs()


def test_a_failing_rank_is_named(control):
    result = run(
        control,
        *("sh", "-c", "if test $RANK = 1; then echo why; exit 6; fi; sleep 1000"),
        options=("--nodes", "2"),
    )
    assert result.returncode == 1
    assert "rank 1 failed" in result.stderr and "exit code 6" in result.stderr
    assert "why" in result.stderr
    control.assert_nothing_left()


def test_retries_start_again_in_the_allocation(control, slurm):
    program = (
        "if test $LOCKSTEP_GENERATION$RANK = 01; then exit 1; fi; "
        "echo generation $LOCKSTEP_GENERATION rank $RANK"
    )
    result = run(
        control, "sh", "-c", program, options=("--nodes", "2", "--retries", "1")
    )
    assert result.returncode == 0, result.stderr
    made = control.run()
    for rank in (0, 1):
        assert f"generation 1 rank {rank}" in made.log(rank)
    assert made.state()["generation"] == 1 and made.state()["restarts"] == 0
    wait_for(lambda: not slurm.jobs())


def test_ps_logs_attach_and_stop(control, slurm):
    program = "trap 'echo saved; exit 0' TERM; echo up; while true; do sleep 0.1; done"
    result = run(control, "bash", "-c", program, options=("--nodes", "2", "--detach"))
    assert result.returncode == 0, result.stderr
    made = control.run()
    wait_for(lambda: (made.path / "ranks/1.log").exists() and "up" in made.log(1))
    listed = control.call("ps").stdout
    assert "running" in listed and "slurm" in listed
    assert control.call("logs", "last", "--rank", "1").stdout == "up\n"
    watching = control.start("attach", "last")
    stopped = control.call("stop", "last")
    assert stopped.returncode == 0, stopped.stderr
    assert watching.wait(60) == 130
    assert made.state()["state"] == "stopped"
    for rank in (0, 1):
        assert made.log(rank).startswith("up\n")
        assert made.log(rank).endswith("saved\n")
    wait_for(lambda: not slurm.jobs())
    control.assert_nothing_left()


def test_ctrl_c(control, slurm):
    started = control.start(
        *("run", "--launcher", "slurm", "--grace", "2s", "--"),
        *("sh", "-c", "echo up; exec sleep 1000"),
    )
    wait_for(lambda: control.runs() and (control.run().path / "ranks/0.log").exists())
    started.send_signal(signal.SIGINT)
    assert started.wait(60) == 130, started.stderr.read()
    wait_for(lambda: not slurm.jobs())


def test_a_queued_run(control, slurm):
    """More nodes than are free: it waits, is listed so, and can be stopped."""
    first = run(control, "sleep", "1000", options=("--nodes", "4", "--detach", "--name", "one"))
    assert first.returncode == 0, first.stderr
    wait_for(lambda: any(state == "RUNNING" for _, state in slurm.jobs()))
    control.script(
        "job.yaml",
        "name: two\nresources: {launcher: slurm}\nnum_nodes: 4\n"
        "slurm: {options: [--exclusive]}\nrun: echo never\n",
    )
    second = control.call("run", "job.yaml", "--detach")
    assert second.returncode == 0, second.stderr
    wait_for(lambda: "queued" in control.call("ps").stdout)
    ids = {made.path.name.split("-")[0]: made.path.name for made in control.runs()}
    assert control.call("stop", ids["two"]).returncode == 0
    assert control.call("stop", ids["one"], "--now").returncode == 0
    wait_for(lambda: not slurm.jobs())


def test_a_job_that_was_cancelled_by_hand(control, slurm):
    started = control.start(
        *("run", "--launcher", "slurm", "--", "sh", "-c", "echo up; exec sleep 1000")
    )
    wait_for(lambda: control.runs() and (control.run().path / "ranks/0.log").exists())
    ((job, _),) = wait_for(slurm.jobs)
    slurm.call("scancel", job)
    assert started.wait(60) == 130, started.stderr.read()
    assert control.run().state()["state"] == "stopped"
