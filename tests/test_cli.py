"""The command line itself: help, errors with near names, formats, completion."""

import json
import os
import re
import shutil
import subprocess

import pytest

from control import LOCKSTEP, ROOT, Control

VERBS = ["run", "sweep", "bench", "plan", "ps", "logs", "stop", "report", "doctor", "data", "prices",
         "audit", "completion", "up", "status", "ssh", "exec", "push", "pull", "scale",
         "extend", "image", "down", "cost"]


@pytest.fixture
def control(tmp_path):
    return Control(tmp_path)


def test_version(control):
    result = control.call("--version")
    assert result.returncode == 0
    assert result.stdout.startswith("lockstep 0.")


@pytest.mark.parametrize("verb", VERBS)
def test_help_has_an_example(control, verb):
    result = control.call(verb, "--help")
    assert result.returncode == 0
    assert f"lockstep {verb}" in result.stdout and "Example" in result.stdout


def test_top_help_lists_every_verb_and_no_hidden_one(control):
    result = control.call("--help")
    for verb in VERBS:
        assert verb in result.stdout
    assert "keeper" not in result.stdout


def test_the_man_page_has_every_option_of_run(control):
    text = control.call("run", "--help").stdout
    options = set(re.findall(r"(?<![\w-])(--?[A-Za-z][\w-]*)", text.split("Example")[0]))
    assert {"--launcher", "--hosts", "-H", "--container"} <= options
    page = (ROOT / "docs" / "man" / "lockstep.1").read_text().replace("\\-", "-")
    part = page.split(".SH OPTIONS OF RUN")[1].split(".SH OPTIONS OF SWEEP")[0]
    common = page.split("Everywhere:")[1].split(".SH")[0]
    missing = [
        option
        for option in sorted(options)
        if not re.search(rf"(?<![\w-]){option}(?![\w-])", part + common)
    ]
    assert not missing, missing


@pytest.mark.parametrize(
    "words, hint",
    [
        (["rnu"], "run"),
        (["reprot", "x"], "report"),
        (["cancle"], "cancel"),
        (["run", "--proc", "2", "--", "true"], "--procs"),
        (["run", "--max-durration=3", "--", "true"], "--max-duration"),
        (["data", "get", "cifar"], "cifar10"),
        (["data", "get"], "'lockstep data get --help'"),
        (["data", "get", "fashion-mnist"], "fashion_mnist"),
        (["ps", "--outptu", "json"], "--output"),
    ],
)
def test_near_names_are_told(control, words, hint):
    result = control.call(*words)
    assert result.returncode == 2, result.stderr
    assert hint in result.stderr
    assert not result.stdout


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["run"],
        ["run", "--"],
        ["run", "--procs", "0", "--", "true"],
        ["run", "--procs", "two", "--", "true"],
        ["run", "--timeout", "soon", "--", "true"],
        ["run", "--budget", "much", "--", "true"],
        ["run", "--budget", "0", "--price", "1", "--", "true"],
        ["run", "--max-duration", "0s", "--", "true"],
        ["run", "--timeout", "0", "--", "true"],
        ["run", "--timeout", "", "--", "true"],
        ["run", "--max-duration", "", "--", "true"],
        ["run", "--max-duration=", "--", "true"],
        ["run", "--budget", "", "--price", "1", "--", "true"],
        ["run", "--price", "", "--", "true"],
        ["run", "--grace", "", "--", "true"],
        ["run", "--keep", "", "--", "true"],
        ["run", "--hosts", "a", "--ports", "", "--", "true"],
        ["run", "--env", "NOVALUE", "--", "true"],
        ["run", "--env", "RANK=1", "--", "true"],
        ["run", "absent.yaml"],
        ["run", "python3"],
        ["run", "--hosts", "a,,b", "--", "true"],
        ["run", "--hosts", "a,a", "--", "true"],
        ["run", "--hosts", "a", "--hostfile", "f", "--", "true"],
        ["run", "--hosts", "a", "--launcher", "local", "--", "true"],
        ["run", "--hosts", "a", "--ports", "9-3", "--", "true"],
        ["run", "--hosts", "a", "--nodes", "2", "--", "true"],
        ["run", "--hostfile", "f", "--", "true"],
        ["run", "--nodes", "2", "--", "true"],
        ["run", "--launcher", "nope", "--", "true"],
        ["run", "--launcher", "ssh", "--", "true"],
        ["run", "--detach", "--", "no-such-program"],
        ["attach", "no-such-run"],
        ["run", "--keep", "1h", "--", "true"],
        ["run", "--cluster", "c", "--", "true"],
        ["cost", "--since", "ever"],
        ["cost", "--since", ""],
        ["report", "no-such-run"],
        ["stop"],
        ["completion", "tcsh"],
        ["--output", "xml", "ps"],
        ["doctor", "--hosts", "a,,b"],
        ["doctor", "--hosts", "a", "--ports", "9-3"],
        ["doctor", "--hosts", "a", "--ports", ""],
        ["doctor", "--hostfile", "no-such-file"],
    ],
)
def test_bad_commands_exit_with_2_and_a_line(control, words):
    result = control.call(*words)
    assert result.returncode == 2, (result.stdout, result.stderr)
    assert result.stderr.startswith("lockstep: ")
    assert not control.runs()


