"""Prometheus's own programs, from Debian's package `prometheus`: on the path, or in the folder that INFERD_PROMETHEUS names
(`./bootstrap test` unpacks them there without installing the package, whose service nobody asked for)."""

import os
import shutil

import pytest


def program(name):
    found = shutil.which(name, path=os.environ.get("INFERD_PROMETHEUS")) or shutil.which(name)
    if not found:
        pytest.skip(f"there is no {name}: it is in Debian's package prometheus")
    return found
