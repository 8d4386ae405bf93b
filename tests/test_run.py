"""lockstep run on this machine: environment, logs, exit codes, records."""

import json
import os
import pathlib
import re
import subprocess
import sys
import time

import pytest

from control import wait_for, without_leftovers

NAMES = (
    "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE NODE_RANK GROUP_RANK MASTER_ADDR "
    "MASTER_PORT OMP_NUM_THREADS TORCHELASTIC_RUN_ID TORCHELASTIC_RESTART_COUNT "
    "TORCHELASTIC_MAX_RESTARTS TORCHELASTIC_USE_AGENT_STORE GLOO_SOCKET_IFNAME "
    "NCCL_SOCKET_IFNAME LOCKSTEP_RUN_ID LOCKSTEP_RUN_DIR LOCKSTEP_EVENTS "
    "LOCKSTEP_COORDINATOR LOCKSTEP_KEY_FILE LOCKSTEP_GENERATION LOCKSTEP_CHECKPOINTS"
).split()


@pytest.fixture
def control(tmp_path):
    yield from without_leftovers(tmp_path)


def variables(text):
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


@pytest.mark.parametrize("procs", [1, 2, 3, 8])
def test_environment_is_complete(control, procs):
    stray = {"SLURM_JOB_ID": "7", "OMPI_COMM_WORLD_RANK": "5", "PMIX_RANK": "1"}
    result = control.call("run", "--procs", procs, "--", "env", env=stray)
    assert result.returncode == 0, result.stderr
    run = control.run()
    ports = set()
    for rank in range(procs):
        got = variables(run.log(rank))
        for name in NAMES:
            assert name in got, (rank, name)
        assert got["RANK"] == got["LOCAL_RANK"] == str(rank)
        assert got["WORLD_SIZE"] == got["LOCAL_WORLD_SIZE"] == str(procs)
        assert got["NODE_RANK"] == got["GROUP_RANK"] == "0"
        assert got["MASTER_ADDR"] == "127.0.0.1"
        assert got["GLOO_SOCKET_IFNAME"] == got["NCCL_SOCKET_IFNAME"] == "lo"
        assert got["TORCHELASTIC_USE_AGENT_STORE"] == "False"
        assert got["LOCKSTEP_RUN_ID"] == run.path.name
        assert got["LOCKSTEP_EVENTS"] == str(run.path / "ranks" / f"{rank}.jsonl")
        assert got["LOCKSTEP_CHECKPOINTS"] == str(run.path / "checkpoints")
        assert int(got["OMP_NUM_THREADS"]) >= 1
        assert not [name for name in got if name.startswith(("SLURM_", "OMPI_", "PMIX_"))]
        ports.add(got["MASTER_PORT"])
    assert len(ports) == 1


def test_key_file_is_private_and_goes_with_the_run(control):
    result = control.call("run", "--", "bash", "-c", "stat -c %a $LOCKSTEP_KEY_FILE")
    assert result.returncode == 0
    assert control.run().log(0).strip() == "600"
    assert not (control.run().path / ".key").exists()


def test_logs_are_apart_and_rank_0_is_shown(control):
    script = "echo out $RANK; echo err $RANK >&2; printf tail-$RANK"
    result = control.call("run", "--procs", 3, "--", "bash", "-c", script)
    assert result.returncode == 0
    for rank in range(3):
        assert control.run().log(rank) == f"out {rank}\nerr {rank}\ntail-{rank}"
    for line in ("out 0", "err 0", "tail-0"):
        assert line in result.stderr
    assert "out 1" not in result.stderr
    assert "out 0" not in result.stdout


def test_all_ranks_are_shown_with_their_number(control):
    result = control.call(
        "run", "--procs", 2, "--ranks", "all", "--", "bash", "-c", "echo hi $RANK"
    )
    assert "[r0] hi 0" in result.stderr
    assert "[r1] hi 1" in result.stderr