@pytest.mark.parametrize(
    "words",
    [
        ["sweep", "--timeout"],
        ["sweep", "--grace"],
        ["sweep", "--price"],
        ["sweep", "--budget"],
        ["plan", "--budget"],
        ["plan", "--max-duration"],
        ["bench", "--candidates", "a=1,b=1", "--budget"],
    ],
)
def test_an_empty_limit_is_refused_wherever_it_is_given(control, words):
    control.script("job.yaml", "run: 'true'\n")
    result = control.call(words[0], "job.yaml", *words[1:], "")
    assert result.returncode == 2, (result.stdout, result.stderr)
    assert words[-1] in result.stderr and "write it as" in result.stderr


def test_program_without_dashes_gets_the_right_command(control):
    result = control.call("run", "python3", "train.py")
    assert "lockstep run -- python3 train.py" in result.stderr


def test_words_of_the_program_are_its_own(control):
    result = control.call("run", "--", "echo", "--procs", "--", "--help")
    assert result.returncode == 0
    assert control.run().log(0) == "--procs -- --help\n"


def test_output_may_stand_anywhere(control):
    for words in (["--output", "json", "ps"], ["ps", "--output", "json"]):
        assert json.loads(control.call(*words).stdout) == []


def test_dry_run_starts_nothing(control):
    control.script("job.yaml", "run: echo hi\nprocs_per_node: 3\nmax_duration: 2h\n")
    result = control.call("run", "job.yaml", "--dry-run", "--price", "0.5")
    assert result.returncode == 0
    assert "procs_per_node: 3" in result.stdout
    assert "at most $1.00" in result.stdout
    assert not control.runs()
    plan = json.loads(
        control.call("run", "job.yaml", "--dry-run", "--output", "json").stdout
    )
    assert [one["rank"] for one in plan["ranks"]] == [0, 1, 2]


def test_user_file_sets_defaults(control):
    folder = control.folder / "config" / "lockstep"
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(f"runs_dir: {control.folder}/mine\nprice: 2 USD\n")
    result = control.call("run", "--output", "json", "--", "true")
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    assert report["dollars_per_hour"] == 2
    assert report["directory"].startswith(f"{control.folder}/mine/")
    (folder / "config.yaml").write_text("runs_dri: x\n")
    result = control.call("ps")
    assert result.returncode == 2
    assert "config.yaml:1" in result.stderr and "runs_dir" in result.stderr
    (folder / "config.yaml").write_text("cap: -5 USD\n")
    result = control.call("ps")
    assert result.returncode == 2 and "config.yaml:1: cap" in result.stderr
    (folder / "config.yaml").write_text("cap: 5 USD\ncap_period: 7d\n")
    result = control.call("cost")
    assert result.returncode == 0 and "cap $5.00" in result.stdout


def test_doctor_tells_what_is_lacking(control):
    result = control.call("doctor", "--output", "json", timeout=120)
    found = {one["what"]: one for one in json.loads(result.stdout)}
    assert found["data cifar10"]["state"] == "lacking"
    assert found["data cifar10"]["fix"] == "lockstep data get cifar10"
    # The trainer reads Debian's package as it lies.
    if os.path.exists("/usr/share/datasets/fashion-mnist"):
        assert found["data fashion_mnist"]["state"] == "ok"
    for name in ("lockstep", "lockstep-train", "cores", "memory", "gpu", "runs folder",
                 "bash", "mpirun", "ssh"):
        assert name in found, name
    broken = [one for one in found.values() if one["state"] == "broken"]
    assert result.returncode == (1 if broken else 0)


