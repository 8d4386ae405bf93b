"""Clusters, as a user has them: machines of a cloud that are hosts of the test
bed, from `up` to `down`. The AWS SDK is the witness of what exists."""

import json
import os
import pty
import resource
import signal
import subprocess
import time

import pytest
from clusters import Laptop, Site, tags_of
from testbed import ROOT, command, needs_root, wait_for
from testbed_cloud import REGION, Cloud, Machines, refusal

pytestmark = needs_root


@pytest.fixture(scope="module")
def bed():
    with Cloud() as cloud, Machines(cloud) as machines:
        yield Site(cloud, machines)
        assert not cloud.secret_seen


@pytest.fixture
def site(bed):
    bed.reset()
    yield bed
    bed.reset()
    bed.machines.mute = lambda one: False
    bed.clear()


@pytest.fixture
def public_policy():
    return json.loads((ROOT / "docs" / "aws-policy.json").read_text())


@pytest.fixture
def laptop(site, tmp_path):
    laptop = Laptop(tmp_path, site)
    yield laptop
    laptop.end_all()


def test_from_up_to_down(site, laptop):
    site.cloud.calls.clear()
    done = laptop.up(
        laptop.file("blue", setup_timeout="60s", nodes={
            "c5.xlarge": {"count": 2, "setup": ["echo one > ~/one", "echo two >> ~/one"]}
        }, tags={"team": "vision"}, budget="5 USD"),
    )
    assert done.returncode == 0, done.stderr
    # Before spending: type, market, dollars an hour, quota, total.
    for word in ("c5.xlarge", "on-demand", "0.17", "640 vCPUs", "an hour", "at most"):
        assert word in done.stderr, done.stderr
    nodes = json.loads(done.stdout)
    assert [one["node"] for one in nodes] == ["blue-0", "blue-1"]
    live = site.live("blue")
    assert len(live) == 2
    for one in live:
        tags = tags_of(one)
        assert tags["lockstep:timer"] == "runs" and tags["team"] == "vision"
        assert 0.17 < float(tags["lockstep:hourly"]) < 0.2
        [group] = one["SecurityGroups"]
        rules = site.ec2.describe_security_groups(GroupIds=[group["GroupId"]])
        assert "0.0.0.0/0" not in str(rules["SecurityGroups"][0]["IpPermissions"])
    # The table of status.
    told = json.loads(laptop.call("status", "--output", "json").stdout)
    assert {one["node"] for one in told} == {"blue-0", "blue-1"}
    for one in told:
        assert one["cost"] > 0 and one["dollars_per_hour"] > 0.17
        assert 0 < one["lease_left_seconds"] <= 61
    table = laptop.call("status", "blue").stdout
    for word in ("node", "type", "zone", "age", "lease left", "cost so far", "blue-1"):
        assert word in table
    # ssh, exec, push, pull.
    one = laptop.call("ssh", "blue-1", "--", "cat ~/one; exit 3")
    assert one.stdout == "one\ntwo\n" and one.returncode == 3, one.stderr
    every = laptop.call("exec", "blue", "--", "hostname && echo $((1+1))")
    assert every.returncode == 0, every.stderr
    assert every.stdout.count("] 2\n") == 2 and "[blue-0] " in every.stdout
    quoted = laptop.call("exec", "blue", "--node", "0", "--", "echo", "a  b", "$HOME")
    assert quoted.stdout == "a  b $HOME\n"
    failed = laptop.call("exec", "blue", "--", "exit 7")
    assert failed.returncode == 1 and "blue-1: exit code 7" in failed.stderr
    folder = laptop.folder / "data"
    folder.mkdir()
    (folder / "a b").write_text("x" * 100000)
    pushed = laptop.call("push", "blue", "data", "~/in")
    assert pushed.returncode == 0, pushed.stderr
    assert laptop.call("exec", "blue", "--node", "blue-1", "--",
                       "cat ~/in/data/* | wc -c").stdout.strip() == "100000"
    pulled = laptop.call("pull", "blue", "in/data", "out")
    assert pulled.returncode == 0, pulled.stderr
    for node in ("blue-0", "blue-1"):
        assert (laptop.folder / "out" / node / "data" / "a b").stat().st_size == 100000
    absent = laptop.call("pull", "blue", "nothing", "out", "--node", "0")
    assert absent.returncode == 1 and "nothing" in absent.stderr
    # Longer.
    extended = laptop.call("extend", "blue", "2h")
    assert extended.returncode == 0, extended.stderr
    told = json.loads(laptop.call("status", "--output", "json").stdout)
    assert all(7000 < one["lease_left_seconds"] <= 7200 for one in told)
    # Other numbers; a set-up that stands is not run again.
    more = laptop.call("scale", "blue", "c5.xlarge=3", "-y", timeout=120)
    assert more.returncode == 0, more.stderr
    assert len(site.live("blue")) == 3
    assert laptop.call("ssh", "blue-0", "--", "cat ~/one").stdout == "one\ntwo\n"
    fewer = laptop.call("scale", "blue", "c5.xlarge=1", "-y", timeout=120)
    assert fewer.returncode == 0, fewer.stderr
    assert [tags_of(i)["lockstep:node"] for i in site.live("blue")] == ["blue-0"]
    # An image.
    baked = laptop.call("image", "bake", "blue", "my-base", "--output", "quiet")
    assert baked.returncode == 0, baked.stderr
    image = site.ec2.describe_images(ImageIds=[baked.stdout.strip()])["Images"][0]
    assert image["Name"] == "my-base"
    down = laptop.call("down", "blue")
    assert down.returncode == 0, down.stderr
    assert "1 machine given back" in down.stdout and "$" in down.stdout
    assert site.live("blue") == [] and site.others("blue") == []
    assert "no machines" in laptop.call("status").stdout
    # Nothing of the key or the account is where it does not belong.
    state = laptop.folder / "state"
    text = "".join(
        path.read_text(errors="replace")
        for path in state.rglob("*") if path.is_file() and path.name != "key"
    )
    assert site.cloud.key[1] not in text and "PRIVATE KEY" not in text


