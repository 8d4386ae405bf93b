"""Jobs that Slurm queues again: whoever watches sees one run to its end."""

import json
import os
import re
import time

import pytest
from control import Control, wait_for
from testbed import Hosts
from testbed_slurm import PREEMPTION, Slurm, needs_slurm
from trainer import TRAIN, VIT

TRAINER = os.environ.get("LOCKSTEP_TRAINER_BIN", TRAIN)

pytestmark = needs_slurm
needs_trainer = pytest.mark.skipif(
    not os.path.exists(TRAINER), reason="no lockstep-train"
)
# Until a job that is queued again starts: cred_expire of the test bed, and more
# for a node that Slurm must miss first.
PATIENCE = 120


@pytest.fixture(scope="module")
def slurm():
    with Slurm() as made:
        yield made


def control_on(slurm, request):
    folder = slurm.shared / re.sub(r"\W", "_", request.node.name)
    folder.mkdir()
    made = Control(folder)
    made.environment.update(slurm.environment())
    made.environment["LOCKSTEP_TRAINER_BIN"] = TRAINER
    return made


@pytest.fixture
def control(slurm, request):
    made = control_on(slurm, request)
    yield made
    made.end_all()


def start(control, *words, options=()):
    control.stderr = control.folder / "stderr"
    with open(control.stderr, "w") as file:
        return control.start(
            *("run", "--launcher", "slurm", "--grace", "1s", *options, *words),
            stderr=file,
        )


def said(control):
    """All that helps to see why."""
    texts = [control.stderr.read_text()]
    for run in control.runs():
        for name in ("state.json", "slurm/batch.log", "head.log", "launcher.log"):
            path = run.path / name
            texts.append(f"--- {name}\n{path.read_text() if path.exists() else ''}")
    return "\n".join(texts)


def up(control, rank=0, text="up"):
    if not control.runs():
        return False
    log = control.run().path / "ranks" / f"{rank}.log"
    return log.exists() and text in log.read_text(errors="replace")


def job_of(control):
    return (control.run().path / "slurm" / "job_id").read_text().strip()


WAITS_ONCE = (
    "echo up generation $LOCKSTEP_GENERATION; "
    "test $LOCKSTEP_GENERATION != 0 || exec sleep 1000"
)


def test_requeue_is_the_next_generation(control, slurm):
    started = start(control, "--", "sh", "-c", WAITS_ONCE)
    wait_for(lambda: up(control))
    job = job_of(control)
    following = control.start("logs", "last", "-f")
    begun = control.run().state()["started"]
    wait_for(lambda: time.time() > begun + 1)
    slurm.call("scontrol", "requeue", job)
    wait_for(lambda: slurm.state(job) == "PENDING")
    listed = control.call("ps").stdout
    assert "queued" in listed, listed
    assert started.poll() is None  # the end of the first start is not the end
    assert started.wait(PATIENCE) == 0, said(control)
    run = control.run()
    assert run.log(0) == "up generation 0\nup generation 1\n"
    shown, _ = following.communicate(timeout=60)
    assert following.returncode == 0 and shown == run.log(0), shown
    state = run.state()
    assert state["state"] == "done" and state["exit_code"] == 0, state
    assert state["generation"] == 1 and state["restarts"] == 1, state
    # Both starts count, but not the six seconds in the queue between them.
    used = state["ended"] - state["started"]
    assert 0.9 < used < state["ended"] - begun - 4, (used, begun, state)


def test_attach_and_stop_of_a_queued_again_job(control, slurm):
    """Its directory says "stopped" by now, or nothing at all."""
    started = start(control, "--", "sh", "-c", WAITS_ONCE)
    wait_for(lambda: up(control))
    job = job_of(control)
    slurm.call("scontrol", "requeue", job)
    wait_for(lambda: slurm.state(job) == "PENDING")
    slurm.call("scontrol", "hold", job)
    watching = control.start("attach", "last")
    stopped = control.call("stop", "last")
    assert stopped.returncode == 0, stopped.stderr
    assert watching.wait(60) == 130, watching.stderr.read()
    assert started.wait(60) == 130, said(control)
    assert control.run().state()["state"] == "stopped"
    assert not slurm.jobs()


def test_a_job_that_cannot_start_again_is_lost(control, slurm):
    """Not "stopped", which is what its first start had to say."""
    started = start(control, "--", "sh", "-c", WAITS_ONCE)
    wait_for(lambda: up(control))
    job = job_of(control)
    orders = control.run().path / "slurm" / "orders.json"
    orders.rename(orders.with_suffix(".away"))
    slurm.call("scontrol", "requeue", job)
    assert started.wait(PATIENCE) == 3, said(control)
    assert control.run().state()["state"] == "lost"
    assert "batch.log" in control.stderr.read_text()


STEPS = 1200