def test_a_temporary_folder_that_is_not_there_is_not_needed(control):
    trainer = control.script("lockstep-train", "#!/bin/sh\necho 'data: {batch_size: 8}'\n")
    control.script("job.yaml", "train: {recipe: dcgan}\n")
    env = {"LOCKSTEP_TRAINER_BIN": str(trainer), "TMPDIR": str(control.folder / "nowhere")}
    for words in (["doctor"], ["run", "--dry-run", "job.yaml"], ["sweep", "job.yaml", "--dry-run", "--procs", "1"]):
        result = control.call(*words, env=env)
        assert "temp_directory_path" not in result.stderr, result.stderr
        assert words == ["doctor"] or result.returncode == 0, result.stderr


def test_a_node_takes_no_more_ranks_than_its_memory_joins(control):
    trainer = control.script("lockstep-train", "#!/bin/sh\n")
    control.script("job.yaml", "train: {recipe: dcgan}\n")
    env = {"LOCKSTEP_TRAINER_BIN": str(trainer)}
    result = control.call("run", "--dry-run", "--procs", "257", "job.yaml", env=env)
    assert result.returncode == 2 and "at most 256 on one node" in result.stderr, result.stderr
    assert control.call("run", "--dry-run", "--procs", "256", "job.yaml", env=env).returncode == 0
    assert control.call("run", "--dry-run", "--procs", "257", "--", "true").returncode == 0


def test_doctor_finds_a_trainer_that_does_not_start(control):
    control.script("lockstep-train", "#!/bin/sh\necho libtorch.so: cannot open >&2\nexit 127\n")
    result = control.call(
        "doctor", env={"LOCKSTEP_TRAINER_BIN": str(control.folder / "lockstep-train")}
    )
    assert result.returncode == 1
    assert "libtorch.so: cannot open" in result.stdout


def test_train_job_starts_the_trainer(control):
    control.script("lockstep-train", "#!/bin/sh\necho args: $@\n")
    control.script(
        "job.yaml",
        "train:\n  recipe: dcgan\n  data: {name: mnist, batch_size: 4}\n",
    )
    trainer = {"LOCKSTEP_TRAINER_BIN": str(control.folder / "lockstep-train")}
    result = control.call("run", "job.yaml", "trainer.max_epochs=2", env=trainer)
    assert result.returncode == 0, result.stderr
    assert control.run().log(0) == "args: dcgan data=mnist data.batch_size=4 trainer.max_epochs=2\n"
    absent = {"LOCKSTEP_TRAINER_BIN": str(control.folder / "nothing")}
    result = control.call("run", "job.yaml", env=absent)
    assert result.returncode == 2 and "lockstep-train" in result.stderr


def test_bash_completion_completes(control):
    script = control.call("completion", "bash").stdout
    path = control.script("completion.bash", script)

    def complete(*words):
        line = " ".join(f"'{word}'" for word in words)
        code = (
            f"source {path}; COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; "
            '_lockstep; printf "%s\\n" "${COMPREPLY[@]}"'
        )
        return subprocess.run(
            ["bash", "-c", code], capture_output=True, text=True, cwd=control.folder, check=True
        ).stdout.split()

    assert set(VERBS) <= set(complete("lockstep", ""))
    assert "--max-duration" in complete("lockstep", "run", "--max")
    assert complete("lockstep", "data", "g") == ["get"]
    assert "--to" in complete("lockstep", "data", "get", "--")


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_accept_their_script(control, shell):
    script = control.call("completion", shell)
    assert script.returncode == 0
    for verb in VERBS:
        assert verb in script.stdout
    if shutil.which(shell):
        path = control.script("completion", script.stdout)
        subprocess.run([shell, "-n", str(path)], check=True)


def test_starts_without_libtorch():
    libraries = subprocess.run(["ldd", LOCKSTEP], capture_output=True, text=True).stdout
    assert "libtorch" not in libraries and "libc10" not in libraries
