"""The head rents while the user's machine is away: the client is killed or sleeps,
a spot machine gets its notice, and the head, with its role and exactly
docs/aws-head-policy.json, rents another one that joins the run."""

import datetime
import json
import os
import signal
import stat

import pytest
from clusters import Laptop, Site, tags_of
from test_policy import actions_of
from test_run_cloud import BUCKET, CHECKPOINT, begun, job
from test_spot import RANKS, Metadata, spot_of, told, when
from testbed import ROOT, needs_root, wait_for
from testbed_cloud import REGION, Cloud, Machines

pytestmark = needs_root

ROLE = "lockstep-head"
TEXT = (ROOT / "docs" / "aws-head-policy.json").read_text()
POLICY = json.loads(TEXT.replace("my-bucket", BUCKET))


class Role:
    """Of the head, as moto enforces it, and keys as its metadata service has them."""

    def __init__(self, cloud):
        self.iam = cloud.client("iam")
        allow = {"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": {"AWS": "*"}}
        trust = {"Version": "2012-10-17", "Statement": [allow]}
        made = self.iam.create_role(
            RoleName=ROLE, AssumeRolePolicyDocument=json.dumps(trust)
        )
        self.allow(POLICY)
        self.iam.create_instance_profile(InstanceProfileName=ROLE)
        self.iam.add_role_to_instance_profile(InstanceProfileName=ROLE, RoleName=ROLE)
        self.keys = cloud.client("sts").assume_role(
            RoleArn=made["Role"]["Arn"], RoleSessionName="head"
        )["Credentials"]

    def allow(self, policy):
        self.iam.put_role_policy(
            RoleName=ROLE, PolicyName="head", PolicyDocument=json.dumps(policy)
        )

    def document(self):
        later = datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=6)
        return {
            "Code": "Success",
            "AccessKeyId": self.keys["AccessKeyId"],
            "SecretAccessKey": self.keys["SecretAccessKey"],
            "Token": self.keys["SessionToken"],
            "Expiration": later.strftime("%Y-%m-%dT%H:%M:%SZ"),
        }


@pytest.fixture(scope="module")
def bed():
    with Cloud() as cloud, Machines(cloud) as machines:
        site = Site(cloud, machines)
        # Where the hosts reach it, too.
        site.address = str(machines.subnet[1])
        site.url = cloud.listen(site.address)
        site.role = Role(cloud)
        site.s3 = cloud.client("s3")
        site.s3.create_bucket(
            Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": REGION}
        )
        yield site
        assert not cloud.secret_seen


@pytest.fixture
def site(bed):
    bed.reset()
    bed.role.allow(POLICY)
    yield bed
    bed.clear()


@pytest.fixture
def laptop(site, tmp_path):
    laptop = Laptop(tmp_path, site, site.url)
    laptop.environment["no_proxy"] = f"127.0.0.1,{site.address}"
    laptop.environment["LOCKSTEP_SPOT_WAIT"] = "1s"
    laptop.environment["LOCKSTEP_AWAY"] = "4s"
    (tmp_path / "work").mkdir()
    (tmp_path / "work/part").write_text("of the workdir\n")
    yield laptop
    laptop.end_all()


class Run:
    """One that was begun, with its head and its one spot machine."""

    def __init__(self, site, laptop, profile=ROLE):
        self.site = site
        (laptop.folder / "mounted").write_text("mounted\n")
        resources = {"use_spot": "true", "idle": "30s"}
        if profile:
            resources["instance_profile"] = profile
        text = "cat part ready data || exit 9\n" + RANKS
        self.before = {one["InstanceId"] for one in site.instances()}
        self.client = laptop.start("run", job(
            laptop, text, resources=resources, grace="20s",
            setup="echo set up > ready", file_mounts={"data": str(laptop.folder / "mounted")},
        ), "-y")
        self.run = begun(laptop)
        self.head, [self.spot] = spot_of(site)
        self.cluster = tags_of(self.head)["lockstep:cluster"]
        self.alias = site.machines.alias_of(self.head["InstanceId"])
        self.home = site.machines.hosts[self.alias].home / ".cache/lockstep"
        self.far = self.home / "runs" / self.run.path.name
        metadata = Metadata(site, self.head["InstanceId"])
        metadata.put(f"iam/security-credentials/{ROLE}", **site.role.document())
        self.metadata = Metadata(site, self.spot["InstanceId"])

    def take_away(self):
        self.metadata.put("spot/instance-action", action="terminate", time=when(120))

    def made(self):
        return [one for one in self.site.instances() if one["InstanceId"] not in self.before]

    def log(self):
        file = self.far / "renter.log"
        return file.read_text() if file.exists() else ""

    def is_heads(self):
        return "from now on this machine rents" in self.log()