def test_run_directory_is_complete(control):
    result = control.call("run", "--procs", 2, "--name", "my run!", "--", "true")
    assert result.returncode == 0
    run = control.run()
    assert run.path.name.startswith("my-run-")
    for name in ("job.yaml", "events.jsonl", "timing.csv", "logbook.md", "state.json"):
        assert (run.path / name).is_file(), name
    for name in ("ranks", "tensorboard", "checkpoints", "samples"):
        assert (run.path / name).is_dir(), name
    state = run.state()
    assert state["state"] == "done" and state["exit_code"] == 0
    exits = [event for event in run.events() if event["kind"] == "exit"]
    assert sorted(event["rank"] for event in exits) == [0, 1]
    again = control.call("run", run.path / "job.yaml", "--dry-run")
    assert again.returncode == 0, again.stderr


def test_job_file_with_overrides(control):
    control.script("job.yaml", "name: j\nrun: echo $GREETING $RANK\nenvs: {GREETING: hi}\n")
    result = control.call("run", "job.yaml", "procs_per_node=2", "envs.GREETING=hello")
    assert result.returncode == 0, result.stderr
    assert control.run().log(1) == "hello 1\n"
    assert "procs_per_node: 2" in (control.run().path / "job.yaml").read_text()


def test_failing_rank_is_named_with_its_last_lines(control):
    script = (
        "if [ $RANK = 1 ]; then for i in $(seq 40); do echo line $i; done; exit 7; fi; "
        "trap '' TERM; sleep 100 & wait; sleep 100"
    )
    result = control.call("run", "--procs", 3, "--", "bash", "-c", script)
    assert result.returncode == 1
    assert re.search(r"rank 1 failed on \S+ \(pid \d+\): exit code 7", result.stderr)
    assert "| line 40" in result.stderr and "| line 1\n" not in result.stderr
    state = control.run().state()
    assert state["state"] == "failed" and "rank 1" in state["detail"]
    # Told once, and the others were ended within three seconds, whatever they
    # ignore.
    assert result.stderr.count("rank 1 failed") == 1
    exits = {e["rank"]: e["time"] for e in control.run().events() if e["kind"] == "exit"}
    assert max(exits.values()) - exits[1] < 3.5


def test_signal_is_named(control):
    result = control.call("run", "--procs", 2, "--", "bash", "-c", "kill -SEGV $$")
    assert result.returncode == 1
    assert "signal 11 (Segmentation fault)" in result.stderr


CGROUP = pathlib.Path("/sys/fs/cgroup/memory")


@pytest.mark.skipif(
    not (CGROUP / "memory.limit_in_bytes").exists() or not os.access(CGROUP, os.W_OK),
    reason="needs a writable cgroup v1 of memory",
)
def test_out_of_memory_is_told_apart(control):
    group = CGROUP / control.marker
    group.mkdir()
    try:
        (group / "memory.limit_in_bytes").write_text("200M")
        script = (
            "import os, time\n"
            "blocks = []\n"
            "while os.environ['RANK'] == '1':\n"
            "    blocks.append(b'x' * (8 << 20))\n"
            "time.sleep(1000)\n"
        )
        control.script("eat.py", script)
        process = control.start(
            "run", "--procs", 2, "--", sys.executable, "eat.py",
            preexec_fn=lambda: (group / "cgroup.procs").write_text(str(os.getpid())),
        )
        _, err = process.communicate(timeout=120)
        assert process.returncode == 1
        assert re.search(r"rank 1 failed on \S+ \(pid \d+\): out of memory, signal 9", err), err
        exits = [e for e in control.run().events() if e["kind"] == "exit" and e["rank"] == 1]
        assert exits[0]["reason"] == "out of memory"
    finally:
        wait_for(lambda: not (group / "cgroup.procs").read_text())
        group.rmdir()


def test_setup_runs_once_before_the_ranks(control):
    result = control.call(
        "run", "--procs", 2, "--setup", "echo once >> made", "--", "cat", "made"
    )
    assert result.returncode == 0, result.stderr
    assert control.run().log(0) == control.run().log(1) == "once\n"


def test_failing_setup_is_told(control):
    result = control.call("run", "--setup", "echo no such tool; exit 5", "--", "true")
    assert result.returncode == 1
    assert "setup failed" in result.stderr and "exit code 5" in result.stderr
    assert "| no such tool" in result.stderr
    assert not (control.run().path / "ranks" / "0.log").exists()


