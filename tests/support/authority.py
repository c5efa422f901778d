"""An authority of a test's own, which certifies processes on this machine. It needs the command `openssl`."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

from silo.messaging.certificates import Certificates

OPENSSL: Final = shutil.which("openssl")
needs_openssl: Final = pytest.mark.skipif(OPENSSL is None, reason="no `openssl` on the PATH to make certificates with")
CONFIG: Final = """
[req]
distinguished_name = name
[name]
[authority]
basicConstraints = critical, CA:true
keyUsage = critical, keyCertSign
subjectKeyIdentifier = hash
[process]
basicConstraints = critical, CA:false
keyUsage = critical, digitalSignature
subjectAltName = {hosts}
"""


class Authority:
    """Signs certificates, which are files in its folder.

    Args:
        folder: of its own, and there.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._certificate, self._key = folder / "authority.pem", folder / "authority.key"
        self._make("authority", "an authority", self._certificate, self._key)

    def certify(self, name: str, hosts: str = "IP:127.0.0.1, DNS:localhost") -> Certificates:
        """The certificate of a process, for the hosts by which it is dialled; it trusts this authority alone."""
        chain, key = self._folder / f"{name}.pem", self._folder / f"{name}.key"
        self._make("process", name, chain, key, "-CA", str(self._certificate), "-CAkey", str(self._key), hosts=hosts)
        return Certificates(chain, key, self._certificate)

    def _make(self, section: str, name: str, certificate: Path, key: Path, *signer: str, hosts: str = "DNS:x") -> None:
        config = self._folder / f"{name}.conf"
        config.write_text(CONFIG.format(hosts=hosts), encoding="ascii")
        assert OPENSSL is not None
        command = [OPENSSL, "req", "-x509", "-config", str(config), "-extensions", section, "-subj", f"/CN={name}"]
        command += ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-noenc", "-days", "2"]
        command += ["-keyout", str(key), "-out", str(certificate), *signer]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        assert done.returncode == 0, done.stderr
