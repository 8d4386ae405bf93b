"""Ranks in containers on nodes: two hosts of the test bed, each with an engine of
its own, under agents and under mpirun; and under Slurm."""

import contextlib
import json
import os
import re
import shutil
import signal

import pytest
from control import Control, wait_for
from testbed import Hosts, command, needs_root
from testbed_containers import Docker, Podman, needs_docker, needs_podman
from testbed_slurm import Slurm, needs_slurm
from trainer import TRAIN, VIT

pytestmark = needs_root
LAUNCHERS = ["ssh", "mpi"]
IMAGE = "{{image: tools, engine: {}}}"
TRAINER = os.environ.get("LOCKSTEP_TRAINER_BIN", TRAIN)


class Bed:
    """Hosts n1 and n2 with an engine each."""

    def __init__(self, hosts, engines):
        self.hosts = hosts
        self.engines = engines  # by alias
        self.program = engines["n1"].program

    def containers(self):
        return sorted(
            (alias, name)
            for alias, engine in self.engines.items()
            for name in engine.containers(everything=True)
        )

    def job(self, control, launcher, text, container=IMAGE, envs=""):
        head = "name: boxed\n"
        head += f"container: {container.format(self.program)}\n"
        head += f"resources: {{launcher: {launcher}, hosts: [n1, n2]}}\n"
        head += "envs:\n  COLOUR: dark blue\n" + envs
        for alias, engine in self.engines.items():
            head += f"  {alias}:\n"
            for name, value in engine.environment().items():
                head += f"    {name}: {value}\n"
        return control.script("job.yaml", head + text, mode=0o644)


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(Docker, marks=needs_docker),
        pytest.param(Podman, marks=needs_podman),
    ],
    ids=["docker", "podman"],
)
def bed(request):
    with contextlib.ExitStack() as stack:
        hosts = stack.enter_context(Hosts(2))
        engines = {
            alias: stack.enter_context(request.param(hosts, alias))
            for alias in hosts.names
        }
        for engine in engines.values():
            engine.make_image("tools")
        yield Bed(hosts, engines)


@pytest.fixture
def control(tmp_path, bed):
    made = Control(tmp_path)
    made.environment.update(bed.hosts.environment())
    yield made
    made.end_all()
    for engine in bed.engines.values():
        engine.remove_containers()


def said(control, rank, text):
    try:
        return text in control.run().log(rank)
    except (OSError, AssertionError):
        return False


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_ranks_see_workdir_environment_and_run(control, bed, launcher):
    (control.folder / "code").mkdir()
    (control.folder / "code" / "data.txt").write_text("from the workdir")
    (control.folder / "more").mkdir()
    (control.folder / "more" / "x.txt").write_text("mounted")
    bed.job(
        control,
        launcher,
        "workdir: code\nprocs_per_node: 2\nfile_mounts: {more: more}\n"
        "run: |\n"
        "  echo $RANK of $WORLD_SIZE at $LOCAL_RANK $NODE_RANK $COLOUR\n"
        "  echo $(cat data.txt) $(cat more/x.txt) $(hostname)\n"
        "  echo mpi=$OMPI_COMM_WORLD_RANK\n"
        "  test -e /etc/debian_version && echo not in the image\n"
        "  test -r $LOCKSTEP_KEY_FILE && echo key\n"
        "  echo '{\"v\":1,\"kind\":\"metric\",\"time\":1,\"rank\":'$RANK',\"node\":\"\","
        "\"step\":1,\"epoch\":0,\"values\":{\"loss\":2}}' >> $LOCKSTEP_EVENTS\n",
    )
    result = control.call("run", "job.yaml", timeout=120)
    assert result.returncode == 0, result.stderr
    run = control.run()
    for rank in range(4):
        log = run.log(rank)
        assert f"{rank} of 4 at {rank % 2} {rank // 2} dark blue" in log
        assert f"from the workdir mounted node{rank // 2 + 1}" in log
        assert f"mpi={rank if launcher == 'mpi' else ''}\n" in log
        assert "not in the image" not in log and "key" in log
    told = {event["rank"] for event in run.events() if event["kind"] == "metric"}
    assert told == {0, 1, 2, 3}
    assert bed.containers() == []


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_an_exit_code_arrives_and_the_others_end(control, bed, launcher):
    bed.job(
        control,
        launcher,
        "run: |\n"
        "  if test $RANK = 1; then echo doomed; exit 7; fi\n"
        "  while true; do sleep 1; done\n",
    )
    result = control.call("run", "job.yaml", timeout=120)
    assert result.returncode == 1, result.stderr
    assert "rank 1 failed on n2" in result.stderr, result.stderr
    assert "exit code 7" in result.stderr and "doomed" in result.stderr
    wait_for(lambda: bed.containers() == [], message=bed.containers)


@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize("way", ["interrupt", "kill"])
def test_no_container_is_left(control, bed, launcher, way):
    """Of ranks that do not listen to SIGTERM: SIGKILL must come."""
    bed.job(
        control,
        launcher,
        "grace: 1s\nrun: |\n  trap '' TERM; echo up; while true; do sleep 1; done\n",
    )
    started = control.start("run", "job.yaml")
    wait_for(lambda: all(said(control, rank, "up") for rank in (0, 1)))
    run_id = control.run().path.name
    assert bed.containers() == [
        ("n1", f"lockstep-{run_id}-g0-r0"),
        ("n2", f"lockstep-{run_id}-g0-r1"),
    ]
    if way == "interrupt":
        started.send_signal(signal.SIGINT)
    else:
        assert control.call("stop", "last", "--now").returncode == 0
    assert started.wait(60) == 130, started.stderr.read()
    wait_for(lambda: bed.containers() == [], message=bed.containers)