def test_timeout(control):
    result = control.call("run", "--timeout", "300ms", "--", "sleep", "100")
    assert result.returncode == 124
    assert control.run().state()["state"] == "timeout"


def test_duration_is_hard_and_graceful(control):
    script = "trap 'echo saved; exit 143' TERM; echo ready; while :; do sleep 0.05; done"
    result = control.call("run", "--max-duration", "2s", "--", "bash", "-c", script)
    assert result.returncode == 4, result.stderr
    assert "saved" in control.run().log(0)
    state = control.run().state()
    assert state["state"] == "capped" and "max_duration" in state["detail"]


def test_duration_is_kept_by_a_rank_that_ignores_signals(control):
    script = "trap '' TERM; while :; do sleep 0.05; done"
    result = control.call("run", "--max-duration", "1s", "--", "bash", "-c", script)
    assert result.returncode == 4
    state = control.run().state()
    assert state["ended"] - state["started"] < 10


def test_budget_needs_a_price_and_is_kept(control):
    result = control.call("run", "--budget", "1", "--", "true")
    assert result.returncode == 2 and "--price" in result.stderr
    # A tenth of a cent at 3.60 an hour: one second.
    result = control.call(
        "run", "--budget", "0.001", "--price", "3.6", "--grace", "0s", "--", "sleep", "100"
    )
    assert result.returncode == 4
    assert "budget" in result.stderr


def test_cost_is_told(control):
    result = control.call("run", "--price", "3600", "--output", "json", "--", "sleep", "0.2")
    report = json.loads(result.stdout)
    assert report["dollars_per_hour"] == 3600
    assert report["cost"] >= 0.2
    assert report["cost"] == pytest.approx(report["seconds"])
    cost = [event for event in control.run().events() if event["kind"] == "cost"]
    assert len(cost) == 1


def test_retries_make_generations(control):
    script = (
        "echo generation $LOCKSTEP_GENERATION $TORCHELASTIC_RESTART_COUNT "
        "of $TORCHELASTIC_MAX_RESTARTS; [ $LOCKSTEP_GENERATION = 2 ] && exit; "
        # Rank 0 fails: it has printed its line then.
        "[ $RANK = 1 ] && exec sleep 60; exit 1"
    )
    result = control.call("run", "--procs", 2, "--retries", 3, "--", "bash", "-c", script)
    assert result.returncode == 0, result.stderr
    assert control.run().log(0) == "".join(f"generation {g} {g} of 3\n" for g in range(3))
    assert control.run().state()["generation"] == 2
    assert "restart 1 of 3" in result.stderr


def test_retries_end(control):
    result = control.call("run", "--retries", 1, "--", "false")
    assert result.returncode == 1
    assert control.run().state()["generation"] == 1


def test_graceful_end_after_a_failure_elsewhere_is_not_the_cause(control):
    script = (
        "trap 'exit 143' TERM; if [ $RANK = 0 ]; then sleep 0.3; exit 9; fi; "
        "while :; do sleep 0.05; done"
    )
    result = control.call("run", "--procs", 4, "--", "bash", "-c", script)
    assert result.returncode == 1
    assert "rank 0 failed" in result.stderr and "code 143" not in result.stderr


def test_program_that_is_not_there(control):
    result = control.call("run", "--procs", 2, "--", "no-such-program-here")
    assert result.returncode == 2
    assert "no-such-program-here" in result.stderr and "no such program" in result.stderr
    assert not control.runs()


def test_program_that_is_not_executable(control):
    path = control.script("prog", "#!/bin/sh\n", mode=0o644)
    result = control.call("run", "--", "./prog")
    assert result.returncode == 2
    assert "not executable" in result.stderr and "chmod +x" in result.stderr
    path.write_text("#!/no/such/interpreter\n")
    path.chmod(0o755)
    result = control.call("run", "--", "./prog")
    assert result.returncode == 1
    assert "rank 0 did not start" in result.stderr


def test_unwritable_runs_folder(control):
    (control.folder / "file").write_text("")
    result = control.call("run", "--runs-dir", "file/runs", "--", "true")
    assert result.returncode in (1, 2)
    assert "file/runs" in result.stderr and "--runs-dir" in result.stderr


