"""`lockstep run` on machines that are rented for it: hosts of the test bed behind
a cloud. The AWS SDK is the witness of what is left and of what was stored."""

import json
import os
import pty
import signal
import subprocess

import pytest
import yaml
from clusters import Laptop, Site, tags_of
from testbed import ROOT, needs_root, wait_for
from testbed_cloud import BUILD, REGION, Cloud, Machines

pytestmark = needs_root

BUCKET = "results"


@pytest.fixture(scope="module")
def bed():
    with Cloud() as cloud, Machines(cloud) as machines:
        site = Site(cloud, machines)
        site.s3 = cloud.client("s3")
        site.s3.create_bucket(
            Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": REGION}
        )
        yield site
        assert not cloud.secret_seen


@pytest.fixture
def site(bed):
    bed.reset()
    yield bed
    bed.reset()
    bed.machines.mute = lambda one: False
    bed.clear()


@pytest.fixture
def laptop(site, tmp_path):
    laptop = Laptop(tmp_path, site)
    (tmp_path / "work").mkdir()
    yield laptop
    laptop.end_all()


def job(laptop, run, nodes=2, resources=None, **keys):
    """A job file for the bed."""
    site = laptop.site
    content = {
        "name": "try",
        "num_nodes": nodes,
        "workdir": str(laptop.folder / "work"),
        "run": run,
        "resources": {
            "cloud": "aws",
            "instance_type": "c5.xlarge",
            "region": REGION,
            "image_id": site.image["ImageId"],
            "user": "root",
            "subnet": site.machines.subnet_id,
            "ssh_from": ["203.0.113.7/32"],
            "idle": "60s",
            "ssh_timeout": "60s",
            **(resources or {}),
        },
        **keys,
    }
    path = laptop.folder / "job.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


def by(cpus, memory=None, gpus=None):
    """A type by what it has instead of by name."""
    keys = {"cpus": cpus, "memory": memory, "accelerators": gpus}
    return {"instance_type": None} | {k: v for k, v in keys.items() if v}


def nothing_is_left(site):
    assert site.live() == [] and site.others() == []


def stored(site, prefix=""):
    pages = site.s3.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix)
    return {one["Key"]: one["Size"] for page in pages for one in page.get("Contents", [])}


def begun(laptop):
    """The run, once its ranks have said something."""

    def look():
        runs = laptop.runs()
        return runs and (runs[0].path / "ranks/0.log").exists() and "begun" in runs[0].log(0) and runs[0]

    return wait_for(look, "the ranks run", 90)


CHECKPOINT = 'mkdir -p "$LOCKSTEP_CHECKPOINTS"; echo weights > "$LOCKSTEP_CHECKPOINTS/last"'


