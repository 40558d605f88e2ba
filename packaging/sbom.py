#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The bill of materials of a release, as SPDX 2.3 in JSON on standard output.

    sbom.py TARBALL VERSION SECONDS

SECONDS since 1970 are those of the commit, so that the same commit gives the same bytes. Nothing of
others is in the source. What is linked comes from the system that builds it, and so in that system's
versions: a distribution's package names them (debian/control).
"""
import datetime
import hashlib
import json
import sys

# name, least version, licence, where from, relationship to libtamis
PARTS = (
    ("xxhash", "0.8", "BSD-2-Clause", "https://xxhash.com/", "DEPENDENCY_OF"),
    ("MPI (Open MPI, MPICH or another)", "3.1", "NOASSERTION", "NOASSERTION",
     "OPTIONAL_DEPENDENCY_OF"),
    ("OpenMP runtime of the compiler", "", "NOASSERTION", "NOASSERTION", "OPTIONAL_DEPENDENCY_OF"),
    ("CUDA runtime", "12.0", "LicenseRef-NVIDIA", "https://developer.nvidia.com/cuda-toolkit",
     "OPTIONAL_DEPENDENCY_OF"),
    ("NCCL", "2.18", "NOASSERTION", "https://github.com/NVIDIA/nccl", "OPTIONAL_DEPENDENCY_OF"),
    ("CPython", "3.9", "Python-2.0.1", "https://www.python.org/", "OPTIONAL_DEPENDENCY_OF"),
    # Only programs in bench/:
    ("jansson", "", "MIT", "https://github.com/akheron/jansson", "OPTIONAL_DEPENDENCY_OF"),
    ("OpenBLAS", "", "BSD-3-Clause", "https://www.openblas.net/", "OPTIONAL_DEPENDENCY_OF"),
    ("zlib", "", "Zlib", "https://zlib.net/", "OPTIONAL_DEPENDENCY_OF"),
    # Only tests:
    ("cmocka", "", "Apache-2.0", "https://cmocka.org/", "TEST_DEPENDENCY_OF"),
)


def package(number, name, version, licence, place):
    entry = {
        "SPDXID": f"SPDXRef-{number}", "name": name, "downloadLocation": place,
        "filesAnalyzed": False, "licenseConcluded": licence, "licenseDeclared": licence,
        "copyrightText": "NOASSERTION",
    }
    if version:
        entry["comment"] = f"Not included. {version} or later, as the system that builds it has it."
    else:
        entry["comment"] = "Not included. As the system that builds it has it."
    return entry


def main():
    path, version, seconds = sys.argv[1:]
    with open(path, "rb") as file:
        digest = hashlib.sha256(file.read()).hexdigest()
    when = datetime.datetime.fromtimestamp(int(seconds), datetime.timezone.utc)
    own = package("tamis", "tamis", "", "MIT", "NOASSERTION")
    own.update(versionInfo=version, packageFileName=path.rsplit("/", 1)[-1],
               copyrightText="Copyright (c) 2026 the libtamis authors",
               checksums=[{"algorithm": "SHA256", "checksumValue": digest}],
               comment="Source. Nothing of others is included.")
    packages, relations = [own], [("DOCUMENT", "DESCRIBES", "tamis")]
    for number, (name, least, licence, place, relation) in enumerate(PARTS, 1):
        packages.append(package(number, name, least, licence, place))
        relations.append((number, relation, "tamis"))
    document = {
        "spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT",
        "name": f"tamis-{version}",
        "documentNamespace": f"urn:sha256:{digest}",
        "creationInfo": {"created": when.strftime("%Y-%m-%dT%H:%M:%SZ"),
                         "creators": ["Tool: packaging/sbom.py"]},
        "packages": packages,
        "relationships": [
            {"spdxElementId": f"SPDXRef-{a}", "relationshipType": r,
             "relatedSpdxElement": f"SPDXRef-{b}"} for a, r, b in relations],
        "hasExtractedLicensingInfos": [
            {"licenseId": "LicenseRef-NVIDIA", "name": "NVIDIA CUDA EULA",
             "extractedText": "https://docs.nvidia.com/cuda/eula/"}],
    }
    json.dump(document, sys.stdout, indent=1)
    print()


main()