def test_machines_end_when_idle_and_at_the_end_of_their_budget(site, laptop):
    # 2 machines at about 0.17: this is about 68 s of them, less the time to
    # shut down.
    budget = 0.0065
    poor = laptop.up(laptop.file("poor", budget=f"{budget} USD", idle="1h"))
    assert poor.returncode == 0, poor.stderr
    started = min(one["LaunchTime"].timestamp() for one in site.live("poor"))
    extended = laptop.call("extend", "poor", "2h")
    assert extended.returncode == 0, extended.stderr
    lazy = laptop.up(laptop.file("lazy", idle="12s"))
    assert lazy.returncode == 0, lazy.stderr
    # A run keeps its node, though nobody is logged in.
    busy = laptop.up(laptop.file("busy", idle="12s", nodes={"c5.xlarge": 1}))
    assert busy.returncode == 0, busy.stderr
    agent = "setsid bash -c 'exec -a \"x/lockstep agent\" sleep 30' >/dev/null 2>&1 &"
    assert laptop.call("ssh", "busy-0", "--", agent).returncode == 0
    # A session on one of them keeps both.
    session = laptop.start("ssh", "lazy-0", "--", "sleep 20")
    session.wait(90)
    assert session.returncode == 0, session.stderr.read()
    assert len(site.live("lazy")) == 2 and len(site.live("busy")) == 1
    wait_for(lambda: not site.live("busy"), "the run has ended", 90)
    wait_for(lambda: not site.live("lazy"), "idle ones are given back", 90)
    gone = laptop.call("ssh", "lazy-0", "--", "true")
    assert gone.returncode == 3 and "no machines" in gone.stderr
    wait_for(lambda: not site.live("poor"), "the budget ends them", 120)
    assert (time.time() - started) / 3600 * 2 * 0.1741 < budget
    assert len(site.instances("poor")) == len(site.instances("lazy")) == 2


def test_interrupted_up_gives_back(site, laptop):
    site.machines.mute = lambda one: True
    halted = laptop.start("up", laptop.file("halt"), "-y")
    wait_for(lambda: len(site.live("halt")) == 2, "both are launched")
    halted.send_signal(signal.SIGTERM)
    _, words = halted.communicate(timeout=60)
    assert halted.returncode == 130, words
    assert site.live("halt") == [] and site.others("halt") == []


def test_without_a_terminal_it_must_be_told(site, laptop):
    done = laptop.call("up", laptop.file("asked"))
    assert done.returncode == 2 and "-y" in done.stderr
    assert site.instances("asked") == [] and site.others("asked") == []


