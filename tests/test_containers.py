"""Ranks in containers of real engines: dockerd and podman of the tests' own."""

import json
import os
import pathlib
import signal

import pytest
from control import Control, wait_for
from testbed_containers import Docker, Podman, needs_docker, needs_podman

ENGINES = [
    pytest.param(Docker, marks=needs_docker),
    pytest.param(Podman, marks=needs_podman),
]


@pytest.fixture(scope="module", params=ENGINES, ids=["docker", "podman"])
def engine(request):
    with request.param() as one:
        one.make_image("tools")
        yield one


@pytest.fixture
def control(tmp_path, engine):
    made = Control(tmp_path)
    made.environment.update(engine.environment())
    yield made
    made.end_all()
    engine.remove_containers()


def job(control, engine, text, container="{{image: tools, engine: {}}}"):
    head = f"name: boxed\ncontainer: {container.format(engine.program)}\n"
    return control.script("job.yaml", head + text, mode=0o644)


def said(control, rank, text):
    """Whether a rank of the only run printed this already."""
    try:
        return text in control.run().log(rank)
    except (OSError, AssertionError):
        return False


def test_ranks_run_in_the_image_and_see_workdir_and_run(control, engine):
    (control.folder / "data.txt").write_text("from the workdir")
    job(
        control,
        engine,
        "procs_per_node: 2\n"
        "envs: {COLOUR: dark blue}\n"
        "run: |\n"
        "  echo $RANK of $WORLD_SIZE $COLOUR $(cat data.txt)\n"
        "  test -e /etc/debian_version && echo not in the image\n"
        "  test -n \"$LOCKSTEP_KEY_FILE\" && test -r $LOCKSTEP_KEY_FILE && echo key\n"
        "  echo made > $LOCKSTEP_RUN_DIR/made-$RANK\n",
    )
    result = control.call("run", "job.yaml")
    assert result.returncode == 0, result.stderr
    run = control.run()
    for rank in (0, 1):
        assert f"{rank} of 2 dark blue from the workdir" in run.log(rank)
        assert "not in the image" not in run.log(rank)
        assert "key" in run.log(rank)
        assert (run.path / f"made-{rank}").read_text() == "made\n"
    assert engine.containers(everything=True) == []


# Without a choice docker is taken first.
@pytest.mark.parametrize("engine", ENGINES[:1], ids=["docker"], indirect=True)
def test_option_and_exit_code(control, engine):
    code = "run --procs 1 --container tools -- sh -c".split()
    result = control.call(*code, "echo doomed; exit 7")
    assert result.returncode == 1
    assert "exit code 7" in result.stderr and "doomed" in result.stderr
    assert engine.containers(everything=True) == []


def test_no_secret_in_any_command_line(control, engine):
    job(
        control,
        engine,
        "secrets: {TOKEN: null}\n"
        "run: |\n"
        "  echo length ${#TOKEN}; while test ! -e go; do sleep 0.1; done\n",
    )
    started = control.start("run", "job.yaml", env={"TOKEN": "hush-hush-token"})
    wait_for(lambda: said(control, 0, "length 15"))
    lines = b""
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                lines += (entry / "cmdline").read_bytes()
            except OSError:
                pass
    assert b"hush-hush-token" not in lines
    (control.folder / "go").touch()
    assert started.wait(60) == 0


@pytest.mark.parametrize("way", ["stop", "kill", "keeper"])
def test_no_container_outlives_its_rank(control, engine, way):
    """Asked, and with lockstep or its keeper killed by SIGKILL."""
    # One that does not listen to SIGTERM, so that SIGKILL must come.
    job(
        control,
        engine,
        "grace: 1s\nprocs_per_node: 2\n"
        "run: |\n  trap '' TERM; echo up; while true; do sleep 1; done\n",
    )
    started = control.start("run", "job.yaml")
    wait_for(lambda: all(said(control, rank, "up") for rank in (0, 1)))
    run_id = control.run().path.name
    names = [f"lockstep-{run_id}-g0-r{rank}" for rank in (0, 1)]
    # An engine may list one as running a moment after it printed.
    wait_for(lambda: sorted(engine.containers()) == names, message=engine.containers)
    if way == "stop":
        started.send_signal(signal.SIGINT)
    elif way == "kill":
        started.kill()
    else:
        for pid, line in control.left():
            if b"\0keeper\0" in line:
                os.kill(pid, signal.SIGKILL)
    started.wait(60)
    wait_for(lambda: engine.containers() == [], message=engine.containers)
    control.assert_nothing_left()


def test_a_failing_rank_ends_the_others(control, engine):
    job(
        control,
        engine,
        "procs_per_node: 2\n"
        "run: |\n"
        "  if test $RANK = 1; then exit 3; fi; while true; do sleep 1; done\n",
    )
    result = control.call("run", "job.yaml")
    assert result.returncode == 1
    assert "rank 1 failed" in result.stderr and "exit code 3" in result.stderr
    assert engine.containers() == []


def test_a_dockerfile_is_built_once_for_each_content(control, engine):
    file = control.folder / "Dockerfile"
    file.write_text("FROM tools\nCOPY message /message\n")
    message = control.folder / "message"
    message.write_text("first\n")
    (control.folder / ".dockerignore").write_text("runs\n")
    job(
        control,
        engine,
        "procs_per_node: 2\nrun: cat /message\n",
        container="{{build: ./Dockerfile, engine: {}}}",
    )
    before = set(engine.images())
    assert control.call("run", "job.yaml").returncode == 0
    once = set(engine.images())
    assert len(once - before) == 1
    assert control.call("run", "job.yaml").returncode == 0
    assert set(engine.images()) == once
    message.write_text("second\n")
    assert control.call("run", "job.yaml").returncode == 0
    # Ids of one second have no order of their own.
    runs = sorted(control.runs(), key=lambda run: run.state()["started"])
    told = [run.log(rank).split()[-1] for run in runs for rank in (0, 1)]
    assert told == ["first"] * 4 + ["second"] * 2


@pytest.mark.parametrize(
    "container, words",
    [
        ("{{image: no-such-image:at-all, engine: {}}}", "no-such-image"),
        ("{{build: absent/Dockerfile, engine: {}}}", "absent/Dockerfile is not there"),
    ],
)
def test_what_is_wrong_is_said(control, engine, container, words):
    job(control, engine, "run: echo never\n", container=container)
    result = control.call("run", "job.yaml")
    assert result.returncode == 1
    assert words in result.stderr, result.stderr


def test_no_engine(control, engine):
    """A PATH without engines: a line that says so."""
    tools = control.folder / "tools"
    tools.mkdir()
    job(control, engine, f"envs: {{PATH: {tools}}}\nrun: echo never\n")
    result = control.call("run", "job.yaml")
    assert result.returncode == 1
    assert f"{engine.program} is not installed on" in result.stderr


def test_dry_run_shows_the_image(control, engine):
    job(control, engine, "run: echo hi\n")
    result = control.call("--output", "json", "run", "job.yaml", "--dry-run")
    assert result.returncode == 0
    assert "tools" in json.loads(result.stdout)["job"]
    assert not control.runs()