def test_missing_workdir(control):
    result = control.call("run", "--workdir", "nowhere", "--", "true")
    assert result.returncode == 2 and "nowhere" in result.stderr


def test_workdir_is_where_ranks_start(control):
    (control.folder / "inner").mkdir()
    result = control.call("run", "--workdir", "inner", "--", "pwd")
    assert result.returncode == 0
    assert control.run().log(0).strip() == str(control.folder / "inner")


def test_mistyped_key_has_its_line(control):
    control.script("job.yaml", "name: x\nrun: 'true'\nenvss: {}\n")
    result = control.call("run", "job.yaml")
    assert result.returncode == 2
    assert "job.yaml:3" in result.stderr and "envs" in result.stderr


@pytest.mark.parametrize(
    "text, words",
    [
        (
            "run: 'true'\nresourcs:\n  # on my own machines\n\n  hosts: [a]\n",
            "job.yaml:2: unknown key 'resourcs'; did you mean 'resources'?",
        ),
        (
            "run: 'true'\nhang:\n  polcy:\n    x: 1\n",
            "job.yaml:3: unknown key 'hang.polcy'; did you mean 'hang.policy'?",
        ),
        (
            "run: 'true'\nnum_nodes:\n  - 1\n",
            "job.yaml:2: num_nodes must be an integer, not the list [1]",
        ),
    ],
)
def test_a_mistyped_section_has_its_own_line(control, text, words):
    control.script("job.yaml", text)
    result = control.call("run", "job.yaml")
    assert result.returncode == 2
    assert result.stderr == f"lockstep: {words}\n"


@pytest.mark.parametrize(
    "resources, options, words",
    [
        (
            "hosts:\n    - a\n    - b:0",
            [],
            "job.yaml:3: resources.hosts: 'b:0': '0' is not a number of slots; "
            "accepted: 1 to 4096",
        ),
        (
            "hosts: [a]",
            ["resources.hosts=[b,b]"],
            "command line 'resources.hosts=[b,b]': resources.hosts: 'b' stands "
            "twice; give it more ranks with 'b:N'",
        ),
        (
            "hosts: [localhost]\n  hostfile: absent",
            [],
            "job.yaml:4: give either resources.hosts or resources.hostfile",
        ),
        # What is said on the command line takes the place of both.
        (
            "hosts: [localhost]\n  hostfile: absent",
            ["--hosts", "a,a"],
            "--hosts: 'a' stands twice; give it more ranks with 'a:N'",
        ),
        (
            "hostfile: absent",
            ["resources.hosts=[b,b]"],
            "command line 'resources.hosts=[b,b]': resources.hosts: 'b' stands "
            "twice; give it more ranks with 'b:N'",
        ),
    ],
)
def test_mistakes_in_the_hosts_of_a_job_have_their_place(
    control, resources, options, words
):
    control.script("job.yaml", f"run: 'true'\nresources:\n  {resources}\n")
    result = control.call("run", "job.yaml", *options)
    assert result.returncode == 2
    assert result.stderr == f"lockstep: {words}\n"


def test_a_program_where_a_job_file_belongs_is_told_how(control):
    control.script("train.py", "import os\nprint(os.getpid())\n")
    for words in (["train.py"], ["train.py", "--lr", "1"]):
        result = control.call("run", *words)
        assert result.returncode == 2
        assert "lockstep run -- " in result.stderr, result.stderr
    assert not control.runs()


def test_what_the_trainer_refuses_has_its_place(control):
    control.script("job.yaml", "name: x\ntrain:\n  seed: 1\n  recipe: dcgna\n")
    result = control.call("run", "job.yaml", "--dry-run")
    assert result.returncode == 2
    assert "job.yaml:4: unknown recipe 'dcgna'" in result.stderr
    control.script(
        "job.yaml", "name: x\ntrain:\n  recipe: dcgan\n  data: {image_size: 48}\n")
    result = control.call("run", "job.yaml", "--dry-run")
    assert result.returncode == 2
    assert "job.yaml:2: dcgan: image_size 48" in result.stderr
    control.script(
        "job.yaml",
        "train:\n  recipe: dcgan\n  optmi:\n    # slow\n    lr: 1\n"
        "  trainr:\n\n    max_epochs: 1\n",
    )
    result = control.call("run", "job.yaml", "--dry-run")
    assert result.returncode == 2
    for words in (
        "job.yaml:3: unknown key 'optmi'; did you mean 'optim'?",
        "job.yaml:6: unknown key 'trainr'; did you mean 'trainer'?",
    ):
        assert words in result.stderr, result.stderr