def test_a_person_is_asked(site, laptop):
    ours, theirs = pty.openpty()
    asked = subprocess.Popen(
        laptop.command("up", laptop.file("asked")),
        cwd=laptop.folder, env=laptop.environment, stdin=theirs,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )
    os.close(theirs)
    os.write(ours, b"n\n")
    _, words = asked.communicate(timeout=60)
    os.close(ours)
    assert asked.returncode == 0, words
    assert "Proceed? [Y/n]" in words and "nothing was made" in words
    assert site.instances("asked") == [] and site.others("asked") == []


def test_a_key_and_a_group_of_the_users_are_used_as_they_are(site, laptop):
    key = laptop.folder / "mine"
    command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key)
    settings = laptop.folder / "config/lockstep/config.yaml"
    settings.parent.mkdir(parents=True)
    settings.write_text(f"key: {key}\n")
    subnet = site.ec2.describe_subnets(SubnetIds=[site.machines.subnet_id])["Subnets"][0]
    group = site.ec2.create_security_group(
        GroupName="theirs", Description="x", VpcId=subnet["VpcId"]
    )["GroupId"]
    done = laptop.up(laptop.file("mine", security_group=group, nodes={"c5.xlarge": 1}))
    assert done.returncode == 0, done.stderr
    [one] = site.live("mine")
    assert [g["GroupId"] for g in one["SecurityGroups"]] == [group]
    by_hand = command("ssh", "-F", laptop.folder / "state/lockstep/clusters/mine/ssh_config",
                      "mine-0", "echo by hand")
    assert by_hand == "by hand\n"
    assert not (laptop.folder / "state/lockstep/clusters/mine/key").exists()
    assert laptop.call("down", "mine").returncode == 0
    left = site.ec2.describe_security_groups(GroupIds=[group])["SecurityGroups"][0]
    assert left["IpPermissions"] == []
    site.ec2.delete_security_group(GroupId=group)


def test_two_commands_at_once_on_one_cluster(site, laptop):
    site.machines.mute = lambda one: True
    first = laptop.start("up", laptop.file("one"), "-y")
    wait_for(lambda: laptop.journal("one"), "it works")
    second = laptop.up(laptop.file("one"))
    assert second.returncode == 3 and "another lockstep command" in second.stderr
    first.send_signal(signal.SIGTERM)
    first.communicate(timeout=60)
    assert site.live("one") == []


def test_two_ups_of_a_new_cluster_make_one_key(site, laptop):
    folder = laptop.folder / "bin"
    folder.mkdir()
    slow = folder / "ssh-keygen"
    slow.write_text('#!/bin/sh\necho >> "$0.calls"\nsleep 2\nexec /usr/bin/ssh-keygen "$@"\n')
    slow.chmod(0o755)
    env = {"PATH": f"{folder}:{os.environ['PATH']}"}
    site.machines.mute = lambda one: True
    first = laptop.start("up", laptop.file("twice"), "-y", env=env)
    wait_for(lambda: (folder / "ssh-keygen.calls").exists(), "the key is made")
    second = laptop.up(laptop.file("twice"), env=env)
    assert second.returncode == 3 and "another lockstep command" in second.stderr
    assert (folder / "ssh-keygen.calls").read_text() == "\n"
    first.send_signal(signal.SIGTERM)
    first.communicate(timeout=60)
    assert site.live("twice") == []


def test_down_settles_the_runs_of_its_cluster(site, laptop):
    assert laptop.up(laptop.file("left", nodes={"c5.xlarge": 1})).returncode == 0
    laptop.script("job.yaml", "run: 'echo begun; sleep 600'\n")
    command = laptop.start("run", "job.yaml", "--cluster", "left", "--price", "3600")
    wait_for(lambda: laptop.runs() and (laptop.run().path / "ranks/0.log").exists(), "it runs", 60)
    command.kill()
    command.wait()
    down = laptop.call("down", "left", timeout=120)
    assert down.returncode == 0, down.stderr
    state = laptop.run().state()
    assert state["state"] == "lost" and "machines are gone" in state["detail"], state
    first, second = (
        json.loads(laptop.call("report", "--output", "json").stdout) for _ in range(2)
    )
    assert first["cost"] == second["cost"] > 0 and first["state"] == "lost"
    stopped = laptop.call("stop", "last")
    assert stopped.returncode == 0 and "not running" in stopped.stderr


