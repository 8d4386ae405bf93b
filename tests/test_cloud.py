"""EC2 against moto's server, which checks signatures and permissions, with the
AWS SDK for Python as the witness of what was made; `lockstep prices` and
`lockstep audit` drive it as a user does."""

import json
import re
import resource

import pytest
from control import Control
from testbed import ROOT, command, needs_root, wait_for
from testbed_cloud import REGION, Cloud, Machines, refusal

TAGS = {"lockstep:cluster": "blue", "lockstep:owner": "me@here"}


@pytest.fixture(scope="module")
def cloud():
    with Cloud() as cloud:
        yield cloud
        assert not cloud.secret_seen


@pytest.fixture(scope="module")
def public_key(tmp_path_factory):
    file = tmp_path_factory.mktemp("key") / "key"
    command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", file)
    return file.with_suffix(".pub").read_text().strip()


@pytest.fixture(scope="module")
def witness(cloud):
    return cloud.client("ec2")


@pytest.fixture(scope="module")
def image(witness):
    images = witness.describe_images(
        Filters=[{"Name": "architecture", "Values": ["x86_64"]}]
    )["Images"]
    return next(one for one in images if one.get("RootDeviceName"))


@pytest.fixture
def control(cloud, tmp_path):
    control = Control(tmp_path)
    control.environment.update(cloud.environment())
    return control


@pytest.fixture
def documents(cloud):
    """Answers of the front for one test."""
    cloud.documents.clear()
    cloud.calls.clear()
    yield cloud.documents
    cloud.documents.clear()


@pytest.fixture
def nothing_left(cloud, witness):
    yield
    found = cloud.probe("instances", tags={"lockstep:cluster": ""})
    live = [one["id"] for one in found if one["state"] not in ("gone", "ending")]
    assert cloud.probe("terminate", ids=live) is None


def products(dollars):
    price = {"unit": "Hrs", "pricePerUnit": {"USD": dollars}}
    terms = {"OnDemand": {"A.B": {"priceDimensions": {"A.B.C": price}}}}
    return 200, json.dumps({"PriceList": [json.dumps({"terms": terms})]})


def order(image, token, **more):
    return {
        "token": token,
        "type": "c5.xlarge",
        "image": image["ImageId"],
        "tags": {**TAGS, "lockstep:node": "0"},
        **more,
    }


def tags_of(one):
    return {tag["Key"]: tag["Value"] for tag in one.get("Tags", [])}


def test_launched_as_ordered_and_ended(
    cloud, witness, image, public_key, documents, nothing_left
):
    group = cloud.probe(
        "security-group", name="lockstep-blue", ssh_from=["203.0.113.7/32"], tags=TAGS
    )
    assert group.startswith("sg-")
    pair = {"name": "lockstep-blue", "tags": TAGS}
    for _ in range(2):  # the second finds the first
        assert cloud.probe("key-pair", key=public_key, **pair) == "lockstep-blue"
    other = cloud.probe("key-pair", key="ssh-ed25519 AAAA other", **pair)
    assert other["class"] == "bad request" and "another key" in other["error"]
    launched = cloud.probe(
        "launch",
        **order(
            image,
            "token-1",
            count=2,
            security_groups=[group],
            key_pair="lockstep-blue",
            user_data="#!/bin/sh\ntrue\n",
            root_device=image["RootDeviceName"],
            disk=50,
        ),
    )
    ids = [one["id"] for one in launched]
    assert len(ids) == 2
    seen = witness.describe_instances(InstanceIds=ids)["Reservations"]
    for one in (one for some in seen for one in some["Instances"]):
        assert one["InstanceType"] == "c5.xlarge"
        assert one["KeyName"] == "lockstep-blue"
        assert [g["GroupId"] for g in one["SecurityGroups"]] == [group]
        assert tags_of(one)["lockstep:cluster"] == "blue"
        assert tags_of(one)["lockstep:token"] == "token-1"
        attribute = "instanceInitiatedShutdownBehavior"
        answer = witness.describe_instance_attribute(
            InstanceId=one["InstanceId"], Attribute=attribute
        )
        assert answer["InstanceInitiatedShutdownBehavior"]["Value"] == "terminate"
    volumes = witness.describe_volumes(
        Filters=[{"Name": "tag:lockstep:cluster", "Values": ["blue"]}]
    )["Volumes"]
    assert [volume["Size"] for volume in volumes] == [50, 50]
    found = cloud.probe("instances", tags={"lockstep:cluster": "blue"}, ids=ids)
    assert sorted(one["id"] for one in found) == sorted(ids)
    assert cloud.probe("instances", tags={"lockstep:cluster": "red"}) == []
    assert cloud.probe("set-tags", ids=ids[:1], tags={"lockstep:node": "7"}) is None
    assert cloud.probe("terminate", ids=ids) is None
    assert cloud.probe("terminate", ids=ids) is None  # again
    states = [
        one["State"]["Name"]
        for some in witness.describe_instances(InstanceIds=ids)["Reservations"]
        for one in some["Instances"]
    ]
    assert states == ["terminated", "terminated"]
    assert cloud.probe("remove", kind="key pair", id="lockstep-blue") is None
    assert cloud.probe("remove", kind="key pair", id="lockstep-blue") is None
    assert witness.describe_key_pairs()["KeyPairs"] == []
    assert cloud.probe("remove", kind="security group", id=group) is None
    assert cloud.probe("remove", kind="security group", id=group) is None


