"""Certificates that are made for one test and trusted by nobody else."""

from __future__ import annotations

import os
import shutil
import ssl
import subprocess
from pathlib import Path

import pytest


def make_certificate(folder: Path, *names: str) -> ssl.SSLContext:
    """What a server of these names needs; its certificate is `cert.pem` in the folder."""
    found = shutil.which("openssl")
    if found is None:
        if os.environ.get("CI") == "true":
            pytest.fail("openssl is not installed, and TLS cannot be tried without it")
        pytest.skip("openssl is not installed, and TLS cannot be tried without it")
    command = [found, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-days", "2", "-subj", "/CN=test", "-addext", f"subjectAltName={','.join(names)}"]
    command += ["-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")]
    subprocess.run(command, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    return context