def test_down_works_where_the_cluster_was_never_seen(site, laptop, tmp_path):
    assert laptop.up(laptop.file("far", nodes={"c5.xlarge": 1})).returncode == 0
    other = Laptop(tmp_path / "other", site)
    seen = json.loads(other.call("status", "--output", "json").stdout)
    assert [one["node"] for one in seen] == ["far-0"]
    assert seen[0]["dollars_per_hour"] > 0.17
    # Its timer was seen to run: it is owned, and no audit ends it.
    audit = json.loads(other.call("audit", "--fix", "--output", "json").stdout)
    assert audit["ended"] == []
    owned = {one["kind"]: one["owned_by"] for one in audit["resources"]}
    assert owned["instance"] == "its lease"
    assert owned["key pair"] in ("its maker", "its cluster")
    done = other.call("down", "far", "--region", REGION)
    assert done.returncode == 0, done.stderr
    assert site.live("far") == [] and site.others("far") == []


# Bad input: a clear error within its time, machines given back.


def nothing_is_left(site, name):
    assert site.live(name) == []
    assert site.others(name) == []


@pytest.mark.parametrize(
    "code, words, exit_code, hint",
    [
        ("InsufficientInstanceCapacity", "none is free", 3, "fallback"),
        ("VcpuLimitExceeded", "your limit is 0", 3, "quota"),
        ("UnauthorizedOperation", "You are not authorized", 2, "ec2:RunInstances"),
        ("InsufficientFreeAddressesInSubnet", "no addresses", 3, "no addresses"),
        ("AuthFailure", "not able to validate", 2, "credentials"),
    ],
)
def test_a_refused_launch_is_told(site, laptop, code, words, exit_code, hint):
    site.cloud.documents["RunInstances"] = refusal(code, words, 403 if exit_code == 2 else 400)
    done = laptop.up(laptop.file("bad"))
    assert done.returncode == exit_code, done.stderr
    assert words in done.stderr and hint in done.stderr
    nothing_is_left(site, "bad")


def test_a_shortage_leads_to_the_next_type(site, laptop):
    def answer(parameters):
        if parameters["InstanceType"] == "c5.xlarge":
            return refusal("InsufficientInstanceCapacity", "none is free")
        return None

    site.cloud.documents["RunInstances"] = answer
    done = laptop.up(laptop.file("other", nodes={
        "c5.xlarge": {"count": 1, "fallback": ["m5.xlarge"]}
    }))
    assert done.returncode == 0, done.stderr
    assert [one["type"] for one in json.loads(done.stdout)] == ["m5.xlarge"]
    assert laptop.call("down", "other").returncode == 0
    nothing_is_left(site, "other")


@pytest.mark.parametrize(
    "keys, hint",
    [
        ({"nodes": {"c5.xlrage": 1}}, "'c5.xlarge'"),
        ({"region": "eu-north-1", "nodes": {"p3.2xlarge": 1}}, "eu-north-1 has no p3.2xlarge"),
        ({"image_id": "ami-00000000000000000"}, "ami-00000000000000000"),
        ({"nodes": {"a1.large": 1}}, "x86_64"),
        ({"subnet": "subnet-00000000"}, "subnet-00000000"),
        ({"security_group": "sg-00000000"}, "sg-00000000"),
        ({"key": "no/such/key"}, "no/such/key"),
        ({"budget": "0.001 USD"}, "below the cost of one minute"),
        ({"nodes": {"c5.xlarge": 0}}, "count"),
        ({"ssh_from": ["0.0.0.0/0"]}, "open ssh to the world"),
        ({"instance_type": "c5.xlarge"}, "instance_type"),
    ],
)
def test_a_bad_cluster_file_is_told(site, laptop, keys, hint):
    done = laptop.up(laptop.file("bad", **keys))
    assert done.returncode in (2, 3), done.stderr
    assert hint in done.stderr, done.stderr
    assert "lockstep:" in done.stderr
    nothing_is_left(site, "bad")


def test_a_key_that_others_can_read_is_refused(site, laptop):
    key = laptop.folder / "key"
    key.write_text("not even a key\n")
    key.chmod(0o644)
    done = laptop.up(laptop.file("bad", key=str(key)))
    assert done.returncode == 2
    assert "read by others" in done.stderr and f"chmod 600 {key}" in done.stderr
    nothing_is_left(site, "bad")


