"""moto's S3 for tests, checking signatures and permissions, behind a proxy
that can fail; and the S3 client under test, driven through its probe."""

import json
import os
import pathlib
import subprocess

import boto3
import botocore.config

from fault_proxy import FaultProxy
from testbed import Bed, ROOT
from testbed_moto import start_moto

BUILD = pathlib.Path(os.environ.get("LOCKSTEP_BUILD", ROOT / "build"))
PROBE = str(BUILD / "bin" / "s3_probe")
REGION = "us-west-2"
ALL = {"Effect": "Allow", "Action": "*", "Resource": "*"}


def clean_environment():
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("AWS_") and "proxy" not in name.lower()
    }


class Probe:
    """The client with one set of keys against one address."""

    def __init__(self, url, key, secret, options=()):
        self.options = [*options, "--backoff", "1"]
        self.environment = clean_environment() | {
            "AWS_ENDPOINT_URL": url,
            "AWS_REGION": REGION,
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_ACCESS_KEY_ID": key,
            "AWS_SECRET_ACCESS_KEY": secret,
            "AWS_CONFIG_FILE": "/nonexistent/config",
            "AWS_SHARED_CREDENTIALS_FILE": "/nonexistent/credentials",
        }

    def command(self, *words):
        return [PROBE, *map(str, self.options), *map(str, words)]

    def __call__(self, *words, env=None, options=()):
        done = subprocess.run(
            [PROBE, *map(str, self.options), *map(str, options), *map(str, words)],
            env={**self.environment, **(env or {})},
            capture_output=True,
            text=True,
            timeout=120,
        )
        secret = self.environment["AWS_SECRET_ACCESS_KEY"]
        assert secret not in done.stdout + done.stderr
        return done

    def fine(self, *words, **options):
        done = self(*words, **options)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def transfer(self, *words, **options):
        """The numbers that it prints, by name."""
        text = self.fine(*words, **options)
        pairs = dict(word.split("=", 1) for word in text.split())
        pairs.pop("seconds")
        return {k: v if k == "etag" else int(v) for k, v in pairs.items()}

    def start(self, *words):
        return subprocess.Popen(
            self.command(*words),
            env=self.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )


class Store(Bed):
    def __enter__(self):
        try:
            self.open()
            self.port = start_moto(self)
            self.url = f"http://127.0.0.1:{self.port}"
            self.make_user()
            self.proxy = FaultProxy(self.port)
            return self
        except BaseException:
            self.close()
            raise

    def __exit__(self, *_):
        self.proxy.__exit__()
        self.close()

    def make_user(self):
        iam = self.client("iam", ("first", "first"))
        self.key = self.new_user(iam, "lockstep", [ALL])

    def new_user(self, iam, name, statements):
        iam.create_user(UserName=name)
        document = {"Version": "2012-10-17", "Statement": statements}
        iam.put_user_policy(
            UserName=name, PolicyName="own", PolicyDocument=json.dumps(document)
        )
        key = iam.create_access_key(UserName=name)["AccessKey"]
        return key["AccessKeyId"], key["SecretAccessKey"]

    def client(self, service, key=None, url=None):
        """Of the AWS SDK: the witness. Straight to moto."""
        key = key or self.key
        return boto3.client(
            service,
            region_name=REGION,
            endpoint_url=url or self.url,
            aws_access_key_id=key[0],
            aws_secret_access_key=key[1],
            config=botocore.config.Config(
                retries={"max_attempts": 1}, s3={"addressing_style": "path"}
            ),
        )

    def probe(self, key=None, options=(), url=None):
        return Probe(url or self.proxy.url, *(key or self.key), options)