@pytest.mark.parametrize(
    "text, words",
    [
        ("resources: {cpus: 4+}\n", "resources.cpus needs resources.cloud"),
        ("optimise: {goal: cost}\n", "optimise: machines change only where they are rented"),
    ],
)
def test_what_is_not_there_is_refused(control, text, words):
    control.script("job.yaml", "run: 'true'\n" + text)
    result = control.call("run", "job.yaml")
    assert result.returncode == 2
    assert words in result.stderr
    assert not control.runs()


def test_a_text_that_is_no_archive_is_told(control):
    control.script("page.tar.gz", "<html>" * 500)
    control.script("job.yaml", "run: 'true'\nfile_mounts: {data: page.tar.gz}\n")
    result = control.call("run", "job.yaml")
    assert result.returncode == 2 and "page.tar.gz cannot be unpacked" in result.stderr
    assert not control.runs()


def test_the_report_knows_the_end_that_could_not_be_written(control):
    # As on a full disk: the last state.json does not come to be.
    break_it = 'd=$(dirname "$(dirname "$LOCKSTEP_EVENTS")"); rm "$d/state.json"; mkdir "$d/state.json"'
    result = control.call("--output", "json", "run", "--", "bash", "-c", break_it + "; exit 7")
    assert result.returncode == 1
    report = json.loads(result.stdout)
    assert report["state"] == "failed" and report["exit_code"] == 1
    assert "could not be written down" in result.stderr


def test_a_run_is_found_by_any_name(control):
    assert control.call("run", "--name", "mein Lauf \u00e4", "--", "true").returncode == 0
    found = control.call("report", "mein Lauf \u00e4")
    assert found.returncode == 0 and "done" in found.stdout, found.stderr


def test_a_name_like_a_path_finds_its_run(control):
    assert control.call("run", "--name", "a/../b", "--", "true").returncode == 0
    found = control.call("report", "a/../b")
    assert found.returncode == 0 and "done" in found.stdout, found.stderr
    absent = control.call("report", "a/../c")
    assert absent.returncode == 2 and "a/../c" in absent.stderr


def test_ps_lists_a_run_whose_state_is_damaged(control):
    assert control.call("run", "--", "true").returncode == 0
    run = control.run()
    (run.path / "state.json").write_text("{")
    listed = control.call("ps")
    assert listed.returncode == 0 and "state.json" in listed.stderr
    assert run.path.name in listed.stdout and "unreadable" in listed.stdout
    assert "no runs" not in listed.stderr
    (row,) = json.loads(control.call("--output", "json", "ps").stdout)
    assert row["id"] == run.path.name and row["state"] == "unreadable" and "state.json" in row["detail"]


@pytest.mark.parametrize("words", [["run", "."], ["run", "--runs-dir", "file/x", "--", "true"]])
def test_what_cannot_be_read_or_written_is_input(control, words):
    control.script("file", "")
    result = control.call(*words)
    assert result.returncode == 2, result.stderr
    assert not control.runs()


@pytest.mark.parametrize(
    "words",
    [["ps"], ["--output", "json", "ps"], ["cost"], ["report"], ["logs"], ["--version"], ["run", "--help"]],
)
def test_an_answer_that_nobody_gets_is_an_error(control, words):
    assert control.call("run", "--", "echo", "hi").returncode == 0
    with open("/dev/full", "w") as full:
        process = control.start(*words, stdout=full)
        errors = process.communicate(timeout=60)[1]
    assert process.returncode == 1, errors
    assert "lockstep: standard output cannot be written" in errors


