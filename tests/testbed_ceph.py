"""Ceph's object store for tests: one monitor, one OSD in memory, radosgw.

It checks signatures, parts and conditions as a store in earnest does. All of
it lives in one folder, on loopback, and ends by process id.
"""

import socket
import subprocess
import uuid

import boto3
import botocore.config

from testbed import Bed, wait_for
from testbed_s3 import Probe

REGION = "default"
KEY, SECRET = "CEPHKEY0123456789", "cephsecret/with+signs=0123456789"

CONFIGURATION = """[global]
fsid = {fsid}
mon_host = v1:127.0.0.1:{mon}
public_addr = 127.0.0.1
cluster_addr = 127.0.0.1
auth_cluster_required = cephx
auth_service_required = cephx
auth_client_required = cephx
keyring = {folder}/keyring
run_dir = {folder}
admin_socket = {folder}/$name.asok
pid_file = {folder}/$name.pid
log_file = {folder}/$name.log
crash_dir = {folder}/crash
mon_data = {folder}/mon
mon_allow_pool_size_one = true
mon_max_pg_per_osd = 1000
osd_data = {folder}/osd
osd_objectstore = memstore
memstore_device_bytes = 2147483648
osd_crush_chooseleaf_type = 0
osd_pool_default_size = 1
osd_pool_default_min_size = 1
osd_pool_default_pg_num = 1
osd_pool_default_pg_autoscale_mode = off
osd_class_load_list = *
osd_class_default_list = *
rgw_frontends = beast endpoint=127.0.0.1:{rgw}
rgw_rados_pool_pg_num_min = 1
rgw_run_sync_thread = false
rgw_enable_usage_log = false
"""


def free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


class Ceph(Bed):
    def __enter__(self):
        try:
            self.open()
            mon, self.port = free_ports(2)
            self.url = f"http://127.0.0.1:{self.port}"
            text = CONFIGURATION.format(
                fsid=uuid.uuid4(), mon=mon, rgw=self.port, folder=self.folder
            )
            self.configuration = self.folder / "ceph.conf"
            self.configuration.write_text(text)
            self.fsid = text.split()[3]
            self.start_monitor(mon)
            self.start_osd()
            self.start_gateway()
            return self
        except BaseException:
            self.close()
            raise

    def __exit__(self, *_):
        self.close()

    def call(self, *words):
        done = subprocess.run(
            [*map(str, words), "-c", self.configuration],
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, (words, done.stderr)
        return done.stdout

    def start_monitor(self, port):
        keyring = self.folder / "keyring"
        subprocess.run(
            ["ceph-authtool", "--create-keyring", keyring, "--gen-key", "-n", "mon."]
            + ["--cap", "mon", "allow *"],
            check=True,
            capture_output=True,
        )
        for name in ("client.admin", "osd.0", "client.rgw"):
            words = ["--cap", "mon", "allow *", "--cap", "osd", "allow *"]
            words += ["--cap", "mgr", "allow *"]
            subprocess.run(
                ["ceph-authtool", keyring, "--gen-key", "-n", name, *words],
                check=True,
                capture_output=True,
            )
        map_file = self.folder / "monmap"
        subprocess.run(
            ["monmaptool", "--create", "--fsid", self.fsid, "--addv", "a"]
            + [f"[v1:127.0.0.1:{port}]", map_file],
            check=True,
            capture_output=True,
        )
        self.call("ceph-mon", "--mkfs", "-i", "a", "--monmap", map_file)
        words = ["-f", "-i", "a", "-c", self.configuration]
        self.start("ceph-mon", *words, log="mon.out")

    def start_osd(self):
        identity = str(uuid.uuid4())
        self.call("ceph", "--connect-timeout", "60", "osd", "new", identity, "0")
        (self.folder / "osd").mkdir()
        self.call("ceph-osd", "-i", "0", "--mkfs", "--osd-uuid", identity)
        words = ["-f", "-i", "0", "-c", self.configuration]
        self.start("ceph-osd", *words, log="osd.out")

    def start_gateway(self):
        words = ["-f", "-n", "client.rgw", "-c", self.configuration]
        gateway = self.start("radosgw", *words, log="rgw.out")
        self.call(
            "radosgw-admin", "user", "create", "--uid=lockstep", "--display-name=x",
            "--access-key", KEY, "--secret-key", SECRET, "--key-type", "s3",
        )

        def answers():
            assert gateway.poll() is None, self.log("rgw.out")
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return True
            except OSError:
                return False

        wait_for(answers, "radosgw answers", 120)

    def client(self):
        return boto3.client(
            "s3",
            region_name=REGION,
            endpoint_url=self.url,
            aws_access_key_id=KEY,
            aws_secret_access_key=SECRET,
            config=botocore.config.Config(
                s3={"addressing_style": "path"},
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
            ),
        )

    def probe(self, options=(), secret=SECRET):
        return Probe(self.url, KEY, secret, options)
