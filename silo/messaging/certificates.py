"""The certificates by which processes of a cluster know each other: one set of files, for gRPC and the direct lane."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from silo.directory.errors import InvalidSettings

if TYPE_CHECKING:
    import grpc


class CertificateFiles(Protocol):
    """The settings that name the files: all of them, or none."""

    @property
    def certificate(self) -> Path | None: ...

    @property
    def key(self) -> Path | None: ...

    @property
    def authorities(self) -> Path | None: ...


@dataclass(frozen=True, slots=True)
class Certificates:
    """What this process proves itself by, and whom it believes. Both ends of a connection show a certificate.

    Each is the path of a PEM file. A certificate must name the host by which its holder is dialled.

    Args:
        chain: the own certificate, and those between it and an authority.
        key: the key of the own certificate, without a password.
        authorities: the certificates of those whose word is believed; no others are, not those of the system either.
    """

    chain: Path
    key: Path
    authorities: Path

    @classmethod
    def of(cls, files: CertificateFiles) -> Certificates | None:
        """Those that are set; None where TLS is not."""
        if files.certificate is None or files.key is None or files.authorities is None:
            return None
        return cls(files.certificate, files.key, files.authorities)

    def to_be_dialled(self) -> ssl.SSLContext:
        """TLS for a listener of the direct lane. Raises InvalidSettings."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.verify_mode = ssl.CERT_REQUIRED
        self._load(context)
        return context

    def to_dial(self) -> ssl.SSLContext:
        """TLS for whoever dials the direct lane; it looks at the name of the host, too. Raises InvalidSettings."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._load(context)
        return context

    def _load(self, context: ssl.SSLContext) -> None:
        context.minimum_version = ssl.TLSVersion.TLSv1_3  # both ends are this very program
        try:
            context.load_cert_chain(self.chain, self.key)
            context.load_verify_locations(self.authorities)
        except OSError as error:  # an SSLError is one, too
            raise InvalidSettings(
                f"the certificate in {self.chain}, its key in {self.key} and the authorities in {self.authorities} "
                f"cannot be used: {error}"
            ) from None

    def grpc_server(self) -> grpc.ServerCredentials:
        """TLS for the server of gRPC. Raises InvalidSettings."""
        import grpc

        self.to_be_dialled()  # the gRPC core says of what it cannot read no more than that there is something
        pair = (self.key.read_bytes(), self.chain.read_bytes())
        return grpc.ssl_server_credentials([pair], self.authorities.read_bytes(), require_client_auth=True)

    def grpc_channel(self) -> grpc.ChannelCredentials:
        """TLS for channels of gRPC. Raises InvalidSettings."""
        import grpc

        self.to_dial()
        return grpc.ssl_channel_credentials(
            self.authorities.read_bytes(), self.key.read_bytes(), self.chain.read_bytes()
        )