def no_secret(rented, key):
    """Neither the cluster's key nor the role's is where others could see it."""
    site = rented.site
    secrets = [key.encode(), site.role.keys["SecretAccessKey"].encode()]
    for folder in (rented.run.path, rented.far):
        for path in folder.rglob("*"):
            if path.is_file():
                content = path.read_bytes()
                assert not any(secret in content for secret in secrets), path
    for one in rented.made():
        data = site.ec2.describe_instance_attribute(
            InstanceId=one["InstanceId"], Attribute="userData"
        )
        assert key not in json.dumps(data["UserData"])
    assert not any(key.splitlines()[1] in json.dumps(call) for call in site.cloud.calls)


def nothing_is_left_of(site, cluster):
    """Clients that were killed before leave keys and groups, which cost nothing."""
    assert site.live() == [] and site.others(cluster) == []


def test_the_client_is_killed_and_the_head_rents(site, laptop):
    begun_run = Run(site, laptop)
    run = begun_run.run
    key = (laptop.folder / "state/lockstep/clusters" / begun_run.cluster / "key").read_text()
    there = begun_run.home / "clusters" / begun_run.cluster
    assert (there / "key").read_text() == key
    assert stat.S_IMODE((there / "key").stat().st_mode) == 0o600
    assert stat.S_IMODE(there.stat().st_mode) == 0o700
    # As long as the client is there the head has no turn.
    assert not begun_run.is_heads()
    begun_run.client.kill()
    _, words = begun_run.client.communicate(timeout=20)
    assert "by the head once this machine was away for" in words, words
    assert "nothing is replaced" not in words
    wait_for(begun_run.is_heads, "the head rents", 30)
    for pid, line in site.machines.processes(begun_run.alias, "renter"):
        assert "PRIVATE" not in line, pid
    begun_run.take_away()
    wait_for(lambda: len(begun_run.made()) == 3, "the head rents another", 60)
    # The user comes back, and sees it.
    back = laptop.call("attach", run.path.name, timeout=120)
    assert back.returncode == 0, (back.stderr, begun_run.log())
    assert run.state()["state"] == "done"
    for rank in (0, 1):
        assert "of the workdir\nset up\nmounted\n" in run.log(rank)
        assert f"saved on {rank}" in run.log(rank) and "resumed of 2" in run.log(rank)
    node = tags_of(begun_run.spot)["lockstep:node"]
    states = [one["state"] for one in told(run, "node", node)]
    assert "leaving" in states and states[-1] == "up", states
    new = max(begun_run.made(), key=lambda one: one["LaunchTime"])
    assert tags_of(new)["lockstep:node"] == node
    assert new["InstanceLifecycle"] == "spot"
    assert "AccessDenied" not in begun_run.log()
    assert "UnauthorizedOperation" not in begun_run.log()
    no_secret(begun_run, key)
    assert not there.exists()  # the key went with the run
    # Nobody gives them back: they go by themselves, and none was doubled.
    wait_for(lambda: not site.live(), "machines end themselves", 90)
    assert len(begun_run.made()) == 3
    assert laptop.call("audit", "--fix").returncode == 0
    nothing_is_left_of(site, begun_run.cluster)


