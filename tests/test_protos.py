"""The .proto files that other languages speak are made into packages as they are."""

import re
from pathlib import Path

import pytest

_PROTOS = Path(__file__).parents[1] / "proto"
_SPOKEN = ("rifl", "lease_server", "sharedlog")
_GO = re.compile(r'^option go_package = "(.+);(.+)";$', re.MULTILINE)


@pytest.mark.parametrize("package", _SPOKEN)
def test_go_has_a_package_of_each_protocol(package):
    """All files of one directory are one package, whose name a program can write."""
    files = sorted((_PROTOS / package / "v1").glob("*.proto"))
    assert files
    for file in files:
        found = _GO.findall(file.read_text("utf-8"))
        assert found == [(f"{package}/v1", f"{package.replace('_', '')}v1")], file