@pytest.mark.parametrize("where", ["2>/dev/full", "2>&-"])
@pytest.mark.parametrize(
    "words, code",
    [(["run", "--timeout", "0.5s", "--grace", "1s", "--", "sleep", "600"], 124), (["rnu"], 2), (["run", "--odd"], 2)],
)
def test_messages_that_nobody_gets_change_no_end(control, words, code, where):
    process = subprocess.run(
        ["sh", "-c", f'exec "$@" {where}', "sh", *control.command(*words)],
        cwd=control.folder, env=control.environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, timeout=60,
    )
    assert process.returncode == code


def test_costs_end_with_the_machines(control):
    """A run whose command died: the journal of its cluster knows when they ended."""
    control.call("run", "--", "true")
    run = control.run()
    start = time.time() - 7200
    state = {**run.state(), "state": "running", "started": start, "ended": 0, "cluster": "blue",
             "launcher": "ssh", "head_host": "blue-0", "head_directory": "/x", "hosts": ["blue-0"],
             "dollars_per_hour": 3.0}
    (run.path / "state.json").write_text(json.dumps(state))
    folder = control.folder / ".local/state/lockstep/clusters/blue"
    folder.mkdir(parents=True)
    steps = [
        {"n": 1, "time": start, "step": "launch", "subject": "blue-0", "order": {}},
        {"n": 2, "time": start, "of": 1, "outcome": {"id": "i-1", "launched": start}},
        {"n": 3, "time": start + 5000, "step": "ended", "subject": "i-1",
         "order": {"at": start + 3600}, "whole": True},
    ]
    (folder / "journal.jsonl").write_text("".join(json.dumps(one) + "\n" for one in steps))
    told = json.loads(control.call("cost", "--output", "json").stdout)
    assert told["cost"] == pytest.approx(3.0) and told["runs"][0]["state"] == "lost"
    [row] = json.loads(control.call("ps", "--output", "json").stdout)
    assert row["state"] == "lost" and "gone" in row["detail"] and row["cost"] == pytest.approx(3.0)
    attached = control.call("attach")
    assert attached.returncode == 3 and "gone" in attached.stdout + attached.stderr
    assert run.state()["ended"] == pytest.approx(start + 3600)


def test_hundred_megabytes_are_complete(control):
    script = (
        "import sys\nline = b'x' * 99 + b'\\n'\n"
        "for i in range(1000):\n    sys.stdout.buffer.write(line * 1000)\n"
    )
    control.script("print.py", script)
    result = control.call(
        "run", "--output", "quiet", "--", sys.executable, "print.py", timeout=300
    )
    assert result.returncode == 0
    log = control.run().path / "ranks" / "0.log"
    assert log.stat().st_size == 100_000_000
    assert result.stdout.strip() == str(control.run().path)


def test_slow_reader_holds_up_nobody(control):
    """A reader that takes nothing must not keep the run from ending."""
    read, write = os.pipe()
    process = control.start(
        "run", "--", sys.executable, "-c", "for i in range(100000): print('x' * 99)",
        stderr=write, stdout=subprocess.PIPE,
    )
    os.close(write)
    try:
        out, _ = process.communicate(timeout=120)
    finally:
        os.close(read)
    assert process.returncode == 0
    assert control.run().log(0).count("\n") == 100000


def test_events_are_merged_and_timed(control):
    script = """
import json, os, time
with open(os.environ["LOCKSTEP_EVENTS"], "a") as events:
    for step in range(1, 6):
        event = {"v": 1, "kind": "iteration", "time": time.time(), "node": "n",
                 "rank": int(os.environ["RANK"]), "step": step, "epoch": 0, "samples": 4,
                 "data": 0.1, "compute": 0.2, "communication": 0.1, "wait": 0.1, "total": 0.5}
        events.write(json.dumps(event) + "\\n")
    metric = {"v": 1, "kind": "metric", "time": time.time(), "node": "n", "step": 5,
              "rank": int(os.environ["RANK"]), "epoch": 0,
              "values": {"loss": 1.0 + int(os.environ["RANK"])}}
    events.write(json.dumps(metric) + "\\n")
"""
    control.script("train.py", script)
    result = control.call(
        "run", "--procs", 2, "--output", "json", "--", sys.executable, "train.py"
    )
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    assert report["steps"] == 5 and report["samples"] == 40
    run = control.run()
    timing = (run.path / "timing.csv").read_text().splitlines()
    assert timing[0] == "rank,step,epoch,samples,data,compute,communication,wait,total"
    assert len(timing) == 11
    assert "0,5,0,4,0.1,0.2,0.1,0.1,0.5" in timing
    assert (run.path / "metrics.csv").read_text() == "step,epoch,loss\n5,0,1.5\n"