def test_a_client_that_sleeps_and_wakes_leaves_it_to_the_head(site, laptop):
    begun_run = Run(site, laptop)
    os.kill(begun_run.client.pid, signal.SIGSTOP)
    wait_for(begun_run.is_heads, "the head rents", 30)
    begun_run.take_away()
    wait_for(lambda: len(begun_run.made()) == 3, "the head rents another", 60)
    os.kill(begun_run.client.pid, signal.SIGCONT)
    _, words = begun_run.client.communicate(timeout=120)
    assert begun_run.client.returncode == 0, (words, begun_run.log())
    assert "resumed of 2" in begun_run.run.log(1)
    # It gave everything back, what the head had rented as well.
    assert len(begun_run.made()) == 3
    nothing_is_left_of(site, begun_run.cluster)


def test_a_right_that_the_role_lacks_is_named_and_the_run_goes_on(site, laptop):
    """With fewer nodes, as without a role."""
    lacking = json.loads(json.dumps(POLICY))
    for statement in lacking["Statement"]:
        if statement["Action"] == "ec2:RunInstances":
            statement["Action"] = "ec2:NothingAtAll"
    site.role.allow(lacking)
    laptop.environment["LOCKSTEP_REPLACEMENT"] = "15s"
    begun_run = Run(site, laptop)
    begun_run.client.kill()
    begun_run.client.communicate(timeout=20)
    wait_for(begun_run.is_heads, "the head rents", 30)
    begun_run.take_away()
    back = laptop.call("attach", begun_run.run.path.name, timeout=120)
    assert back.returncode == 0, back.stderr
    assert "ec2:RunInstances" in (begun_run.run.path / "renter.log").read_text()
    assert "resumed of 1" in begun_run.run.log(0)
    assert len(begun_run.made()) == 2


def test_the_head_may_do_less_than_the_user():
    users = json.loads((ROOT / "docs" / "aws-policy.json").read_text())
    head, user = (
        {action for statement in policy["Statement"] for action in actions_of(statement)}
        for policy in (POLICY, users)
    )
    assert head - {"iam:PassRole"} < user


def test_when_the_head_is_lost_what_was_stored_is_there(site, laptop):
    laptop.environment["LOCKSTEP_STORE_INTERVAL"] = "500ms"
    started = laptop.start("run", job(
        laptop, f"{CHECKPOINT}; echo begun; while :; do sleep 0.1; done",
        resources={"use_spot": "true", "instance_profile": ROLE},
        outputs=f"s3://{BUCKET}/lost",
    ), "-y")
    run = begun(laptop)
    head, _ = spot_of(site)
    metadata = Metadata(site, head["InstanceId"])
    metadata.put(f"iam/security-credentials/{ROLE}", **site.role.document())
    key = f"lost/{run.path.name}/checkpoints/last"
    wait_for(
        lambda: site.s3.list_objects_v2(Bucket=BUCKET, Prefix=key)["KeyCount"],
        "it is stored with the keys of the role", 60,
    )
    site.ec2.terminate_instances(InstanceIds=[head["InstanceId"]])
    _, words = started.communicate(timeout=200)
    assert started.returncode == 3, words
    assert site.s3.get_object(Bucket=BUCKET, Key=key)["Body"].read() == b"weights\n"
    nothing_is_left_of(site, tags_of(head)["lockstep:cluster"])


def test_without_a_role_nothing_is_replaced(site, laptop):
    laptop.environment["LOCKSTEP_REPLACEMENT"] = "6s"
    begun_run = Run(site, laptop, profile=None)
    begun_run.client.kill()
    _, words = begun_run.client.communicate(timeout=20)
    assert "nothing is replaced while this machine is off" in words, words
    assert "resources.instance_profile" in words
    assert not site.machines.processes(begun_run.alias, "renter")
    begun_run.take_away()
    back = laptop.call("attach", begun_run.run.path.name, timeout=120)
    assert back.returncode == 0, back.stderr
    assert "resumed of 1" in begun_run.run.log(0)
    assert len(begun_run.made()) == 2 and not begun_run.log()