def test_an_unknown_price_under_a_budget_is_refused(site, laptop):
    site.cloud.documents["GetProducts"] = 200, json.dumps({"PriceList": []})
    site.cloud.documents["DescribeSpotPriceHistory"] = 200, "<r/>"
    keys = {"nodes": {"x1.16xlarge": 1}, "budget": "9 USD"}
    done = laptop.up(laptop.file("bad", **keys))
    assert done.returncode == 2 and "nobody knows the price of x1.16xlarge" in done.stderr
    assert "price_may_be_unknown" in done.stderr
    nothing_is_left(site, "bad")


def test_a_quota_that_is_too_small_is_told_first(site, laptop):
    quota = {"Quota": {"Value": 6.0, "QuotaName": "vCPUs of the class"}}
    site.cloud.documents["GetServiceQuota"] = 200, json.dumps(quota)
    done = laptop.up(laptop.file("bad"))
    assert done.returncode == 3 and "8 are needed" in done.stderr, done.stderr
    nothing_is_left(site, "bad")
    assert site.instances("bad") == []


def test_a_machine_that_never_answers_is_given_back(site, laptop):
    site.machines.mute = lambda one: tags_of(one)["lockstep:node"] == "mute-1"
    begun = time.monotonic()
    done = laptop.up(laptop.file("mute", ssh_timeout="12s"))
    assert done.returncode == 3, done.stderr
    assert "mute-1" in done.stderr and "did not answer ssh within" in done.stderr
    assert time.monotonic() - begun < 100
    nothing_is_left(site, "mute")
    # Without it, when that is enough.
    enough = laptop.up(laptop.file(
        "mute", ssh_timeout="12s", nodes={"c5.xlarge": {"count": 2, "minimum": 1}}
    ))
    assert enough.returncode == 0, enough.stderr
    assert len(site.live("mute")) == 1
    assert laptop.call("down", "mute").returncode == 0


def test_nodes_that_are_ready_wait_for_those_that_are_not(site, laptop):
    done = laptop.up(laptop.file("slow", idle="10s", nodes={
        "c5.xlarge": {"count": 1},
        "m5.xlarge": {"count": 1, "setup": "sleep 20"},
    }))
    assert done.returncode == 0, done.stderr
    assert [one["node"] for one in json.loads(done.stdout)] == ["slow-0", "slow-b0"]
    assert len(site.live("slow")) == 2 and len(site.instances("slow")) == 2
    assert laptop.call("down", "slow").returncode == 0


def test_a_set_up_that_fails_is_told(site, laptop):
    done = laptop.up(laptop.file("broken", nodes={
        "c5.xlarge": {"setup": "echo this went wrong >&2; exit 5"}
    }))
    assert done.returncode == 3, done.stderr
    assert "broken-0: set-up step 1" in done.stderr
    assert "exit code 5" in done.stderr and "this went wrong" in done.stderr
    nothing_is_left(site, "broken")


@pytest.mark.parametrize(
    "words, hint",
    [
        (["ssh", "nothing-0"], "no cluster 'nothing'"),
        (["ssh", "nothing"], "is no node"),
        (["exec", "nothing", "--", "true"], "no cluster"),
        (["exec", "nothing"], "no command"),
        (["extend", "nothing", "soon"], "soon"),
        (["extend", "nothing", "90d"], "at most"),
        (["scale", "nothing", "c5.xlarge"], "no cluster"),
        (["image", "bake", "nothing", "x"], "3 to 128"),
        (["down", "9"], "no name of a cluster"),
        (["up", "nothing.yaml"], "nothing.yaml"),
        (["push", "nothing", "absent"], "is not there"),
    ],
)
def test_bad_words(site, laptop, words, hint):
    done = laptop.call(*words)
    assert done.returncode == 2, done.stderr
    assert hint in done.stderr


