"""docs/aws-policy.json under a server that enforces it (moto): the whole way
from launch to the stored result works with exactly that, and each action that
is left out is named by the error."""

import copy
import json

import pytest
from clusters import Laptop, Site
from test_run_cloud import BUCKET, CHECKPOINT, job
from testbed import ROOT, needs_root
from testbed_cloud import REGION, Cloud, Machines

pytestmark = needs_root

TEXT = (ROOT / "docs" / "aws-policy.json").read_text()
POLICY = json.loads(TEXT.replace("my-bucket", BUCKET))
# Answered by documents of the test, or of no use to a run.
NOT_ASKED = {
    "ec2:CancelSpotInstanceRequests",
    "ec2:CreateImage",
    "ec2:DescribeSpotPriceHistory",
    "pricing:GetProducts",
    "servicequotas:GetAWSDefaultServiceQuota",
    "servicequotas:GetServiceQuota",
    "ssm:GetParameter",
}
# A machine is rented before these are missed: the costly ones.
SOME = ["ec2:ImportKeyPair", "ec2:RunInstances", "ec2:TerminateInstances",
        "s3:ListBucket", "s3:PutObject"]


def actions_of(statement):
    actions = statement["Action"]
    return [actions] if isinstance(actions, str) else actions


def without(action):
    policy = copy.deepcopy(POLICY)
    for statement in policy["Statement"]:
        left = [one for one in actions_of(statement) if one != action]
        statement["Action"] = left or ["ec2:NothingAtAll"]
    return policy


@pytest.fixture(scope="module")
def site():
    with Cloud(POLICY) as cloud, Machines(cloud) as machines:
        site = Site(cloud, machines)
        site.s3 = cloud.client("s3")
        site.s3.create_bucket(
            Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": REGION}
        )
        yield site


@pytest.fixture
def laptop(site, tmp_path):
    laptop = Laptop(tmp_path, site)
    (tmp_path / "work").mkdir()
    yield laptop
    laptop.end_all()
    site.clear()


def allow(site, policy):
    site.cloud.client("iam").put_user_policy(
        UserName="lockstep", PolicyName="all", PolicyDocument=json.dumps(policy)
    )


def test_the_whole_way_with_exactly_this_policy(site, laptop):
    done = laptop.call(
        "run", job(laptop, CHECKPOINT, nodes=1, outputs=f"s3://{BUCKET}/runs"), "-y",
        timeout=120)
    assert done.returncode == 0, done.stderr
    assert "AccessDenied" not in done.stderr and "UnauthorizedOperation" not in done.stderr
    key = f"runs/{laptop.run().path.name}/checkpoints/last"
    assert site.s3.get_object(Bucket=BUCKET, Key=key)["Body"].read() == b"weights\n"
    assert site.live() == [] and site.others() == []
    up = laptop.up(laptop.file("own", nodes={"c5.xlarge": {"count": 1}}))
    assert up.returncode == 0, up.stderr
    for words in (["status"], ["exec", "own", "--", "true"], ["extend", "own", "30m"],
                  ["audit", "--outputs", f"s3://{BUCKET}"], ["doctor", "--cloud"],
                  ["down", "own"]):
        done = laptop.call(*words)
        assert done.returncode == 0, (words, done.stderr)
    assert site.live() == [] and site.others() == []


def test_nothing_in_the_policy_is_unknown():
    """Every action that a run is refused by is one that the list below knows."""
    allowed = {one for statement in POLICY["Statement"] for one in actions_of(statement)}
    assert NOT_ASKED <= allowed and set(SOME) <= allowed
    assert all(one.partition(":")[0] in ("ec2", "s3", "ssm", "pricing", "servicequotas")
               for one in allowed)


@pytest.mark.parametrize("action", ["s3:ListBucketMultipartUploads", "s3:AbortMultipartUpload"])
def test_an_audit_of_uploads_names_what_it_lacks(site, laptop, action):
    key = "runs/broken"
    upload = site.s3.create_multipart_upload(Bucket=BUCKET, Key=key)["UploadId"]
    words = ["audit", "--fix", "--outputs", f"s3://{BUCKET}/runs"]
    allow(site, without(action))
    try:
        refused = laptop.call(*words)
    finally:
        allow(site, POLICY)
    assert refused.returncode != 0 and action in refused.stderr, refused.stderr
    done = laptop.call(*words)
    assert done.returncode == 0 and f"s3://{BUCKET}/{key}" in done.stdout, done.stderr
    left = site.s3.list_multipart_uploads(Bucket=BUCKET).get("Uploads", [])
    assert upload not in [one["UploadId"] for one in left]


@pytest.mark.parametrize("action", SOME)
def test_an_action_that_is_left_out_is_named(site, laptop, action):
    allow(site, without(action))
    try:
        done = laptop.call(
            "run", job(laptop, CHECKPOINT, nodes=1, outputs=f"s3://{BUCKET}/less"), "-y",
            timeout=120)
    finally:
        allow(site, POLICY)
    assert done.returncode != 0, done.stderr
    assert action in done.stderr, done.stderr
