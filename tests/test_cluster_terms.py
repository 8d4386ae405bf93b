"""What clusters and runs on them hold to: names, budgets that are used up, caps of
every kind, and files with odd names. Machines are hosts of the test bed."""

import json
import os
import pty
import signal
import subprocess
import threading
import time

import pytest
import yaml
from clusters import Laptop, Site, tags_of
from test_run_cloud import CHECKPOINT, job
from testbed import command, needs_root, wait_for
from testbed_cloud import Cloud, Machines, refusal

pytestmark = needs_root


@pytest.fixture(scope="module")
def bed():
    with Cloud() as cloud, Machines(cloud) as machines:
        yield Site(cloud, machines)


@pytest.fixture
def site(bed):
    bed.reset()
    yield bed
    bed.reset()
    bed.clear()


@pytest.fixture
def laptop(site, tmp_path):
    laptop = Laptop(tmp_path / "laptop", site)
    (laptop.folder / "work").mkdir()
    yield laptop
    laptop.end_all()


def nodes_of(site, cluster):
    return sorted(tags_of(one)["lockstep:node"] for one in site.live(cluster))


def one_node(laptop, name, **keys):
    return laptop.file(name, nodes={"c5.xlarge": 1}, **keys)


def plain_job(laptop, run, **keys):
    """A job that names no machines."""
    content = {"run": run, "workdir": str(laptop.folder / "work"), **keys}
    path = laptop.folder / "plain.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


def settings(laptop, text):
    path = laptop.folder / "config/lockstep/config.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


# Names.


def test_a_cluster_of_that_name_made_elsewhere_is_left_alone(site, laptop, tmp_path):
    assert laptop.up(laptop.file("taken")).returncode == 0
    other = Laptop(tmp_path / "other", site)
    # It wants fewer: nobody's machine may end for that.
    refused = other.up(one_node(other, "taken"))
    assert refused.returncode == 2, refused.stderr
    assert "made elsewhere" in refused.stderr and "another name" in refused.stderr
    audit = other.call("audit", "--fix", "--output", "json")
    assert json.loads(audit.stdout)["ended"] == []
    assert nodes_of(site, "taken") == ["taken-0", "taken-1"]
    assert laptop.call("exec", "taken", "--", "true").returncode == 0
    assert laptop.call("down", "taken").returncode == 0


def test_a_cluster_stays_in_its_region(site, laptop):
    assert laptop.up(one_node(laptop, "here")).returncode == 0
    # Nothing may be launched there: its addresses would be no hosts of ours.
    site.cloud.documents["RunInstances"] = refusal("InsufficientInstanceCapacity", "none")
    moved = laptop.call(
        "up", one_node(laptop, "here", region="us-east-1", subnet=[]), "-y"
    )
    assert moved.returncode == 2, moved.stderr
    assert "is up in us-west-2" in moved.stderr and "--name" in moved.stderr
    assert nodes_of(site, "here") == ["here-0"]
    assert laptop.call("down", "here").returncode == 0
    assert site.live("here") == []


def test_an_audit_looks_where_clusters_were_made_from_here(site, laptop):
    assert laptop.up(one_node(laptop, "west")).returncode == 0
    env = {"AWS_REGION": "eu-west-1"}
    told = json.loads(laptop.call("audit", "--output", "json", env=env).stdout)
    assert told["regions"] == ["eu-west-1", "us-west-2"]
    assert "west-0" in [one.get("node") for one in told["resources"]]
    named = laptop.call("audit", "--region", "eu-west-1", "--output", "json", env=env)
    assert json.loads(named.stdout)["regions"] == ["eu-west-1"]
    assert laptop.call("down", "west").returncode == 0


# Money and time.


def test_a_budget_that_is_used_up_rents_no_more(site, laptop):
    # A minute costs 0.00287.
    file = one_node(laptop, "spent", budget="0.0031 USD", idle="1h")
    assert laptop.up(file).returncode == 0
    wait_for(lambda: not site.live("spent"), "the budget ends it", 120)
    again = laptop.up(file)
    assert again.returncode == 2, again.stderr
    assert "is used up" in again.stderr and "lockstep down spent" in again.stderr
    assert len(site.instances("spent")) == 1
    # The word of it holds: another life has a budget of its own.
    assert laptop.call("down", "spent").returncode == 0
    anew = laptop.up(file)
    assert anew.returncode == 0, anew.stderr
    assert len(site.live("spent")) == 1
    assert laptop.call("down", "spent").returncode == 0


