"""The third-party programs in static/vendor equal the published files, and each has its licence."""

from __future__ import annotations

import hashlib
from pathlib import Path

VENDOR = Path(__file__).resolve().parent.parent / "static" / "vendor"
OWN = {"CHECKSUMS", "README.md"}


def checksums() -> dict[str, str]:
    lines = (VENDOR / "CHECKSUMS").read_text().splitlines()
    return {name: digest for digest, name in (line.split(maxsplit=1) for line in lines)}


def test_every_file_equals_its_published_version() -> None:
    found = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in VENDOR.iterdir()
        if path.is_file() and path.name not in OWN
    }

    assert found == checksums()


def test_every_program_has_its_licence_and_its_origin() -> None:
    origin = (VENDOR / "README.md").read_text()

    for program in VENDOR.glob("*.js"):
        package, _, version = program.name.removesuffix(".js").removesuffix(".min").rpartition("-")
        assert (VENDOR / f"{package}.LICENSE").stat().st_size > 0
        assert f"`{program.name}`" in origin
        assert version in origin