def test_a_group_lets_in_ssh_from_us_and_its_own_members(cloud, witness, documents):
    for _ in range(2):  # the second finds the first
        group = cloud.probe(
            "security-group", name="lockstep-red", ssh_from=["203.0.113.7/32"], tags=TAGS
        )
    rules = witness.describe_security_groups(GroupIds=[group])["SecurityGroups"][0]
    into = {
        (
            rule["IpProtocol"],
            rule.get("FromPort"),
            tuple(one["CidrIp"] for one in rule["IpRanges"]),
            tuple(one["GroupId"] for one in rule["UserIdGroupPairs"]),
        )
        for rule in rules["IpPermissions"]
    }
    assert ("tcp", 22, ("203.0.113.7/32",), ()) in into
    assert any(rule[0] == "-1" and rule[3] == (group,) for rule in into)
    assert "0.0.0.0/0" not in str(rules["IpPermissions"])
    foreign = witness.create_security_group(GroupName="theirs", Description="x")
    mine = cloud.probe("security-group", name="theirs", tags=TAGS)
    assert mine["class"] == "bad request" and "not of this cluster" in mine["error"]
    used = cloud.probe("security-group", existing="theirs")
    assert used == foreign["GroupId"]
    cloud.probe("remove", kind="security group", id=group)
    witness.delete_security_group(GroupId=foreign["GroupId"])


def test_many_machines_come_in_pages(cloud, witness, image, documents, nothing_left):
    for number in range(6):
        cloud.probe("launch", **order(image, f"many-{number}", count=2))
    cloud.calls.clear()
    found = cloud.probe("instances", tags={"lockstep:cluster": "blue"})
    live = [one for one in found if one["state"] == "running"]
    assert len(live) == 12
    pages = [call for call in cloud.calls if call[0] == "DescribeInstances"]
    assert len(pages) > 1