def test_status_over_a_thousand_machines_takes_pages_and_little_time(site, laptop):
    def answer(parameters):
        first = int(parameters.get("NextToken", "0"))
        items = "".join(
            f"<item><instancesSet><item><instanceId>i-{number:017d}</instanceId>"
            "<instanceType>c5.xlarge</instanceType><instanceState><name>running"
            "</name></instanceState><launchTime>2026-11-15T08:00:00.000Z"
            "</launchTime><tagSet><item><key>lockstep:cluster</key><value>big"
            f"</value></item><item><key>lockstep:node</key><value>big-{number}"
            "</value></item><item><key>lockstep:hourly</key><value>0.17</value>"
            "</item></tagSet></item></instancesSet></item>"
            for number in range(first, first + 100)
        )
        more = f"<nextToken>{first + 100}</nextToken>" if first < 900 else ""
        return 200, f"<r><reservationSet>{items}</reservationSet>{more}</r>"

    site.cloud.documents["DescribeInstances"] = answer
    site.cloud.calls.clear()
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = laptop.call("status", "--output", "json")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stderr
    nodes = json.loads(done.stdout)
    assert [one["node"] for one in nodes] == [f"big-{n}" for n in range(1000)]
    assert len([call for call in site.cloud.calls if call[0] == "DescribeInstances"]) == 10
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert used < 2


def test_doctor_looks_at_the_cloud(site, laptop):
    done = laptop.call("doctor", "--cloud", "--output", "json")
    assert done.returncode == 0, done.stdout + done.stderr
    found = {one["what"]: one for one in json.loads(done.stdout)}
    assert found["credentials"]["state"] == "ok"
    assert found["permission ec2:RunInstances"]["state"] == "ok"
    assert "640" in found["quota, on-demand like c5.xlarge"]["detail"]
    assert found["prices"]["detail"] == "api"
    assert site.others("lockstep-doctor") == []
    wrong = laptop.call("doctor", "--cloud", env={"AWS_SECRET_ACCESS_KEY": "x" * 40})
    assert wrong.returncode == 3 and "broken" in wrong.stdout
    assert "x" * 40 not in wrong.stdout + wrong.stderr
    away = laptop.call("doctor", "--cloud", env={"AWS_ENDPOINT_URL": "http://127.0.0.1:1"})
    assert away.returncode == 3 and "credentials" not in away.stdout, away.stdout


def test_the_policy_of_the_docs_is_enough(public_policy, tmp_path):
    with Cloud(public_policy) as cloud, Machines(cloud) as machines:
        laptop = Laptop(tmp_path, Site(cloud, machines))
        doctor = laptop.call("doctor", "--cloud")
        assert doctor.returncode == 0, doctor.stdout
        done = laptop.up(laptop.file("lean", nodes={"c5.xlarge": 1}))
        assert done.returncode == 0, done.stderr
        for words in (["status"], ["extend", "lean", "1h"], ["audit", "--fix"], ["down", "lean"]):
            called = laptop.call(*words)
            assert called.returncode == 0, (words, called.stderr)


def test_a_missing_permission_is_told(tmp_path):
    look = {"Effect": "Allow", "Action": ["ec2:Describe*", "ssm:*"], "Resource": "*"}
    with Cloud({"Version": "2012-10-17", "Statement": [look]}) as cloud:
        site = Site(cloud, None)
        laptop = Laptop(tmp_path, site)
        site.machines = type("Nowhere", (), {"subnet_id": []})
        done = laptop.up(laptop.file("bare"))
        assert done.returncode == 2 and "ec2:ImportKeyPair" in done.stderr, done.stderr
        doctor = laptop.call("doctor", "--cloud")
        assert doctor.returncode == 3 and "refused" in doctor.stdout


@pytest.mark.parametrize("name", ["aws-cpu", "aws-gpu", "aws-spot"])
def test_the_examples_run_as_they_are(site, laptop, name):
    """But for what the bed is: its network, its user, no docker to install."""
    done = laptop.up(
        ROOT / "examples" / f"{name}.yaml", "user=root",
        f"subnet={site.machines.subnet_id}", "ssh_from=[203.0.113.7/32]",
        *(["nodes.g4dn.xlarge.setup=true"] if name == "aws-gpu" else []),
    )
    assert done.returncode == 0, done.stderr
    cluster = json.loads(done.stdout)[0]["cluster"]
    live = site.live(cluster)
    assert len(live) == {"aws-cpu": 2, "aws-gpu": 1, "aws-spot": 4}[name]
    if name == "aws-spot":
        assert {one.get("InstanceLifecycle") for one in live} == {"spot"}
        orders = [p for action, p in site.cloud.calls if action == "RunInstances"]
        bid = "InstanceMarketOptions.SpotOptions.MaxPrice"
        assert {order[bid] for order in orders[-4:]} == {"0.100000"}
    assert laptop.call("down", cluster).returncode == 0
    nothing_is_left(site, cluster)