def test_a_host_that_was_cut_off_ends_its_container(control, bed):
    bed.job(control, "ssh", "run: |\n  echo up; while true; do sleep 1; done\n")
    started = control.start("run", "job.yaml")
    wait_for(lambda: all(said(control, rank, "up") for rank in (0, 1)))
    bed.hosts.cut("n2")
    try:
        _, told = started.communicate(timeout=60)
        assert started.returncode == 3 and "node n2 was lost" in told, told
        wait_for(lambda: bed.containers() == [], message=bed.containers)
    finally:
        bed.hosts.restore("n2")


def test_a_real_mpi_program_in_containers(control, bed):
    """The trainer with the `mpi` collective; this machine's libraries stand for
    those of an image."""
    folders = {"/usr", "/lib", "/lib64", "/etc", os.path.dirname(TRAINER)}
    for line in command("ldd", TRAINER).splitlines():
        for word in line.split():
            if word.startswith("/") and not word.startswith(("/usr/", "/lib")):
                folders |= {os.path.dirname(word), os.path.dirname(os.path.realpath(word))}
    options = ", ".join(f"--volume, '{path}:{path}:ro'" for path in sorted(folders))
    bed.job(
        control,
        "mpi",
        f"run: {json.dumps([TRAINER, *VIT])}\n",
        container=f"{{{{image: tools, engine: {{}}, options: [{options}]}}}}",
        envs="  OMP_NUM_THREADS: 1\n",
    )
    result = control.call("run", "job.yaml", timeout=120)
    assert result.returncode == 0, result.stderr
    run = control.run()
    inits = [e for e in run.events() if e["kind"] == "init" and e["rank"] >= 0]
    assert {(e["node"], e["facts"]["collective"]) for e in inits} == {
        ("node1", "mpi"),
        ("node2", "mpi"),
    }
    assert (run.path / "checkpoints" / "last.safetensors").stat().st_size > 0


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_dockerfile_is_built_on_each_node(control, bed, launcher):
    (control.folder / "code").mkdir()
    file = control.folder / "code" / "Dockerfile"
    file.write_text("FROM tools\nCOPY message /message\n")
    (control.folder / "code" / "message").write_text(f"built {launcher}\n")
    bed.job(
        control,
        launcher,
        "workdir: code\nprocs_per_node: 2\nrun: cat /message\n",
        container="{{build: ./Dockerfile, engine: {}}}",
    )
    before = {alias: len(set(one.images())) for alias, one in bed.engines.items()}
    result = control.call("run", "job.yaml", timeout=120)
    assert result.returncode == 0, result.stderr
    for rank in range(4):
        assert control.run().log(rank).split()[-2:] == ["built", launcher]
    for alias, engine in bed.engines.items():
        assert len(set(engine.images())) == before[alias] + 1


@needs_slurm
@pytest.mark.parametrize(
    "engine",
    [
        pytest.param(Docker, marks=needs_docker),
        pytest.param(Podman, marks=needs_podman),
    ],
    ids=["docker", "podman"],
)
def test_under_slurm(engine, request):
    # Slurm's own default of KillWait is 30 s.
    with Slurm(kill_wait=30) as slurm, engine() as one:
        one.make_image("tools")
        folder = slurm.shared / re.sub(r"\W", "_", request.node.name)
        folder.mkdir()
        control = Control(folder)
        control.environment.update(slurm.environment())
        try:
            check_slurm(control, slurm, one)
        finally:
            control.end_all()


def check_slurm(control, slurm, engine):
    envs = "".join(f"  {k}: {v}\n" for k, v in engine.environment().items())
    head = (
        f"container: {{image: tools, engine: {engine.program}}}\n"
        "resources: {launcher: slurm}\nnum_nodes: 2\ngrace: 1s\n"
        f"envs:\n{envs}"
    )
    (control.folder / "data.txt").write_text("from the workdir")
    control.script(
        "job.yaml",
        "name: one\n" + head + "run: |\n"
        "  echo $RANK of $WORLD_SIZE $SLURM_PROCID $(cat data.txt)\n"
        "  test -r $LOCKSTEP_KEY_FILE && echo key\n"
        "  if test $RANK = 1; then exit 7; fi; while true; do sleep 1; done\n",
    )
    result = control.call("run", "job.yaml", timeout=120)
    assert result.returncode == 1, result.stderr
    assert "rank 1 failed" in result.stderr and "exit code 7" in result.stderr
    for rank in (0, 1):
        assert f"{rank} of 2 {rank} from the workdir\nkey\n" in control.run().log(rank)
    wait_for(lambda: engine.containers(everything=True) == [])
    shutil.rmtree(control.runs_dir)
    control.script(
        "job.yaml",
        "name: two\n" + head + "run: |\n"
        "  trap '' TERM; echo up; while true; do sleep 1; done\n",
    )
    for way in ("interrupt", "scancel"):
        started = control.start("run", "job.yaml")
        wait_for(lambda: all(said(control, rank, "up") for rank in (0, 1)))
        assert len(engine.containers(everything=True)) == 2
        if way == "interrupt":
            started.send_signal(signal.SIGINT)
        else:
            slurm.call("scancel", control.run().state()["job_id"])
        assert started.wait(60) == 130, started.stderr.read()
        wait_for(lambda: engine.containers(everything=True) == [])
        wait_for(lambda: not slurm.jobs())
        shutil.rmtree(control.runs_dir)