def test_wrong_credentials_are_told(cloud, documents):
    wrong = cloud.probe("instances", env={"AWS_SECRET_ACCESS_KEY": "x" * 40})
    assert wrong["class"] == "credentials"
    assert "ec2:DescribeInstances" in wrong["error"]
    unknown = cloud.probe("instances", env={"AWS_ACCESS_KEY_ID": "AKIANOBODY"})
    assert unknown["class"] == "credentials"
    none = cloud.probe(
        "instances", env={"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}
    )
    assert none["class"] == "credentials"
    assert cloud.key[1] not in json.dumps([wrong, unknown, none])


def test_a_missing_permission_names_the_action():
    statement = {"Effect": "Allow", "Action": "ec2:Describe*", "Resource": "*"}
    with Cloud({"Version": "2012-10-17", "Statement": [statement]}) as cloud:
        assert cloud.probe("instances") == []
        refused = cloud.probe("terminate", ids=["i-1"])
        assert refused["class"] == "permission"
        assert "ec2:TerminateInstances" in refused["error"]


def test_the_policy_of_the_docs_is_enough_and_no_more(public_key, tmp_path):
    policy = json.loads((ROOT / "docs" / "aws-policy.json").read_text())
    with Cloud(policy) as cloud:
        control = Control(tmp_path)
        control.environment.update(cloud.environment())
        cloud.documents["GetProducts"] = products("0.19")
        assert cloud.probe("offers", types=["c5.xlarge"])
        image = cloud.probe("image", architecture="x86_64")
        assert image["class"] == "not found"  # moto has no current Ubuntu
        group = cloud.probe(
            "security-group", name="g", ssh_from=["203.0.113.7/32"], tags=TAGS
        )
        assert cloud.probe("key-pair", name="k", key=public_key, tags=TAGS) == "k"
        first = cloud.client("ec2").describe_images()["Images"][0]
        machine = cloud.probe(
            "launch", **order(first, "t", security_groups=[group], key_pair="k")
        )[0]["id"]
        subnet = cloud.client("ec2").describe_subnets()["Subnets"][0]["SubnetId"]
        used = cloud.probe("security-group", existing="g", subnet=subnet)
        assert used == group
        assert cloud.probe("set-tags", ids=[machine], tags={"x": "a b"}) is None
        told = json.loads(control.call("audit", "--output", "json").stdout)
        assert control.call("prices", "c5.xlarge").returncode == 0
        cloud.probe("terminate", ids=[machine])
        for one in told["resources"]:
            removed = cloud.probe("remove", kind=one["kind"], id=one["id"])
            assert removed is None or removed["class"] != "permission", removed
        removed = cloud.probe("remove", kind="volume", id="vol-00000000")
        assert removed is None
        asked = {action for action, _ in cloud.calls}
    allowed = set()
    for statement in policy["Statement"]:
        if "s3" in str(statement["Resource"]):
            continue  # tests/test_policy.py
        actions = statement["Action"]
        for action in [actions] if isinstance(actions, str) else actions:
            allowed.add(action.partition(":")[2])
    assert asked <= allowed
    # moto has no quotas, no tags for the disk of an image that is made, and no
    # request for a spot machine that is run.
    assert allowed - asked == {
        "CreateImage",
        "GetServiceQuota",
        "GetAWSDefaultServiceQuota",
        "CancelSpotInstanceRequests",
    }


def test_the_shipped_types_are_what_the_cloud_says(cloud):
    """p3 is not in moto any more."""
    lines = (ROOT / "lockstep/cloud/type_table.csv").read_text().splitlines()
    shipped = [line.split(",") for line in lines if line and line[0] != "#"]
    types = {name: rest for name, *rest in shipped if not name.startswith("p3.")}
    told = cloud.client("ec2").describe_instance_types(InstanceTypes=list(types))
    assert len(told["InstanceTypes"]) == len(types) > 30
    for one in told["InstanceTypes"]:
        gpus = [f"{gpu['Name']}:{gpu['Count']}" for gpu in one.get("GpuInfo", {}).get("Gpus", [])]
        assert types[one["InstanceType"]] == [
            str(one["VCpuInfo"]["DefaultVCpus"]),
            str(one["MemoryInfo"]["SizeInMiB"] // 1024),
            *(gpus or ["-"]),
        ]


def test_bad_orders_are_told(cloud, image, documents):
    near = cloud.probe("offers", types=["c5.xlrage"])
    assert near["class"] == "bad request" and "'c5.xlarge'" in near["error"]
    offers = cloud.probe("offers", types=["c5.xlarge"])
    assert offers[0]["cpus"] == 4 and offers[0]["architecture"] == "x86_64"
    assert all(zone.startswith(REGION) for zone in offers[0]["zones"])
    arm = cloud.probe("image", id=image["ImageId"], architecture="arm64")
    assert arm["class"] == "bad request" and "x86_64" in arm["error"]
    absent = cloud.probe("image", id="ami-00000000000000000", architecture="x86_64")
    assert absent["class"] == "not found"
    subnet = cloud.probe(
        "launch", **order(image, "bad-subnet", subnet="subnet-00000000")
    )
    assert subnet["class"] == "not found" and "subnet-00000000" in subnet["error"]


@pytest.mark.parametrize(
    "code, failure",
    [
        ("InsufficientInstanceCapacity", "no capacity"),
        ("VcpuLimitExceeded", "quota"),
    ],
)
def test_a_refused_launch_has_its_class(cloud, image, documents, code, failure):
    documents["RunInstances"] = refusal(code, "in the cloud's words")
    refused = cloud.probe("launch", **order(image, "short"))
    assert refused["class"] == failure
    assert "in the cloud's words" in refused["error"]


def test_passing_failures_pass_unseen(cloud, image, documents, nothing_left):
    tries = []

    def answer(parameters):
        tries.append(parameters["ClientToken"])
        if len(tries) < 3:
            return refusal("InternalError", "later", 500)
        return None

    documents["RunInstances"] = answer
    launched = cloud.probe("launch", **order(image, "patient"))
    assert len(launched) == 1
    assert len(tries) == 3 and len(set(tries)) == 1


# lockstep prices


def history(*items):
    text = "".join(
        f"<item><availabilityZone>{zone}</availabilityZone><spotPrice>{price}"
        f"</spotPrice><timestamp>2026-11-15T08:00:00.000Z</timestamp></item>"
        for zone, price in items
    )
    return 200, f"<r><spotPriceHistorySet>{text}</spotPriceHistorySet></r>"


def test_prices_come_from_the_api(control, documents):
    documents["GetProducts"] = products("0.1900000000")
    documents["DescribeSpotPriceHistory"] = history(
        ("us-west-2a", "0.0700"), ("us-west-2b", "0.0650")
    )
    done = control.call("prices", "c5.xlarge", "--output", "json")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert [(row["market"], row["dollars_per_hour"], row["zone"]) for row in rows] == [
        ("on-demand", 0.19, ""),
        ("spot", 0.065, "us-west-2b"),
        ("spot", 0.07, "us-west-2a"),
    ]
    assert {row["source"] for row in rows} == {"api"}
    assert {row["region"] for row in rows} == {REGION}
    assert rows[0]["age_seconds"] < 600
    table = control.call("prices", "c5.xlarge")
    assert "$0.19" in table.stdout and "us-west-2b" in table.stdout


def test_prices_fall_back_to_the_table_and_say_so(control, documents):
    documents["GetProducts"] = 400, '{"__type": "AccessDeniedException"}'
    documents["DescribeSpotPriceHistory"] = refusal(
        "UnauthorizedOperation", "You are not authorized", 403
    )
    done = control.call("prices", "c5.xlarge", "g4dn.xlarge")
    assert done.returncode == 0, done.stderr
    assert re.search(r"c5\.xlarge +on-demand +\$0\.17 .* table +2025-03-02", done.stdout)
    assert "g4dn.xlarge" in done.stdout
    assert "ec2:DescribeSpotPriceHistory" in done.stderr
    assert "pricing:GetProducts" in done.stderr


def test_prices_without_credentials_are_the_tables(control, documents):
    env = {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}
    done = control.call("prices", "c5.xlarge", "--output", "json", env=env)
    assert done.returncode == 0, done.stderr
    assert [row["source"] for row in json.loads(done.stdout)] == ["table"]
    assert "credentials" in done.stderr
    quiet = control.call(
        "prices", "c5.xlarge", "--source", "table", "--output", "quiet", env=env
    )
    assert quiet.stdout == "c5.xlarge on-demand 0.17\n" and not quiet.stderr


def test_the_users_own_prices_win(control, documents):
    documents["GetProducts"] = products("0.19")
    documents["DescribeSpotPriceHistory"] = history(("us-west-2a", "0.07"))
    file = control.folder / "config/lockstep/config.yaml"
    file.parent.mkdir(parents=True)
    file.write_text("prices:\n  c5.xlarge: 0.11\n  box.one: {spot: 0.5}\n")
    done = control.call("prices", "c5.xlarge", "--output", "json")
    rows = json.loads(done.stdout)
    assert [(row["dollars_per_hour"], row["source"]) for row in rows] == [
        (0.11, "user file"),
        (0.07, "api"),
    ]
    assert 0 <= rows[0]["age_seconds"] < 600
    own = control.call("prices", "box.one", "--source", "user", "--output", "quiet")
    assert own.stdout == "box.one spot 0.5\n"
    file.write_text("prices: {c5.xlarge: cheap}\n")
    bad = control.call("prices", "c5.xlarge")
    assert bad.returncode == 2 and "'cheap' is no price" in bad.stderr


@pytest.mark.parametrize(
    "words, hint",
    [
        (["c5.xlrage"], "'c5.xlarge'"),
        (["c5.xlarge", "--region", "US West"], "is no region"),
        (["c5.xlarge", "--source", "gossip"], "--source"),
        ([], "types"),
        (["c5.xlarge", "--region", "mars-north-1"], "mars-north-1"),
    ],
)
def test_bad_words_for_prices(control, documents, words, hint):
    documents["GetProducts"] = 200, json.dumps({"PriceList": []})
    documents["DescribeSpotPriceHistory"] = history()
    done = control.call("prices", *words)
    assert done.returncode == 2
    assert hint in done.stderr


def test_one_unknown_type_does_not_hide_the_others(control, documents):
    documents["GetProducts"] = 200, json.dumps({"PriceList": []})
    documents["DescribeSpotPriceHistory"] = history()
    done = control.call("prices", "c5.xlarge", "nonsense")
    assert done.returncode == 2
    assert "c5.xlarge" in done.stdout and "'nonsense'" in done.stderr


# lockstep audit


def test_audit_lists_what_carries_our_tag(
    cloud, witness, image, public_key, control, documents, nothing_left
):
    group = cloud.probe("security-group", name="lockstep-audit", tags=TAGS)
    cloud.probe("key-pair", name="lockstep-audit", key=public_key, tags=TAGS)
    launched = cloud.probe("launch", **order(image, "audit-1", disk=8,
                                             root_device=image["RootDeviceName"]))
    stranger = witness.run_instances(
        ImageId=image["ImageId"], MinCount=1, MaxCount=1, InstanceType="m5.large"
    )["Instances"][0]["InstanceId"]
    request = witness.request_spot_instances(
        LaunchSpecification={"ImageId": image["ImageId"], "InstanceType": "c5.large"},
        SpotPrice="0.05",
        TagSpecifications=[{
            "ResourceType": "spot-instances-request",
            "Tags": [{"Key": "lockstep:cluster", "Value": "blue"}],
        }],
    )["SpotInstanceRequests"][0]["SpotInstanceRequestId"]
    done = control.call("audit", "--output", "json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["regions"] == [REGION]
    kinds = {}
    for one in told["resources"]:
        kinds.setdefault(one["kind"], []).append(one["id"])
        assert one["cluster"] == "blue"
    assert kinds["instance"] == [launched[0]["id"]]
    assert stranger not in done.stdout
    assert kinds["security group"] == [group]
    assert kinds["key pair"] == ["lockstep-audit"]
    assert len(kinds["volume"]) == 1
    assert kinds.get("spot request", [request]) == [request]
    table = control.call("audit")
    assert launched[0]["id"] in table.stdout and "blue" in table.stdout
    cloud.probe("terminate", ids=[launched[0]["id"]])
    cloud.probe("remove", kind="key pair", id="lockstep-audit")
    cloud.probe("remove", kind="security group", id=group)
    cloud.probe("remove", kind="spot request", id=request)
    after = json.loads(control.call("audit", "--output", "json").stdout)
    assert "instance" not in {one["kind"] for one in after["resources"]}
    everything = json.loads(control.call("audit", "--all", "--output", "json").stdout)
    assert launched[0]["id"] in [one["id"] for one in everything["resources"]]
    witness.terminate_instances(InstanceIds=[stranger])


def test_audit_looks_at_every_region_that_is_configured(control, documents):
    file = control.folder / "config/lockstep/config.yaml"
    file.parent.mkdir(parents=True)
    file.write_text("regions: [us-east-1, eu-west-1]\n")
    told = json.loads(control.call("audit", "--output", "json").stdout)
    assert told["regions"] == ["us-east-1", "eu-west-1"]
    one = control.call("audit", "--region", "eu-west-1")
    assert one.stdout == "nothing of lockstep in eu-west-1\n"


def test_audit_that_cannot_look_fails(control, documents):
    none = control.call(
        "audit", env={"AWS_REGION": "", "AWS_DEFAULT_REGION": ""}
    )
    assert none.returncode == 2 and "--region" in none.stderr
    wrong = control.call("audit", env={"AWS_SECRET_ACCESS_KEY": "x" * 40})
    assert wrong.returncode == 2
    assert "credentials" in wrong.stderr and "us-west-2" in wrong.stderr
    assert "x" * 40 not in wrong.stderr and wrong.stdout == ""


def test_audit_over_a_thousand_machines_takes_pages_and_little_time(
    cloud, control, documents
):
    def answer(parameters):
        first = int(parameters.get("NextToken", "0"))
        items = "".join(
            f"<item><instancesSet><item><instanceId>i-{number:017d}</instanceId>"
            "<instanceType>c5.xlarge</instanceType><instanceState><name>running"
            "</name></instanceState><launchTime>2026-11-15T08:00:00.000Z"
            "</launchTime><tagSet><item><key>lockstep:cluster</key><value>big"
            "</value></item></tagSet></item></instancesSet></item>"
            for number in range(first, first + 100)
        )
        more = f"<nextToken>{first + 100}</nextToken>" if first < 900 else ""
        return 200, f"<r><reservationSet>{items}</reservationSet>{more}</r>"

    documents["DescribeInstances"] = answer
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = control.call("audit", "--output", "json")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stderr
    machines = [
        one for one in json.loads(done.stdout)["resources"] if one["kind"] == "instance"
    ]
    assert len({one["id"] for one in machines}) == 1000
    assert len([call for call in cloud.calls if call[0] == "DescribeInstances"]) == 10
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert used < 2


# Machines


@needs_root
def test_a_machine_lives_from_launch_to_the_end_of_its_lease(
    cloud, witness, image, control, documents
):
    with Machines(cloud) as machines:
        key = machines.key.with_suffix(".pub").read_text()
        script = cloud.probe("user-data", lease=15, longest=600, period=1, key=key)
        launched = cloud.probe(
            "launch",
            **order(
                image,
                "chain",
                count=2,
                subnet=machines.subnet_id,
                user_data=script,
            ),
        )
        one, other = (machine["id"] for machine in launched)
        alias = machines.alias_of(one)
        assert launched[0]["address"].startswith(str(machines.subnet)[:-4])

        def in_by_ssh():
            return machines.ssh(alias, "cat /var/lib/lockstep/lease/until", check=False)

        assert wait_for(in_by_ssh, "the key of user-data opens").startswith(
            "lockstep-lease 1 "
        )
        # One is ended by us, the other by its lease, with nobody's help.
        machines.alias_of(other)
        assert cloud.probe("terminate", ids=[one]) is None
        wait_for(lambda: one in machines.over, "its host is off")
        wait_for(lambda: machines.state(other) == "terminated", "the lease ends it", 90)
        wait_for(lambda: other in machines.over, "its host is off")
    told = json.loads(control.call("audit", "--output", "json").stdout)
    assert not [one for one in told["resources"] if one["kind"] == "instance"]