def test_from_launch_to_the_stored_result(site, laptop):
    (laptop.folder / "work/part").write_text("of the workdir\n")
    done = laptop.call(
        "run", job(
            laptop,
            f'echo "rank $RANK of $WORLD_SIZE on $(hostname)"; cat part ready; {CHECKPOINT}',
            setup="echo set up > ready; echo once >> ~/set-ups",
            outputs=f"s3://{BUCKET}/runs/", budget="5 USD",
        ), "-y", "--ranks", "all", "--output", "json", timeout=120,
    )
    assert done.returncode == 0, done.stderr
    for word in ("c5.xlarge", "on-demand", "0.17", "640 vCPUs", "an hour", "at most",
                 "2 machines given back"):
        assert word in done.stderr, done.stderr
    nothing_is_left(site)
    report = json.loads(done.stdout)
    run = laptop.run()
    hosts = set()
    for rank in (0, 1):
        log = run.log(rank)
        assert f"rank {rank} of 2" in log and "of the workdir\nset up\n" in log
        hosts.add(log.split()[5])
    assert len(hosts) == 2
    # Two machines for at least a minute each.
    state = run.state()
    assert state["cost"] >= 2 * 0.17 / 60 and state["dollars_per_hour"] > 0.34
    assert report["dollars_per_hour"] == pytest.approx(state["dollars_per_hour"])
    # Report and logbook have the bill.
    assert report["cost"] == pytest.approx(state["cost"])
    assert f"**${state['cost']:.6f}** in all" in (run.path / "logbook.md").read_text()
    costs = [one for one in run.events() if one["kind"] == "cost"]
    assert costs and costs[-1]["dollars"] == pytest.approx(state["cost"])
    # Everything is in the bucket, whole.
    prefix = f"runs/{run.path.name}/"
    keys = stored(site, prefix)
    assert {f"{prefix}{name}" for name in ("job.yaml", "events.jsonl", "state.json",
                                            "logbook.md", "ranks/0.log", "ranks/1.log",
                                            "checkpoints/last")} <= set(keys)
    body = site.s3.get_object(Bucket=BUCKET, Key=prefix + "checkpoints/last")["Body"].read()
    assert body == b"weights\n"
    assert state["outputs"] == f"s3://{BUCKET}/{prefix[:-1]}"
    # No trace of the account, and nothing known of machines that are gone.
    for path in run.path.rglob("*"):
        if path.is_file():
            assert site.cloud.key[1] not in path.read_text(errors="replace")
    folder = laptop.folder / "state/lockstep/clusters"
    assert not folder.exists() or not list(folder.iterdir())
    # What it came to, over all runs; and a cap over all of them.
    told = json.loads(laptop.call("cost", "--since", "1d", "--output", "json").stdout)
    assert told["cost"] == pytest.approx(state["cost"]) and len(told["runs"]) == 1
    assert "1 runs" in laptop.call("cost").stdout
    [row] = json.loads(laptop.call("ps", "--output", "json").stdout)
    assert row["cost"] == pytest.approx(state["cost"])
    config = laptop.folder / "config/lockstep"
    config.mkdir(parents=True)
    (config / "config.yaml").write_text("cap: 0.001 USD\n")
    refused = laptop.call("run", laptop.folder / "job.yaml", "-y")
    assert refused.returncode == 2 and "your cap" in refused.stderr
    assert len(laptop.runs()) == 1
    nothing_is_left(site)


def test_a_failure_gives_back(site, laptop):
    done = laptop.call(
        "run", job(laptop, "echo so far; exit 7", nodes=1), "-y", timeout=120
    )
    assert done.returncode == 1, done.stderr
    assert "exit code 7" in done.stderr or "code 7" in done.stderr
    assert "so far" in laptop.run().log(0)
    nothing_is_left(site)


def test_a_set_up_that_fails_gives_back(site, laptop):
    done = laptop.call(
        "run", job(laptop, "true", nodes=1, setup="echo bad >&2; exit 3"), "-y", timeout=120
    )
    assert done.returncode == 1 and "setup failed" in done.stderr, done.stderr
    nothing_is_left(site)


def test_interrupt_stores_and_gives_back(site, laptop):
    text = f"trap '{CHECKPOINT}; exit 0' TERM; echo begun; while :; do sleep 0.1; done"
    started = laptop.start("run", job(laptop, text, nodes=1, grace="20s"), "-y")
    begun(laptop)
    assert len(site.live()) == 1
    started.send_signal(signal.SIGTERM)
    _, words = started.communicate(timeout=90)
    assert started.returncode == 130, words
    assert (laptop.run().path / "checkpoints/last").read_text() == "weights\n"
    nothing_is_left(site)


def test_interrupt_while_machines_boot(site, laptop):
    site.machines.mute = lambda one: True
    started = laptop.start("run", job(laptop, "true"), "-y")
    wait_for(lambda: len(site.live()) == 2, "both are launched")
    started.send_signal(signal.SIGTERM)
    _, words = started.communicate(timeout=60)
    assert started.returncode == 130, words
    nothing_is_left(site)
    assert not laptop.runs()


def test_interrupt_in_the_set_up(site, laptop):
    started = laptop.start(
        "run", job(laptop, "true", nodes=1, setup="touch ~/in-set-up; sleep 60"), "-y"
    )
    [one] = wait_for(site.live, "it is launched")
    alias = site.machines.alias_of(one["InstanceId"])
    wait_for(
        lambda: site.machines.run(alias, "ls ~/in-set-up", check=False), "it is set up", 90
    )
    started.send_signal(signal.SIGTERM)
    _, words = started.communicate(timeout=60)
    assert started.returncode == 130, words
    nothing_is_left(site)


