"""What tests of clusters share: a cloud whose machines are hosts of the bed, and
lockstep on a machine of its own."""

import json
import os
import pathlib

import botocore.parsers
import yaml
from control import Control
from testbed import command, wait_for
from testbed_cloud import REGION


OURS = [{"Name": "tag:lockstep:cluster", "Values": ["*"]}]


class Site:
    """A cloud, its machines, and what the witness sees of them."""

    def __init__(self, cloud, machines):
        self.cloud, self.machines = cloud, machines
        self.ec2 = cloud.client("ec2")
        images = self.ec2.describe_images(
            Filters=[{"Name": "architecture", "Values": ["x86_64"]}]
        )["Images"]
        self.image = next(one for one in images if one.get("RootDeviceName"))
        self.reset()

    def reset(self):
        """Documents of what moto does not have."""
        parameter = {"Parameter": {"Value": self.image["ImageId"]}}
        quota = {"Quota": {"Value": 640.0, "QuotaName": "vCPUs of the class"}}
        price = {"unit": "Hrs", "pricePerUnit": {"USD": "0.17"}}
        terms = {"OnDemand": {"A.B": {"priceDimensions": {"A.B.C": price}}}}
        self.cloud.documents.clear()
        self.cloud.documents.update({
            "CreateImage": self.create_image,
            "GetParameter": (200, json.dumps(parameter)),
            "GetServiceQuota": (200, json.dumps(quota)),
            "GetProducts": (
                200, json.dumps({"PriceList": [json.dumps({"terms": terms})]})
            ),
            "DescribeSpotPriceHistory": (
                200,
                "<r><spotPriceHistorySet><item><availabilityZone>us-west-2a"
                "</availabilityZone><spotPrice>0.07</spotPrice><timestamp>"
                "2026-11-15T08:00:00.000Z</timestamp></item>"
                "</spotPriceHistorySet></r>",
            ),
        })

    def clear(self):
        """What a test that failed left behind: the next one counts what is there."""
        live = [one["InstanceId"] for one in self.live()]
        if live:
            self.ec2.terminate_instances(InstanceIds=live)
        for pair in self.ec2.describe_key_pairs(Filters=OURS)["KeyPairs"]:
            self.ec2.delete_key_pair(KeyName=pair["KeyName"])
        for group in self.ec2.describe_security_groups(Filters=OURS)["SecurityGroups"]:
            self.ec2.delete_security_group(GroupId=group["GroupId"])

    def create_image(self, parameters):
        """moto fails over tags for the disk of an image: made by the witness."""
        made = self.ec2.create_image(
            InstanceId=parameters["InstanceId"], Name=parameters["Name"]
        )
        return 200, f"<r><imageId>{made['ImageId']}</imageId></r>"

    def instances(self, cluster=None, states=None):
        filters = [{"Name": "tag:lockstep:cluster", "Values": [cluster or "*"]}]
        if states:
            filters.append({"Name": "instance-state-name", "Values": states})
        for more in reversed(range(5)):
            pages = self.ec2.get_paginator("describe_instances").paginate(Filters=filters)
            try:
                return [
                    one
                    for page in pages
                    for reservation in page["Reservations"]
                    for one in reservation["Instances"]
                ]
            except botocore.parsers.ResponseParserError:
                # moto answers 500 when a list changes while it goes through it.
                if not more:
                    raise

    def live(self, cluster=None):
        return self.instances(cluster, ["pending", "running", "stopping", "stopped"])

    def others(self, cluster="*"):
        """Key pairs, groups and disks with our tag."""
        ours = [{"Name": "tag:lockstep:cluster", "Values": [cluster]}]
        found = [k["KeyName"] for k in self.ec2.describe_key_pairs(Filters=ours)["KeyPairs"]]
        groups = self.ec2.describe_security_groups(Filters=ours)["SecurityGroups"]
        found += [g["GroupId"] for g in groups]
        found += [v["VolumeId"] for v in self.ec2.describe_volumes(Filters=ours)["Volumes"]]
        return found


class Laptop(Control):
    """Where a user types; its state is its own."""

    def __init__(self, folder, site, url=None):
        folder = pathlib.Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        super().__init__(folder)
        self.site = site
        self.environment.update(site.cloud.environment())
        self.environment["XDG_STATE_HOME"] = str(folder / "state")
        self.environment["LOCKSTEP_FLEET_PAUSE"] = "200ms"
        if url:
            self.environment["AWS_ENDPOINT_URL"] = url

    def file(self, name, nodes=None, **keys):
        """A cluster file for the bed."""
        content = {
            "name": name,
            "region": REGION,
            "nodes": nodes or {"c5.xlarge": {"count": 2}},
            "image_id": self.site.image["ImageId"],
            "user": "root",
            "subnet": self.site.machines.subnet_id,
            "ssh_from": ["203.0.113.7/32"],
            "idle": "60s",
            "ssh_timeout": "60s",
            **keys,
        }
        path = self.folder / f"{name}.yaml"
        path.write_text(yaml.safe_dump(content))
        return path

    def up(self, *words, **options):
        options.setdefault("timeout", 120)
        return self.call("up", *words, "-y", "--output", "json", **options)

    def journal(self, name):
        path = self.folder / "state/lockstep/clusters" / name / "journal.jsonl"
        if not path.exists():
            return []
        lines = path.read_text().splitlines()
        return [json.loads(line) for line in lines if line.endswith("}")]


def tags_of(one):
    return {tag["Key"]: tag["Value"] for tag in one.get("Tags", [])}
