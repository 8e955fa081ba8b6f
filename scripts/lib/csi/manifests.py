"""Checks Kubernetes manifests: each document against the schema of its kind, strictly, and what schemas do not say.

The schemas are those of the package kubernetes-validate. VolumeSnapshotClass comes with a CRD and has no schema there: its fields are
compared with those of the CRD's version 1.
"""

import sys

import kubernetes_validate
import yaml

# The oldest supported at the time of writing, and the newest that the package knows.
VERSIONS = ("1.34", "1.37")
SNAPSHOT_CLASS = {"apiVersion", "kind", "metadata", "driver", "deletionPolicy", "parameters"}


def problems(document):
    """What is wrong with a document, a sentence each."""
    name = f"{document.get('kind')} {document.get('metadata', {}).get('name')}"
    if document.get("kind") == "VolumeSnapshotClass":
        if document.get("apiVersion") != "snapshot.storage.k8s.io/v1":
            yield f"{name}: apiVersion is {document.get('apiVersion')}"
        for field in set(document) - SNAPSHOT_CLASS:
            yield f"{name}: {field} is no field of the CRD"
        if document.get("deletionPolicy") not in ("Delete", "Retain"):
            yield f"{name}: deletionPolicy has to be Delete or Retain"
        return
    for version in VERSIONS:
        try:
            kubernetes_validate.validate(document, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            yield f"{name}: Kubernetes {version}: {'.'.join(str(part) for part in error.path)}: {error.message}"
    for container in document.get("spec", {}).get("template", {}).get("spec", {}).get("containers", []):
        mounted = {mount["name"] for mount in container.get("volumeMounts", [])}
        volumes = {volume["name"] for volume in document["spec"]["template"]["spec"].get("volumes", [])}
        for volume in mounted - volumes:
            yield f"{name}: container {container['name']} mounts {volume}, which is no volume"
        image = container["image"]
        if ":" not in image.rsplit("/", 1)[-1]:
            yield f"{name}: image {image} has no version"


def main():
    wrong = 0
    for path in sys.argv[1:]:
        with open(path, encoding="utf-8") as file:
            documents = [document for document in yaml.safe_load_all(file) if document]
        if not documents:
            print(f"{path}: no document", file=sys.stderr)
            wrong += 1
        for document in documents:
            for problem in problems(document):
                print(f"{path}: {problem}", file=sys.stderr)
                wrong += 1
    sys.exit(1 if wrong else 0)


main()