def test_two_runs_at_once(control):
    script = "echo $MASTER_PORT $LOCKSTEP_COORDINATOR; sleep 0.3"
    processes = [
        control.start("run", "--procs", 2, "--name", "same", "--", "bash", "-c", script)
        for _ in range(2)
    ]
    for process in processes:
        process.communicate(timeout=60)
        assert process.returncode == 0
    runs = control.runs()
    assert len(runs) == 2
    assert runs[0].log(0) == runs[0].log(1) != runs[1].log(0)


def test_torch_distributed_runs_unchanged(control):
    pytest.importorskip("torch")
    script = """
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
value = torch.tensor([float(dist.get_rank() + 1)])
dist.all_reduce(value)
print("sum", value.item(), "of", dist.get_world_size())
dist.destroy_process_group()
"""
    control.script("ddp.py", script)
    result = control.call("run", "--procs", 2, "--", sys.executable, "ddp.py", timeout=300)
    assert result.returncode == 0, result.stderr
    assert "sum 3.0 of 2" in control.run().log(0)
    assert "sum 3.0 of 2" in control.run().log(1)


def test_stop_logs_and_ps(control):
    script = "trap 'echo bye; exit 143' TERM; echo ready; while :; do sleep 0.05; done"
    process = control.start("run", "--procs", 2, "--", "bash", "-c", script)
    wait_for(lambda: control.runs() and "ready" in read(control.run(), 1))
    run = control.run()
    listed = json.loads(control.call("ps", "--output", "json").stdout)
    assert [(one["id"], one["state"]) for one in listed] == [(run.path.name, "running")]
    follower = control.start("logs", "last", "-f", "--rank", "1")
    stopped = control.call("stop", run.path.name[:6])
    assert stopped.returncode == 0, stopped.stderr
    process.communicate(timeout=60)
    assert process.returncode == 130
    out, _ = follower.communicate(timeout=60)
    assert out.startswith("ready") and out.rstrip().endswith("bye")
    assert "bye" in run.log(0)
    listed = json.loads(control.call("ps", "--output", "json").stdout)
    assert listed[0]["state"] == "stopped" and listed[0]["exit_code"] == 130
    again = control.call("stop", "last")
    assert again.returncode == 0 and "not running" in again.stderr
    told = json.loads(control.call("stop", "last", "--output", "json").stdout)
    assert told == {"id": run.path.name, "state": "stopped", "exit_code": 130}
    report = json.loads(control.call("report", "last", "--output", "json").stdout)
    assert report["state"] == "stopped"
    assert control.call("logs", "last", "--rank", "9").returncode == 2


def read(run, rank):
    path = run.path / "ranks" / f"{rank}.log"
    return path.read_text() if path.exists() else ""


def test_stop_never_signals_a_stranger(control):
    """A recorded pid that now belongs to somebody else is left alone."""
    control.call("run", "--", "true")
    run = control.run()
    state = run.state()
    state.update(state="running", pid=os.getpid(), ended=0)
    (run.path / "state.json").write_text(json.dumps(state))
    result = control.call("stop", "last")
    assert result.returncode == 0 and "lost" in result.stderr


def test_a_lost_run_costs_what_it_did_until_it_was_last_heard_of(control):
    script = "sleep 1; echo slept; exec sleep 100"
    run = control.start("run", "--price", "3600", "--", "bash", "-c", script)
    logs = control.runs_dir.glob
    wait_for(lambda: any("slept" in one.read_text() for one in logs("*/ranks/0.log")))
    run.kill()
    run.wait()
    told = json.loads(control.call("cost", "--output", "json").stdout)
    assert 0.2 < told["runs"][0]["cost"] < 30, told