def test_what_is_kept_is_kept_no_longer_than_its_cap(site, laptop):
    done = laptop.call(
        "run", job(laptop, "true", nodes=1, max_duration="4m"), "-y", "--keep", "30m",
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "kept for 30m" not in done.stderr and "1 machine kept for 3m" in done.stderr
    assert "budget or max_duration end" in done.stderr
    [one] = json.loads(laptop.call("status", "--output", "json").stdout)
    assert 60 < one["lease_left_seconds"] < 240
    assert laptop.call("down", one["cluster"]).returncode == 0


def test_a_budget_pays_for_what_leaves_the_cloud(site, laptop):
    """Seven minutes of the machine, but a checkpoint of 100 MB, and another to be
    expected, are most of the money."""
    text = (
        'truncate -s 100000000 "$LOCKSTEP_CHECKPOINTS/last.safetensors"\n'
        "trap 'exit 0' TERM; while :; do sleep 0.1; done"
    )
    begun = time.monotonic()
    done = laptop.call(
        "run", job(laptop, text, nodes=1, budget="0.02 USD"), "-y", timeout=150
    )
    assert done.returncode == 4 and "budget $0.0200" in done.stderr, done.stderr
    assert time.monotonic() - begun < 120
    run = laptop.run()
    assert (run.path / "checkpoints/last.safetensors").stat().st_size == 100_000_000
    assert 0.009 < run.state()["cost"] <= 0.02
    assert site.live() == [] and site.others() == []


def test_a_checkpoint_that_the_budget_does_not_pay_for_stays_until_asked(site, laptop):
    """Its fetching would pass the budget, as machines cost a minute at least: the
    machine stays, within the budget, for whoever wants it all the same."""
    # At once, as trainers rename theirs: of one that grows the run would end before
    # it is whole.
    text = (
        'truncate -s 210000000 "$LOCKSTEP_CHECKPOINTS/last.safetensors"\n'
        "trap 'exit 0' TERM; while :; do sleep 0.1; done"
    )
    path = job(laptop, text, nodes=1, budget="0.02 USD")
    done = laptop.call("run", path, "-y", timeout=150)
    assert done.returncode == 4, done.stderr
    assert "budget $0.0200, of which" in done.stderr
    assert "does not pay for fetching checkpoints/last.safetensors (200" in done.stderr
    run = laptop.run()
    assert not (run.path / "checkpoints/last.safetensors").exists()
    assert "kept for" in done.stderr and len(site.live()) == 1
    cluster = run.state()["cluster"]
    fetched = laptop.call("attach", run.path.name, timeout=60)
    assert (run.path / "checkpoints/last.safetensors").stat().st_size == 210_000_000, fetched
    assert laptop.call("down", cluster).returncode == 0
    assert site.live() == [] and site.others() == []


def test_a_checkpoint_that_will_be_too_large_ends_a_run_before_it_is_written(site, laptop):
    """As the native trainer says it before step 1."""
    text = (
        """echo '{"v":1,"kind":"init","time":1,"rank":0,"program":"x",'"""
        """'"facts":{"checkpoint_bytes":"300000000"}}' >> "$LOCKSTEP_EVENTS"\n"""
        "trap 'exit 0' TERM; while :; do sleep 0.1; done"
    )
    done = laptop.call(
        "run", job(laptop, text, nodes=1, budget="0.02 USD"), "-y", timeout=90
    )
    assert done.returncode == 4, done.stderr
    assert "budget $0.0200, of which 572" in done.stderr  # best and last
    assert laptop.run().state()["cost"] < 0.005
    assert site.live() == [] and site.others() == []


def test_a_set_up_that_hangs_ends_at_the_cap(site, laptop):
    begun = time.monotonic()
    done = laptop.call(
        "run", job(laptop, "true", nodes=1, setup="sleep 600", max_duration="60s"), "-y",
        timeout=120,
    )
    assert done.returncode == 4, done.stderr
    assert "max_duration 1m 00s is reached" in done.stderr
    assert time.monotonic() - begun < 60
    assert site.live() == [] and site.others() == []


def test_a_set_up_that_hangs_ends_at_the_timeout(site, laptop):
    done = laptop.call(
        "run", job(laptop, "true", nodes=1, setup="sleep 600"), "-y", "--timeout", "8s",
        timeout=60,
    )
    assert done.returncode == 124, done.stderr
    assert "timeout 8.0 s is reached" in done.stderr
    assert site.live() == [] and site.others() == []


def test_a_timeout_gives_back(site, laptop):
    text = f"trap '{CHECKPOINT}; exit 0' TERM; echo begun; while :; do sleep 0.1; done"
    done = laptop.call(
        "run", job(laptop, text, nodes=1, grace="10s"), "-y", "--timeout", "5s", timeout=120
    )
    assert done.returncode == 124, done.stderr
    assert (laptop.run().path / "checkpoints/last").read_text() == "weights\n"
    assert site.live() == [] and site.others() == []


def test_a_run_ends_before_the_machines_of_its_cluster(site, laptop):
    assert laptop.up(one_node(laptop, "brief", max_duration="75s")).returncode == 0
    text = f"trap '{CHECKPOINT}; exit 0' TERM; echo begun; while :; do sleep 0.1; done"
    done = laptop.call(
        "run", plain_job(laptop, text, grace="5s"), "--cluster", "brief", timeout=120
    )
    assert done.returncode == 4, done.stderr
    run = laptop.run()
    assert run.state()["state"] == "capped"
    assert (run.path / "checkpoints/last").read_text() == "weights\n"
    laptop.call("down", "brief")


def test_a_budget_on_nodes_of_unknown_price_is_refused(site, laptop):
    site.cloud.documents["GetProducts"] = 200, json.dumps({"PriceList": []})
    site.cloud.documents["DescribeSpotPriceHistory"] = 200, "<r/>"
    up = laptop.up(laptop.file("blind", nodes={"x1.16xlarge": 1}))
    assert up.returncode == 0, up.stderr
    path = plain_job(laptop, "echo ran", budget="1 USD")
    refused = laptop.call("run", path, "--cluster", "blind")
    assert refused.returncode == 2 and "nobody knows the price" in refused.stderr
    assert not laptop.runs()
    done = laptop.call("run", path, "--cluster", "blind", "--price", "1", timeout=90)
    assert done.returncode == 0, done.stderr
    table = laptop.call("status", "--no-lease").stdout
    assert "1 of unknown price" in table, table
    assert laptop.call("down", "blind").returncode == 0


def test_what_the_cap_leaves_is_the_budget_of_a_run(site, laptop):
    settings(laptop, "cap: 0.5 USD\n")
    path = job(laptop, "true", nodes=1)
    done = laptop.call("run", path, "--dry-run", "--output", "json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["most_dollars"] == pytest.approx(0.5)
    assert "your cap of $0.5000 leaves $0.5000" in done.stderr
    less = laptop.call("run", path, "--budget", "0.2", "--dry-run", "--output", "json")
    assert json.loads(less.stdout)["most_dollars"] == pytest.approx(0.2)
    # Not a minute of the machine.
    settings(laptop, "cap: 0.001 USD\n")
    refused = laptop.call("run", path, "-y")
    assert refused.returncode == 2 and "below the cost of one minute" in refused.stderr
    assert site.live() == []


def test_the_key_of_the_user_file_is_that_of_a_run_too(site, laptop):
    key = laptop.folder / "mine"
    command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key)
    settings(laptop, f"key: {key}\n")
    done = laptop.call(
        "run", job(laptop, "echo here", nodes=1), "-y", "--keep", "1m", timeout=120
    )
    assert done.returncode == 0, done.stderr
    [folder] = (laptop.folder / "state/lockstep/clusters").iterdir()
    assert not (folder / "key").exists()
    assert f'IdentityFile "{key}"' in (folder / "ssh_config").read_text()
    key.chmod(0o644)
    refused = laptop.call("run", laptop.folder / "job.yaml", "-y")
    assert refused.returncode == 2 and "read by others" in refused.stderr
    key.chmod(0o600)
    assert laptop.call("down", folder.name).returncode == 0
    assert site.live() == [] and site.others() == []


# Ctrl-C before anything is made.


def stop_at_the_question(laptop, words):
    """Its exit code and what it said, on a terminal."""
    ours, theirs = pty.openpty()
    begun = subprocess.Popen(
        laptop.command(*words), cwd=laptop.folder, env=laptop.environment,
        stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )
    os.close(theirs)
    said = ""
    while "Proceed? [Y/n]" not in said:
        said += begun.stderr.read(1)
    begun.send_signal(signal.SIGINT)
    begun.wait(timeout=20)
    os.close(ours)
    return begun.returncode, said + begun.stderr.read()


def test_ctrl_c_at_the_question(site, laptop):
    before = len(site.instances())
    both = laptop.folder / "both.yaml"
    both.write_text("compare: {a: job.yaml, b: job.yaml}\n")
    alone = job(laptop, "true", nodes=1)
    for words in (["up", one_node(laptop, "asked")], ["run", alone], ["run", both]):
        code, said = stop_at_the_question(laptop, words)
        assert code == 130, said
        assert "interrupted before anything was made" in said
    folder = laptop.folder / "state/lockstep/clusters"
    assert [path.name for path in folder.iterdir()] == ["asked"]
    assert len(site.instances()) == before and site.others() == []


def test_ctrl_c_while_the_cloud_does_not_answer(site, laptop):
    asked, over = threading.Event(), threading.Event()

    def answer(parameters):
        asked.set()
        over.wait(60)

    site.cloud.documents["DescribeInstanceTypes"] = answer
    begun = laptop.start("up", one_node(laptop, "silent"), "-y")
    try:
        assert asked.wait(30)
        begun.send_signal(signal.SIGINT)
        _, said = begun.communicate(timeout=10)
    finally:
        over.set()
    assert begun.returncode == 130, said
    assert site.instances("silent") == [] and site.others("silent") == []


# Words.


def test_a_cluster_by_option_takes_the_place_of_what_the_file_would_rent(site, laptop):
    assert laptop.up(one_node(laptop, "instead")).returncode == 0
    path = job(laptop, "echo here", nodes=1)
    done = laptop.call("run", path, "--cluster", "instead", timeout=90)
    assert done.returncode == 0, done.stderr
    assert "here" in laptop.run().log(0)
    assert nodes_of(site, "instead") == ["instead-0"] and len(site.live()) == 1
    both = laptop.call("run", path, "resources.cluster=instead", "-y")
    assert both.returncode == 2 and "either" in both.stderr
    assert laptop.call("down", "instead").returncode == 0


NAMES = ["-x", "--help", "a b", "q'uote", 'd"q', "ne\nw", "gr\u00fc\u00df", "$HOME", "*", "~"]


def test_files_with_odd_names(site, laptop):
    assert laptop.up(one_node(laptop, "odd")).returncode == 0
    folder = laptop.folder / "files"
    folder.mkdir()
    for name in NAMES:
        (folder / name).write_text(name)
        pushed = laptop.call("push", "odd", f"files/{name}", "~/in it")
        assert pushed.returncode == 0, (name, pushed.stderr)
        pulled = laptop.call("pull", "odd", f"~/in it/{name}", "back to")
        assert pulled.returncode == 0, (name, pulled.stderr)
        assert (laptop.folder / "back to" / name).read_text() == name
    words = ["", "a'b", "x\ny", '"', "$HOME", "*"]
    said = laptop.call("exec", "odd", "--", "printf", "%s|", *words)
    assert said.stdout == "|".join(words) + "|"
    twice = laptop.call("exec", "odd", "--node", "0,odd-0", "--", "echo once")
    assert twice.stdout == "once\n"
    for words in (["pull", "odd", "no/such", "x"], ["push", "odd", "no/such"]):
        assert laptop.call(*words).returncode in (1, 2)
    told = json.loads(laptop.call("extend", "odd", "1h", "--output", "json").stdout)
    assert told == {"cluster": "odd", "nodes": 1, "seconds": 3600.0}
    assert laptop.call("down", "odd").returncode == 0


def test_scale_to_another_type_keeps_the_image(site, laptop):
    """Not a current one of the cloud's: what was prepared is in it."""
    images = site.ec2.describe_images(
        Filters=[{"Name": "architecture", "Values": ["x86_64"]}]
    )["Images"]
    current = next(
        one["ImageId"] for one in images
        if one.get("RootDeviceName") and one["ImageId"] != site.image["ImageId"]
    )
    site.cloud.documents["GetParameter"] = 200, json.dumps({"Parameter": {"Value": current}})
    assert laptop.up(one_node(laptop, "baked")).returncode == 0
    none = laptop.call("scale", "baked", "m5.xlarge=0", "-y")
    assert none.returncode == 2 and "c5.xlarge" in none.stderr, none.stderr
    more = laptop.call("scale", "baked", "m5.xlarge=1", "-y", timeout=120)
    assert more.returncode == 0, more.stderr
    assert {one["ImageId"] for one in site.live("baked")} == {site.image["ImageId"]}
    assert len(site.live("baked")) == 2
    assert laptop.call("down", "baked").returncode == 0
