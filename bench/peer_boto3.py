"""boto3's transfers, as bench/s3.py times them: its managed transfer with its
defaults for one large file, and a pool of its default size for many small
ones. Prints the seconds of the transfer alone, imports and connections left
out.

    peer_boto3.py URL up FILE KEY | down KEY FILE
                  | down-folder PREFIX FOLDER | up-folder FOLDER PREFIX
"""

import concurrent.futures
import pathlib
import sys
import time

import boto3
import boto3.s3.transfer
import botocore.config

POOL = boto3.s3.transfer.TransferConfig().max_request_concurrency


def main(url, verb, first, second):
    client = boto3.client(
        "s3",
        region_name="us-east-1",
        endpoint_url=url,
        aws_access_key_id="key",
        aws_secret_access_key="secret",
        config=botocore.config.Config(
            max_pool_connections=POOL, s3={"addressing_style": "path"}
        ),
    )
    client.put_object(Bucket="bench", Key="warm", Body=b"x")
    begun = time.monotonic()
    if verb == "up":
        client.upload_file(first, "bench", second)
    elif verb == "down":
        client.download_file("bench", first, second)
    elif verb == "down-folder":
        folder = pathlib.Path(second)
        pages = client.get_paginator("list_objects_v2").paginate(
            Bucket="bench", Prefix=first
        )
        keys = [one["Key"] for page in pages for one in page.get("Contents", [])]
        folders = {(folder / key[len(first) :]).parent for key in keys}
        for path in folders:
            path.mkdir(parents=True, exist_ok=True)
        with concurrent.futures.ThreadPoolExecutor(POOL) as pool:
            work = [
                pool.submit(
                    client.download_file, "bench", key, str(folder / key[len(first) :])
                )
                for key in keys
            ]
            for one in work:
                one.result()
    else:
        folder = pathlib.Path(first)
        files = [path for path in folder.rglob("*") if path.is_file()]
        with concurrent.futures.ThreadPoolExecutor(POOL) as pool:
            work = [
                pool.submit(
                    client.upload_file,
                    str(path),
                    "bench",
                    second + path.relative_to(folder).as_posix(),
                )
                for path in files
            ]
            for one in work:
                one.result()
    print(time.monotonic() - begun)


if __name__ == "__main__":
    main(*sys.argv[1:])
