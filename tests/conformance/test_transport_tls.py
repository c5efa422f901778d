"""What certificates promise, held by each transport that takes them: one set of files serves all."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from pathlib import Path

import pytest

from silo.directory.errors import InvalidSettings
from silo.messaging import direct_transport
from silo.messaging.certificates import Certificates
from silo.messaging.transport import Connection, ConnectionLost, Transport
from silo.messaging.transports import open_direct, open_grpc
from tests.support.authority import Authority, needs_openssl

Open = Callable[[Certificates | None], Transport]
pytestmark = needs_openssl
SECRET = b"a word that nobody else is to read"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("stranger"))


@pytest.fixture(params=["grpc", "direct"])
def opened(request: pytest.FixtureRequest) -> Open:
    return open_direct if request.param == "direct" else lambda certificates: open_grpc(certificates=certificates)


class Listening:
    """A listener that echoes, and notes who got through to it."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.accepted: list[str] = []
        self.endpoint = ""

    async def accept(self, connection: Connection) -> None:
        self.accepted.append(connection.remote)
        while (body := await connection.read()) is not None:
            await connection.write(bytes(body))


@contextlib.asynccontextmanager
async def listening(transport: Transport) -> AsyncGenerator[Listening]:
    listening = Listening(transport)
    listener = await transport.listen("127.0.0.1:0", listening.accept)
    listening.endpoint = listener.endpoint
    try:
        yield listening
    finally:
        await listener.close()
        await transport.close()


async def is_refused(transport: Transport, endpoint: str) -> bool:
    """Whether whoever dials there so hears nothing but the end of it."""
    try:
        async with asyncio.timeout(5):
            connection = await transport.dial(endpoint)
            await connection.write(SECRET)
            return await connection.read() is None
    except ConnectionLost:
        return True
    finally:
        await transport.close()


async def test_who_shows_the_certificate_of_a_common_authority_is_let_in(opened: Open, authority: Authority) -> None:
    async with listening(opened(authority.certify("one"))) as one:
        dialling = opened(authority.certify("two"))
        connection = await dialling.dial(one.endpoint)
        await connection.write(SECRET)
        assert await connection.read() == SECRET
        await dialling.close()


async def test_nothing_is_said_in_plain_text(opened: Open, authority: Authority) -> None:
    heard = bytearray()
    async with listening(opened(authority.certify("one"))) as one:
        port = int(one.endpoint.rpartition(":")[2])

        async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(ConnectionError):
                while piece := await reader.read(4096):
                    heard.extend(piece)
                    writer.write(piece)
            writer.close()

        async def tap(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
            await asyncio.gather(pass_on(reader, far_writer), pass_on(far_reader, writer))

        server = await asyncio.start_server(tap, "127.0.0.1", 0)
        async with server:
            dialling = opened(authority.certify("two"))
            connection = await dialling.dial(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
            await connection.write(SECRET)
            assert await connection.read() == SECRET
            await dialling.close()
    assert len(heard) > 2 * len(SECRET)
    assert SECRET not in heard


async def test_the_certificate_of_another_authority_lets_nobody_in(
    opened: Open, authority: Authority, stranger: Authority
) -> None:
    own, other = authority.certify("one"), stranger.certify("two")
    believing = Certificates(other.chain, other.key, own.authorities)
    async with listening(opened(own)) as one:
        assert await is_refused(opened(other), one.endpoint), "the dialler does not believe the listener"
        assert await is_refused(opened(believing), one.endpoint), "the listener does not believe the dialler"
        assert one.accepted == []


async def test_a_certificate_for_another_host_is_not_believed(opened: Open, authority: Authority) -> None:
    async with listening(opened(authority.certify("elsewhere", "IP:127.9.9.9, DNS:elsewhere"))) as elsewhere:
        assert await is_refused(opened(authority.certify("two")), elsewhere.endpoint)


async def test_plain_text_and_tls_do_not_meet(
    opened: Open, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(direct_transport, "HANDSHAKE_TIMEOUT_S", 0.2)
    held = authority.certify("one")
    async with listening(opened(held)) as secured, listening(opened(None)) as plain:
        assert await is_refused(opened(None), secured.endpoint)
        assert await is_refused(opened(held), plain.endpoint)
        assert secured.accepted == []


async def test_who_connects_to_the_lane_and_says_nothing_is_soon_cut_off(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(direct_transport, "HANDSHAKE_TIMEOUT_S", 0.1)
    async with listening(open_direct(authority.certify("one"))) as one, asyncio.timeout(5):
        reader, writer = await asyncio.open_connection(*one.endpoint.split(":"))
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        writer.close()
        assert one.accepted == []


def test_certificates_that_cannot_be_used_are_named(opened: Open, authority: Authority, tmp_path: Path) -> None:
    held, other = authority.certify("one"), authority.certify("two")
    with pytest.raises(InvalidSettings, match="no such file, of nobody"):
        opened(Certificates(tmp_path / "no such file, of nobody", held.key, held.authorities))
    with pytest.raises(InvalidSettings, match=r"two\.key"):
        opened(Certificates(held.chain, other.key, held.authorities))