# 0.004 dollars are 82 s of a machine.
@pytest.mark.parametrize("caps", [{"max_duration": "75s"}, {"budget": "0.004 USD"}])
def test_a_cap_checkpoints_stores_and_gives_back(site, laptop, caps):
    text = f"trap '{CHECKPOINT}; exit 0' TERM; echo begun; while :; do sleep 0.1; done"
    done = laptop.call(
        "run", job(laptop, text, nodes=1, outputs=f"s3://{BUCKET}/capped", **caps),
        "-y", timeout=150,
    )
    assert done.returncode == 4, done.stderr
    assert next(iter(caps)) in done.stderr
    nothing_is_left(site)
    run = laptop.run()
    assert run.state()["state"] == "capped"
    assert (run.path / "checkpoints/last").read_text() == "weights\n"
    assert f"capped/{run.path.name}/checkpoints/last" in stored(site, "capped/")
    if "budget" in caps:
        assert run.state()["cost"] <= 0.004


def test_kept_machines_and_a_run_on_them(site, laptop):
    done = laptop.call(
        "run", job(laptop, "cat ready", setup="echo one >> ready; echo x >> ~/times"),
        "-y", "--keep", "30m", timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "2 machines kept for 30m" in done.stderr
    live = site.live()
    assert len(live) == 2
    cluster = tags_of(live[0])["lockstep:cluster"]
    assert cluster.startswith("try-")
    told = json.loads(laptop.call("status", "--output", "json").stdout)
    assert all(1000 < one["lease_left_seconds"] <= 1800 for one in told)
    # A run on the cluster that is up; its set-up stands.
    content = yaml.safe_load((laptop.folder / "job.yaml").read_text())
    del content["resources"]
    (laptop.folder / "again.yaml").write_text(yaml.safe_dump(content))
    again = laptop.call(
        "run", "again.yaml", "--cluster", cluster, "--output", "json", timeout=90
    )
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["dollars_per_hour"] > 0.34
    assert len(site.live()) == 2
    times = laptop.call("exec", cluster, "--", "wc -l < ~/times")
    assert times.stdout.count("] 1\n") == 2, times.stdout
    assert laptop.call("down", cluster).returncode == 0
    nothing_is_left(site)


def test_detached_it_stores_and_gives_back_by_itself(site, laptop):
    refused = laptop.call("run", job(laptop, "true"), "-y", "--detach")
    assert refused.returncode == 2 and "outputs" in refused.stderr
    assert site.live() == []
    done = laptop.call(
        "run", job(laptop, "echo begun; until [ -e ~/go ]; do sleep 0.1; done", nodes=1,
                   outputs=f"s3://{BUCKET}/left"),
        "-y", "--detach", "--output", "json", timeout=120,
    )
    assert done.returncode == 0, done.stderr
    run = json.loads(done.stdout)["id"]
    [one] = site.live()
    site.machines.run(site.machines.alias_of(one["InstanceId"]), "touch ~/go")
    wait_for(lambda: not site.live(), "it is given back", 90)
    wait_for(lambda: f"left/{run}/state.json" in stored(site, "left/"), "it is stored", 60)
    laptop.assert_nothing_left(60)
    nothing_is_left(site)
    assert laptop.run().state()["state"] == "done"


@pytest.mark.parametrize(
    "keys, words, hint",
    [
        ({}, [], "-y"),
        ({"budget": "0.001 USD"}, ["-y"], "below the cost of one minute"),
        ({"max_duration": "59s"}, ["-y"], "below one minute"),
        ({"outputs": "s3://no-such-bucket-here/x"}, ["-y"], "no-such-bucket-here"),
        ({"outputs": "/tmp/x"}, ["-y"], "s3://"),
        ({"resources": {"cloud": "mars"}}, ["-y"], "accepted: aws"),
        ({"resources": {"instance_type": None}}, ["-y"], "no machine type"),
        ({"resources": {"instance_type": "c5.xlrage"}}, ["-y"], "'c5.xlarge'"),
        ({"resources": {"hosts": ["a"]}}, ["-y"], "exclude each other"),
        ({"resources": {"zones": ["x"], "subnet": None, "cloud": None}}, [], "resources.cloud"),
        ({"resources": {"bid": "0.1 USD"}}, ["-y"], "use_spot"),
        ({"file_mounts": {"in": "/no/such/folder"}}, ["-y"], "file_mounts.in"),
        ({"file_mounts": {"in": f"s3://{BUCKET}/no/such"}}, ["-y"], "nothing below s3"),
        ({"resources": {"cpus": "4+"}}, ["-y"], "exclude each other"),
        ({"resources": by("four")}, ["-y"], "resources.cpus: 'four'; accepted"),
        ({"resources": by("4", "900+")}, ["-y"], "nearest: r5.24xlarge (cpus 96, memory 768), r5.xlarge"),
        ({"resources": by("4+", gpus="T5:1")}, ["-y"], "did you mean 'T4'"),
        ({}, ["-y", "--keep", "soon"], "--keep"),
        ({}, ["-y", "--keep", "48h"], "--keep"),
        ({}, ["-y", "--launcher", "slurm"], "slurm"),
    ],
)
def test_bad_input_rents_nothing(site, laptop, keys, words, hint):
    before = len(site.instances())
    done = laptop.call("run", job(laptop, "true", nodes=1, **keys), *words)
    assert done.returncode in (2, 3), done.stderr
    assert hint in done.stderr, done.stderr
    assert len(site.instances()) == before and not laptop.runs()
    nothing_is_left(site)


@pytest.mark.skipif(not (BUILD / "bin/lockstep-train").exists(), reason="no trainer is built")
def test_a_mistyped_key_of_the_trainer_rents_nothing(site, laptop):
    train = {"recipe": "dcgan", "trainer": {"max_epohcs": 1}}
    path = job(laptop, None, nodes=1, procs_per_node=1, train=train)
    before = len(site.instances())
    done = laptop.call("run", path, "-y")
    assert done.returncode == 2 and "max_epochs" in done.stderr, done.stderr
    assert len(site.instances()) == before and not laptop.runs()


def test_an_unknown_price_under_a_budget_is_refused(site, laptop):
    site.cloud.documents["GetProducts"] = 200, json.dumps({"PriceList": []})
    site.cloud.documents["DescribeSpotPriceHistory"] = 200, "<r/>"
    path = job(laptop, "true", resources={"instance_type": "x1.16xlarge"}, budget="9 USD")
    done = laptop.call("run", path, "-y")
    assert done.returncode == 2 and "nobody knows the price" in done.stderr
    nothing_is_left(site)


def test_the_cheapest_type_that_has_what_is_asked(site, laptop):
    """By the shipped prices first, then by the user's own."""
    site.cloud.documents["GetProducts"] = 200, json.dumps({"PriceList": []})
    path = job(laptop, "echo begun", nodes=1, resources=by("4+", "16+"))
    before = {one["InstanceId"] for one in site.instances()}
    done = laptop.call("run", path, "-y", timeout=120)
    assert done.returncode == 0, done.stderr
    assert "m5.xlarge: the cheapest known type with cpus 4+, memory 16+" in done.stderr
    [made] = [one for one in site.instances() if one["InstanceId"] not in before]
    assert made["InstanceType"] == "m5.xlarge"
    assert "instance_type: m5.xlarge" in (laptop.run().path / "job.yaml").read_text()
    nothing_is_left(site)
    config = laptop.folder / "config/lockstep"
    config.mkdir(parents=True, exist_ok=True)
    (config / "config.yaml").write_text("prices: {r5.xlarge: 0.05}\n")
    done = laptop.call("run", path, "--dry-run")
    assert "r5.xlarge: the cheapest" in done.stderr and "$0.05" in done.stderr, done.stderr
    gpu = job(laptop, "true", nodes=1, resources=by("4+", gpus="T4:1"))
    done = laptop.call("run", gpu, "--dry-run")
    assert "g4dn.xlarge: the cheapest" in done.stderr, done.stderr


def test_dry_run_rents_nothing(site, laptop):
    before = len(site.instances())
    done = laptop.call("run", job(laptop, "true"), "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "c5.xlarge" in done.stderr and "cloud: aws" in done.stdout.replace('"', "")
    assert len(site.instances()) == before
    nothing_is_left(site)
    told = laptop.call("--output", "json", "run", job(laptop, "true", budget="1 USD"), "--dry-run")
    plan = json.loads(told.stdout)
    assert plan["nodes"] == 2 and "cloud: aws" in plan["job"].replace('"', "")
    assert plan["dollars_per_hour"] > 0.34 and plan["most_dollars"] == pytest.approx(1)


def comparison(laptop, run="true"):
    """A file of two jobs, each on a machine of its own."""
    job(laptop, run, nodes=1)
    path = laptop.folder / "both.yaml"
    path.write_text("compare: {a: job.yaml, b: job.yaml}\n")
    return path


def answered(laptop, answer, *words):
    """What a command did whose question was answered at a terminal."""
    ours, theirs = pty.openpty()
    asked = subprocess.Popen(
        laptop.command(*words), cwd=laptop.folder, env=laptop.environment,
        stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )
    os.close(theirs)
    os.write(ours, answer)
    out, said = asked.communicate(timeout=240)
    os.close(ours)
    return asked.returncode, out, said


def test_a_comparison_asks_once_for_all_it_rents(site, laptop):
    before = len(site.instances())
    file = comparison(laptop)
    code, _, said = answered(laptop, b"n\n", "run", file)
    assert code == 0 and "nothing was made" in said, said
    assert said.count("Proceed? [Y/n]") == 1
    # The price of each is before the question.
    assert said.split("Proceed?")[0].count("together $") == 2, said
    done = laptop.call("run", file)
    assert done.returncode == 2 and "give -y" in done.stderr, done.stderr
    assert done.stderr.count("together $") == 2
    assert len(site.instances()) == before and not laptop.runs()
    nothing_is_left(site)


def test_a_comparison_rents_once_it_may(site, laptop):
    code, out, said = answered(
        laptop, b"y\n", "run", comparison(laptop), "--output", "json"
    )
    assert code == 0, said
    assert said.count("Proceed? [Y/n]") == 1
    told = json.loads(out)["variants"]
    assert [(one["name"], one["state"]) for one in told] == [("a", "done"), ("b", "done")]
    assert all(one["report"]["cost"] > 0 for one in told)
    nothing_is_left(site)


def test_results_of_other_runs_are_stored_too(site, laptop):
    done = laptop.call(
        "run", f"outputs=s3://{BUCKET}/own", "--name", "own", "--", "sh", "-c",
        "echo hi; mkdir -p $LOCKSTEP_CHECKPOINTS; echo > $LOCKSTEP_CHECKPOINTS/.last.tmp-1-2",
    )
    assert done.returncode == 0, done.stderr
    assert not [key for key in stored(site, "own/") if ".tmp-" in key]
    [log] = [key for key in stored(site, "own/") if key.endswith("ranks/0.log")]
    assert site.s3.get_object(Bucket=BUCKET, Key=log)["Body"].read() == b"hi\n"


def test_the_example_runs_as_it_is(site, laptop):
    """But for what the bed is: its network and its user."""
    site.s3.create_bucket(
        Bucket="my-bucket", CreateBucketConfiguration={"LocationConstraint": REGION}
    )
    done = laptop.call(
        "run", ROOT / "examples/aws-run.yaml", "resources.user=root",
        f"resources.subnet={site.machines.subnet_id}",
        "resources.ssh_from=[203.0.113.7/32]", "-y", timeout=120,
    )
    assert done.returncode == 0, done.stderr
    run = laptop.run()
    assert "rank 0 of 2 on" in run.log(0) and "rank 1 of 2 on" in run.log(1)
    found = site.s3.list_objects_v2(Bucket="my-bucket")["Contents"]
    assert f"runs/{run.path.name}/checkpoints/last" in [one["Key"] for one in found]
    nothing_is_left(site)
