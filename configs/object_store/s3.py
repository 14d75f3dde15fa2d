#!/usr/bin/env python3
"""Keeps the checkpoints of a run in S3, or in any store that speaks S3, and brings the newest one back. Needs boto3
(pip install boto3, or Debian's python3-boto3).

    [checkpoint]
    upload_shard_command = "exec python3 configs/object_store/s3.py put s3://BUCKET/RUN --keep 3"
    download_command = "exec python3 configs/object_store/s3.py get s3://BUCKET/RUN"

or, with all files sent by rank 0, upload_command = "exec python3 ... put s3://BUCKET/RUN". Credentials, region and endpoint come from
where boto3 looks for them: the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_DEFAULT_REGION, AWS_ENDPOINT_URL),
~/.aws, or the role of the machine. Do not write a secret into the command: the config is stored with every checkpoint.

With exec it dies with the rank that runs it. Give every run a prefix of its own. Below it each checkpoint has a folder, named by holdfast (HOLDFAST_NAME) so that the last name is
the newest and other bytes have another name. A folder counts when manifest.json is in it, which is sent last; a single object is
there whole or not at all.

    put    sends HOLDFAST_FILE, or every file of HOLDFAST_CHECKPOINT, the manifest last. What is there with the same length is not
           sent again. Behind a manifest, --keep N removes what is older than the newest N whole ones (manifest first)
    get    fetches the newest whole one into HOLDFAST_DOWNLOAD, of a step before HOLDFAST_BEFORE_STEP where that is set; exit
           code 0 and nothing where there is none
    list   prints the names of the whole ones, the newest last
"""
import argparse
import os
import re
import sys
import urllib.parse
from pathlib import Path

import boto3
import botocore.config
import botocore.exceptions

MANIFEST = "manifest.json"


class Store:
    """The folders below one prefix of a bucket."""

    def __init__(self, place):
        parts = urllib.parse.urlparse(place)
        if parts.scheme != "s3" or not parts.netloc or not parts.path.strip("/"):
            sys.exit(f"s3.py: the place must be s3://BUCKET/PREFIX, got {place}")
        self.bucket, self.prefix = parts.netloc, parts.path.strip("/") + "/"
        retries = {"max_attempts": 5, "mode": "standard"}
        self.client = boto3.client("s3", config=botocore.config.Config(retries=retries))

    def objects(self, folder=""):
        """{name below the folder: length}"""
        begin, found = self.prefix + (f"{folder}/" if folder else ""), {}
        for page in self.client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=begin):
            for each in page.get("Contents", []):
                found[each["Key"].removeprefix(begin)] = each["Size"]
        return found

    def folders(self):
        """{folder: its names}, the newest last."""
        found = {}
        for path in sorted(self.objects()):
            folder, _, name = path.partition("/")
            found.setdefault(folder, set()).add(name)
        return found

    def whole(self):
        """The folders that count, the newest last."""
        return [folder for folder, names in self.folders().items() if MANIFEST in names]

    def put(self, file, folder):
        key = f"{self.prefix}{folder}/{file.name}"
        try:
            if self.client.head_object(Bucket=self.bucket, Key=key)["ContentLength"] == file.stat().st_size:
                return
        except botocore.exceptions.ClientError as error:
            if error.response["Error"]["Code"] not in ("404", "NoSuchKey", "NotFound"):
                raise
        self.client.upload_file(str(file), self.bucket, key)

    def get(self, folder, name, target):
        self.client.download_file(self.bucket, f"{self.prefix}{folder}/{name}", str(target / name))

    def remove(self, folder, names):
        for name in sorted(names, key=lambda name: name != MANIFEST):  # without the manifest the rest no longer counts
            self.client.delete_object(Bucket=self.bucket, Key=f"{self.prefix}{folder}/{name}")

    def retain(self, keep, newest):
        """Removes what is older than the newest `keep` whole ones, and what is older than `newest` and never became whole."""
        folders = {folder: names for folder, names in self.folders().items() if folder <= newest}
        whole = [folder for folder, names in folders.items() if MANIFEST in names]
        for folder, names in folders.items():
            if folder not in whole[-keep:]:
                self.remove(folder, names)


def variable(name):
    value = os.environ.get(name)
    if not value:
        sys.exit(f"s3.py: {name} is not set: holdfast runs this as a command of its config")
    return value


def put(store, keep):
    folder = variable("HOLDFAST_NAME")
    if "HOLDFAST_FILE" in os.environ:
        files = [Path(variable("HOLDFAST_FILE"))]
    else:
        files = sorted(Path(variable("HOLDFAST_CHECKPOINT")).iterdir(), key=lambda file: file.name == MANIFEST)
    for file in files:
        store.put(file, folder)
    if keep and files[-1].name == MANIFEST:
        store.retain(keep, folder)


def get(store):
    target = Path(variable("HOLDFAST_DOWNLOAD"))
    whole = store.whole()
    if before := os.environ.get("HOLDFAST_BEFORE_STEP"):
        whole = [folder for folder in whole if int(re.search(r"step-(\d+)", folder).group(1)) < int(before)]
    if not whole:
        return
    names = store.objects(whole[-1])
    print(f"fetching {whole[-1]}: {len(names)} files, {sum(names.values())} bytes", flush=True)
    for name in sorted(names, key=lambda name: name == MANIFEST):
        store.get(whole[-1], name, target)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("deed", choices=["put", "get", "list"])
    parser.add_argument("place", metavar="s3://BUCKET/PREFIX")
    parser.add_argument("--keep", type=int, default=0, help="whole ones that put leaves there; 0 = all")
    arguments = parser.parse_args()
    store = Store(arguments.place)
    try:
        if arguments.deed == "put":
            put(store, arguments.keep)
        elif arguments.deed == "get":
            get(store)
        else:
            for folder in store.whole():
                print(folder)
    except (botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError, boto3.exceptions.Boto3Error, OSError) as error:
        sys.exit(f"s3.py: {arguments.place}: {error}")


if __name__ == "__main__":
    main()