def train_job(control, nodes, slurm="{}"):
    """Long enough to be met on its way, on any machine."""
    keys = [word for word in VIT[2:] if not word.startswith("trainer.max_epochs")]
    keys += [f"trainer.max_steps={STEPS}", "trainer.max_epochs=100000"]
    keys += ["trainer.checkpoint_every=50"]
    lines = "".join(f"  {word.replace('=', ': ', 1)}\n" for word in keys)
    return control.script(
        "job.yaml",
        f"name: trained\nresources: {{launcher: slurm}}\nnum_nodes: {nodes}\n"
        f"slurm: {slurm}\n"
        "envs: {OMP_NUM_THREADS: 1}\n"
        f"train:\n  recipe: vit\n  data.name: synthetic\n{lines}",
    )


def events(control, kind, first=0):
    """Of rank 0."""
    if not control.runs() or not (control.run().path / "events.jsonl").exists():
        return []
    return [
        event
        for event in control.run().events()[first:]
        if event["kind"] == kind and event["rank"] == 0
    ]


def check_it_went_on(control):
    """Done, with the last step, and the second start went on from a checkpoint
    of the first."""
    run = control.run()
    state = run.state()
    assert state["state"] == "done" and state["generation"] == 1, state
    (listed,) = json.loads(control.call("--output", "json", "ps").stdout)
    assert listed["state"] == "done" and listed["step"] == STEPS, listed
    second = [
        index
        for index, event in enumerate(run.events())
        if event["kind"] == "init" and event["rank"] == 0
    ]
    assert len(second) == 2, second
    steps = [event["step"] for event in events(control, "iteration", second[1])]
    kept = {event["step"] for event in events(control, "checkpoint")}
    assert min(steps) > min(kept) > 0, (min(steps), kept)
    assert max(steps) == STEPS
    assert (run.path / "checkpoints" / "last.safetensors").stat().st_size > 0


@needs_trainer
def test_the_trainer_goes_on_from_its_checkpoint(control, slurm):
    train_job(control, nodes=2)
    started = start(control, "job.yaml")
    wait_for(lambda: events(control, "checkpoint"), message=lambda: said(control))
    slurm.call("scontrol", "requeue", job_of(control))
    assert started.wait(PATIENCE) == 0, said(control)
    check_it_went_on(control)


@needs_trainer
def test_the_trainer_survives_the_loss_of_a_node(request):
    """Not the one with the head: it has the job queued again. The next start
    is on nodes that are left."""
    with Hosts(3) as hosts, Slurm(hosts) as slurm:
        control = control_on(slurm, request)
        try:
            train_job(control, nodes=2)
            started = start(control, "job.yaml")
            wait_for(lambda: events(control, "checkpoint"), message=lambda: said(control))
            lost = control.run().state()["hosts"][1]
            hosts.power_off(f"n{lost.removeprefix('node')}")
            assert started.wait(PATIENCE) == 0, said(control)
            check_it_went_on(control)
            assert lost not in control.run().state()["hosts"]
            assert f"node {lost} was lost" in control.stderr.read_text(), said(control)
        finally:
            control.end_all()


@pytest.fixture(scope="module")
def yielding():
    with Slurm(count=2, more=PREEMPTION.format(grace=60)) as made:
        yield made


@pytest.fixture
def preempted(yielding, request):
    made = control_on(yielding, request)
    yield made
    made.end_all()


def take_all_nodes(slurm):
    """By a job that outranks ours, for a while."""
    slurm.call(
        *("sbatch", "--partition=urgent", "--nodes=2", "--exclusive"),
        *(f"--output={slurm.folder}/urgent.log", "--wrap=sleep 3"),
    )


@needs_trainer
def test_preemption_with_a_grace_time_is_not_the_end(preempted, yielding):
    """Slurm tells the ranks, and leaves it to them to end: what ends so has not
    ended for good."""
    train_job(preempted, nodes=2, slurm="{partition: yielding}")
    started = start(preempted, "job.yaml")
    wait_for(lambda: events(preempted, "checkpoint"), message=lambda: said(preempted))
    take_all_nodes(yielding)
    assert started.wait(PATIENCE) == 0, said(preempted)
    check_it_went_on(preempted)
    text = preempted.stderr.read_text()
    assert "preempted and is queued again" in text, text


def test_stop_of_a_preempted_job_is_the_end(preempted, yielding):
    """Its ranks do not hear Slurm; the user is heard."""
    preempted.script(
        "job.yaml",
        "name: deaf\nresources: {launcher: slurm}\nnum_nodes: 2\n"
        "slurm: {partition: yielding}\n"
        "run: |\n  trap 'echo told' TERM\n  echo up\n"
        "  while true; do sleep 0.2; done\n",
    )
    started = start(preempted, "job.yaml")
    wait_for(lambda: up(preempted))
    take_all_nodes(yielding)
    wait_for(lambda: up(preempted, text="told"), message=lambda: said(preempted))
    stopped = preempted.call("stop", "last")
    assert stopped.returncode == 0, stopped.stderr
    assert started.wait(60) == 130, said(preempted)
    assert preempted.run().state()["state"] == "stopped"
