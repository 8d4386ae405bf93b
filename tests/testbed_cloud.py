"""A cloud for tests, all on this machine.

`Cloud` is moto's server, which checks signatures and permissions, behind a
front of our own that every client talks to: it passes requests on byte for byte,
answers what moto does not know (prices, quotas) from documents of the test, and
can be told to fail.

`Machines` makes each instance of that cloud a host of the test bed: it has the
instance's private address, runs its user-data at boot, and its shutdown ends the
instance. Addresses that moto invents are never connected to: instances are
launched into a subnet that is the bed's own.

Hosts see no systemd and no real shutdown: a script stands in its place, in
their mount namespace, whatever it is called by.
"""

import base64
import contextlib
import http.client
import http.server
import json
import os
import pathlib
import re
import subprocess
import threading
import time
import urllib.parse

import boto3
import botocore.config
from testbed import Bed, Host, Hosts, ROOT, wait_for
from testbed_moto import start_moto

BUILD = pathlib.Path(os.environ.get("LOCKSTEP_BUILD", ROOT / "build"))
PROBE = str(BUILD / "bin" / "cloud_probe")
REGION = "us-west-2"


class Cloud(Bed):
    """`policy`: what our user may do; the default is everything."""

    def __init__(self, policy=None):
        super().__init__()
        allow = {"Effect": "Allow", "Action": "*", "Resource": "*"}
        self.policy = policy or {"Version": "2012-10-17", "Statement": [allow]}
        self.documents = {}  # by action: (status, body) or a function of the call
        self.calls = []  # (action, parameters) in order
        self.orders = {}  # by client token: (parameters, answer)
        self.order_lock = threading.Lock()
        self.secret_seen = []  # requests in which a secret stood in the clear
        self.changed = threading.Event()
        self.fronts = []

    def __enter__(self):
        try:
            self.open()
            self.moto_port = start_moto(self, MOTO_EC2_LOAD_DEFAULT_AMIS="true")
            self.url = self.listen("127.0.0.1")
            self.front = self.fronts[0]
            self.make_user()
            return self
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_):
        for front in self.fronts:
            front.shutdown()
            front.server_close()
        self.close()

    def listen(self, address):
        """Also there, for hosts of a bed, say; where that is."""
        cloud = self

        class Front(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                cloud.serve(self)

            do_GET = do_PUT = do_DELETE = do_HEAD = do_POST

            def log_message(self, *_):
                pass

        front = http.server.ThreadingHTTPServer((address, 0), Front)
        front.daemon_threads = True
        self.fronts.append(front)
        threading.Thread(target=front.serve_forever, daemon=True).start()
        return f"http://{address}:{front.server_address[1]}"

    def make_user(self):
        """The witness may do everything: three calls that moto does not check,
        and no more of them. Then the user that lockstep works as."""
        allow = {"Effect": "Allow", "Action": "*", "Resource": "*"}
        everything = {"Version": "2012-10-17", "Statement": [allow]}
        first = self.client("iam", key=("first", "first"))
        self.witness_key = self.one_user(first, "witness", everything)
        self.key = self.one_user(self.client("iam"), "lockstep", self.policy)

    def one_user(self, iam, name, policy):
        iam.create_user(UserName=name)
        iam.put_user_policy(
            UserName=name, PolicyName="all", PolicyDocument=json.dumps(policy)
        )
        key = iam.create_access_key(UserName=name)["AccessKey"]
        return key["AccessKeyId"], key["SecretAccessKey"]

    def client(self, service, key=None):
        """Of the AWS SDK: the witness. Straight to moto."""
        key = key or self.witness_key
        return boto3.client(
            service,
            region_name=REGION,
            endpoint_url=f"http://127.0.0.1:{self.moto_port}",
            aws_access_key_id=key[0],
            aws_secret_access_key=key[1],
            config=botocore.config.Config(retries={"max_attempts": 1}),
        )

    def environment(self):
        """What lockstep needs to find this cloud and nothing else."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": self.key[0],
            "AWS_SECRET_ACCESS_KEY": self.key[1],
            "AWS_REGION": REGION,
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": "/nonexistent",
            "AWS_SHARED_CREDENTIALS_FILE": "/nonexistent",
            "no_proxy": "127.0.0.1",
        }

    def probe(self, verb, env=None, **order):
        """One call of our provider; its answer, or {"error":, "class":}."""
        done = subprocess.run(
            [PROBE, verb],
            input=json.dumps(order),
            env={**os.environ, **self.environment(), **(env or {})},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.stdout, done.stderr
        answer = json.loads(done.stdout)
        return answer["answer"] if "answer" in answer else answer

    # The front.

    def serve(self, handler):
        body = handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
        secret = getattr(self, "key", ("", "no secret yet"))[1]
        whole = handler.path + str(handler.headers) + body.decode(errors="replace")
        if secret in whole or secret in urllib.parse.unquote(whole):
            self.secret_seen.append(handler.path)
        parameters = dict(urllib.parse.parse_qsl(body.decode(errors="replace")))
        target = handler.headers.get("X-Amz-Target", "")
        action = target.rpartition(".")[2] or parameters.get("Action", handler.path)
        self.calls.append((action, parameters))
        answer = self.documents.get(action)
        if callable(answer):
            answer = answer(parameters)
        if answer is None and parameters.get("ClientToken"):
            answer = self.launch_once(handler, body, parameters)
        elif answer is None:
            answer = self.pass_on(handler, body)
        status, text = answer
        content = text if isinstance(text, bytes) else text.encode()
        with contextlib.suppress(OSError):
            handler.send_response(status)
            handler.send_header("Content-Length", str(len(content)))
            handler.end_headers()
            handler.wfile.write(content)
        if action in ("RunInstances", "TerminateInstances"):
            self.changed.set()

    def launch_once(self, handler, body, parameters):
        """As EC2 does and moto does not: one token, one launch."""
        with self.order_lock:
            known = self.orders.get(parameters["ClientToken"])
            if known and known[0] != parameters:
                return refusal("IdempotentParameterMismatch", "another order")
            answer = known[1] if known else self.pass_on(handler, body)
            if answer[0] == 200:
                self.orders[parameters["ClientToken"]] = parameters, answer
            return answer

    def pass_on(self, handler, body):
        connection = http.client.HTTPConnection("127.0.0.1", self.moto_port, timeout=60)
        try:
            connection.putrequest(
                handler.command, handler.path, skip_host=True, skip_accept_encoding=True
            )
            for name, value in handler.headers.items():
                if name.lower() not in ("connection", "content-length"):
                    connection.putheader(name, value)
            connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(body)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()


def refusal(code, message, status=400):
    """As EC2 says no."""
    return status, (
        f"<Response><Errors><Error><Code>{code}</Code><Message>{message}</Message>"
        "</Error></Errors><RequestID>r-1</RequestID></Response>"
    )


FAKE_SHUTDOWN = """#!/bin/sh
date +%s.%N >> {folder}/shutdown
"""


class LeaseHosts(Hosts):
    """Hosts that can be shut down without harm to this machine."""

    def more_boot_lines(self, host):
        bin_folder = host.folder / "bin"
        bin_folder.mkdir(exist_ok=True)
        lines = []
        for name in ("shutdown", "poweroff", "halt", "reboot", "systemctl"):
            fake = bin_folder / name
            fake.write_text(FAKE_SHUTDOWN.format(folder=host.folder))
            fake.chmod(0o755)
            for folder in ("/usr/sbin", "/usr/bin", "/sbin", "/bin"):
                place = f"{folder}/{name}"
                lines.append(f"[ ! -e {place} ] || mount --bind {fake} {place}")
        lines.append("[ ! -d /run/systemd ] || mount -t tmpfs none /run/systemd")
        # The folder of the lease is each host's own; /var/lib is not.
        private = host.folder / "var-lib"
        private.mkdir(exist_ok=True)
        lines.append(f"mount --bind {private} /var/lib")
        return lines

    def run_user_data(self, alias, script):
        """As the cloud does at the first boot."""
        host = self.hosts[alias]
        # Whatever else happens, the real ones are out of reach.
        assert not self.run(
            alias,
            "for name in shutdown poweroff halt reboot systemctl; do"
            f"  real=$(command -v $name) && ! grep -q {host.folder} $real"
            "  && echo $real; done; [ ! -d /run/systemd/system ] || echo systemd",
            check=False,
        )
        file = host.folder / "user-data"
        file.write_text(script)
        return self.popen(
            alias,
            f"PATH={host.folder}/bin:$PATH exec sh {file}",
            log=f"{alias}/user-data.log",
        )

    def shutdowns(self, alias):
        """When the host was told to go off, Unix seconds."""
        file = self.hosts[alias].folder / "shutdown"
        return [float(t) for t in file.read_text().split()] if file.exists() else []


class Machines(LeaseHosts):
    """The instances of a Cloud as hosts, from launch to end."""

    prefix = 20  # moto gives no address twice: room for a long soak

    def __init__(self, cloud):
        super().__init__(count=0)
        self.cloud = cloud
        self.by_instance = {}  # instance id -> alias
        self.starting = set()
        self.boots = []
        self.closed = threading.Event()
        self.mute = lambda one: False  # instances that never boot
        self.boot_seconds = lambda index: 0  # what a boot takes besides
        self.booted = {}  # instance id -> when, Unix seconds
        self.over = set()
        self.errors = []
        self.closing = False
        self.lock = threading.Lock()

    def __enter__(self):
        super().__enter__()
        try:
            self.ec2 = self.cloud.client("ec2")
            vpc = self.ec2.create_vpc(CidrBlock=str(self.subnet))["Vpc"]["VpcId"]
            answer = self.ec2.create_subnet(VpcId=vpc, CidrBlock=str(self.subnet))
            self.subnet_id = answer["Subnet"]["SubnetId"]
            self.thread = threading.Thread(target=self.follow)
            self.thread.start()
            return self
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_):
        self.closing = True
        if hasattr(self, "thread"):
            self.cloud.changed.set()
            self.thread.join(60)
        self.closed.set()
        for thread in self.boots:
            thread.join(60)
        super().__exit__()
        assert not self.errors, self.errors

    def follow(self):
        """moto answers 500 now and then while machines come and go: only one
        that goes on failing is an error."""
        failures = 0
        while not self.closing:
            try:
                self.look()
                failures = 0
            except Exception as error:  # told when the bed closes
                failures += 1
                if failures == 5 and not self.closing:
                    self.errors.append(repr(error))
                    return
            self.cloud.changed.wait(0.2)
            self.cloud.changed.clear()

    def look(self):
        """Of the living alone: moto keeps the dead for good, and a look at all
        of them would cost more with each."""
        pages = self.ec2.get_paginator("describe_instances").paginate(
            Filters=[
                {"Name": "subnet-id", "Values": [self.subnet_id]},
                {"Name": "instance-state-name", "Values": ["pending", "running"]},
            ]
        )
        living = {
            one["InstanceId"]: one
            for page in pages
            for reservation in page["Reservations"]
            for one in reservation["Instances"]
        }
        for instance, one in living.items():
            if instance not in self.starting:
                self.starting.add(instance)
                self.see(instance, one)
        for instance, alias in list(self.by_instance.items()):
            if instance in self.over:
                continue
            if instance not in living:
                self.end_host(instance)
            elif self.shutdowns(alias):
                # Terminate-on-shutdown: what the cloud does by itself.
                self.end_host(instance)
                self.ec2.terminate_instances(InstanceIds=[instance])

    def see(self, instance, one):
        """For the first time."""
        if not self.mute(one):
            self.bring_up(instance, one["PrivateIpAddress"])

    def bring_up(self, instance, address):
        host = Host(self, len(self.hosts), address)
        self.hosts[host.alias] = host
        self.write_ssh_config()
        boot = threading.Thread(target=self.first_boot, args=[instance, host])
        self.boots.append(boot)
        boot.start()

    def first_boot(self, instance, host):
        try:
            time.sleep(self.boot_seconds(list(self.hosts).index(host.alias)))
            self.plug(host)
            # Who may log in is what user-data says, and nobody else. Sessions
            # whose other end is gone end soon, as user-data has it by systemd.
            config = host.folder / "sshd_config"
            text = re.sub(
                r"AuthorizedKeysFile .*",
                "AuthorizedKeysFile .ssh/authorized_keys\n"
                "ClientAliveInterval 2\nClientAliveCountMax 2",
                config.read_text(),
            )
            config.write_text(text)
            self.boot(host)
            self.wait_until_up(host)
            answer = self.ec2.describe_instance_attribute(
                InstanceId=instance, Attribute="userData"
            )
            script = base64.b64decode(answer["UserData"].get("Value", "")).decode()
            if script:
                self.run_user_data(host.alias, script)
            self.by_instance[instance] = host.alias
            self.booted[instance] = time.time()
        except Exception as error:  # told when the bed closes
            if not self.closing:
                self.errors.append(repr(error))
        # What a thread started dies with it.
        self.closed.wait()

    def end_host(self, instance):
        if instance not in self.over:
            self.over.add(instance)
            self.power_off(self.by_instance[instance])

    def alias_of(self, instance):
        """Once its host answers."""
        return wait_for(
            lambda: self.errors or self.by_instance.get(instance), f"{instance} is up"
        )

    def state(self, instance):
        answer = self.ec2.describe_instances(InstanceIds=[instance])
        return answer["Reservations"][0]["Instances"][0]["State"]["Name"]
