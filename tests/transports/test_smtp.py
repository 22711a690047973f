"""Emails: what reaches a real mail server, and what its answers mean."""

from __future__ import annotations

import asyncio
import email
import logging
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from email.message import EmailMessage
from email.policy import default
from pathlib import Path

import pytest
from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session

from antiphon import UsageError
from antiphon.core.errors import TransportRefused, TransportUnavailable
from antiphon.core.transport import OutboundReply
from antiphon.transports.smtp import SmtpTransport
from tests.support.certificates import make_certificate
from tests.support.waiting import soon, wait_until

REPLY = OutboundReply("r-1", "c-1", "email", "ann@example.net", "Your order was sent. ✓\n.\nBye", "support", "m-1")
SENDER = "Büro <help@example.org>"
PASSWORD = "sesame-open-1234"


@dataclass
class Mailbox:
    """A mail server's handler: it keeps what comes, or answers otherwise."""

    answers: dict[str, str] = field(default_factory=dict)
    """What is answered to a command instead of accepting it."""
    got: list[Envelope] = field(default_factory=list)
    encrypted: list[bool] = field(default_factory=list)
    logins: list[str] = field(default_factory=list)
    port: int = 0

    async def handle_MAIL(  # noqa: N802  # the server calls it by the name of the command; the same below
        self, _: SMTP, __: Session, envelope: Envelope, sender: str, options: list[str]
    ) -> str:
        envelope.mail_from = sender
        envelope.mail_options.extend(options)
        return self.answers.get("MAIL", "250 OK")

    async def handle_RCPT(  # noqa: N802
        self, _: SMTP, __: Session, envelope: Envelope, recipient: str, options: list[str]
    ) -> str:
        envelope.rcpt_tos.append(recipient)
        return self.answers.get("RCPT", "250 OK")

    async def handle_DATA(self, _: SMTP, session: Session, envelope: Envelope) -> str:  # noqa: N802
        if "DATA" in self.answers:
            return self.answers["DATA"]
        self.got.append(envelope)
        self.encrypted.append(session.ssl is not None)
        return "250 accepted"

    def login(self, _: SMTP, __: Session, ___: Envelope, mechanism: str, data: object) -> AuthResult:
        assert isinstance(data, LoginPassword)
        self.logins.append(data.login.decode())
        return AuthResult(success=data.password == PASSWORD.encode(), handled=False)

    def emails(self) -> list[EmailMessage]:
        return [self.read(each) for each in self.got]

    def read(self, envelope: Envelope) -> EmailMessage:
        assert isinstance(envelope.content, bytes)
        return email.message_from_bytes(envelope.content, policy=default)  # type: ignore[return-value]


@asynccontextmanager
async def mail_server(
    *, starttls: ssl.SSLContext | None = None, implicit: ssl.SSLContext | None = None, **answers: str
) -> AsyncIterator[Mailbox]:
    box = Mailbox(answers)
    loop = asyncio.get_running_loop()
    options = {"enable_SMTPUTF8": answers.pop("utf8", "yes") == "yes", "hostname": "mail.example.org"}

    def protocol() -> SMTP:
        return SMTP(
            box, loop=loop, tls_context=starttls, authenticator=box.login, auth_require_tls=False, timeout=10, **options
        )

    listening = await loop.create_server(protocol, "127.0.0.1", 0, ssl=implicit)
    box.port = listening.sockets[0].getsockname()[1]
    try:
        yield box
    finally:
        listening.close()
        await listening.wait_closed()


def transport_to(box: Mailbox, **options: object) -> SmtpTransport:
    return SmtpTransport("127.0.0.1", box.port, **{"sender": SENDER, "tls": "none", **options})  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[ssl.SSLContext, str]:
    folder = tmp_path_factory.mktemp("mail")
    return make_certificate(folder, "IP:127.0.0.1"), str(folder / "cert.pem")


# What is sent


async def test_a_reply_is_an_email() -> None:
    async with mail_server() as box:
        await transport_to(box).send(REPLY)
    [envelope], [read] = box.got, box.emails()
    assert (envelope.mail_from, envelope.rcpt_tos) == ("help@example.org", ["ann@example.net"])
    assert read["From"] == SENDER
    assert read["To"] == "ann@example.net"
    assert read["Subject"] == "Re: your message"
    assert read["Message-ID"] == "<r-1@example.org>"
    assert read["In-Reply-To"] == read["References"] == "<m-1@example.org>"
    assert read["Auto-Submitted"] == "auto-replied"
    assert read["Date"]
    assert read.get_content_type() == "text/plain"
    assert read.get_content_charset() == "utf-8"
    assert bytes(envelope.content or b"").isascii()  # not every mail server takes 8 bits
    assert read.get_content().replace("\r\n", "\n") == f"{REPLY.text}\n"


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ("<abc.1@mail.example.net>", "<abc.1@mail.example.net>"),
        ("0193-7a", "<0193-7a@example.org>"),
        (None, None),
        ("two words", None),
        ("<a@b>\r\nBcc: eve@example.net", None),
        ("ü", None),
    ],
)
async def test_which_email_it_answers(answers: str | None, expected: str | None) -> None:
    async with mail_server() as box:
        await transport_to(box).send(replaced(answers=answers))
    [read] = box.emails()
    assert read["In-Reply-To"] == expected
    assert read["Bcc"] is None


async def test_long_ids_arrive_whole() -> None:
    answered = f"<{'x' * 120}@mail.example.net>"
    async with mail_server() as box:
        transport = transport_to(box, sender="help@" + "long." * 12 + "example.org", subject="Ä" * 100)
        await transport.send(replaced(reply_id="r" * 36, answers=answered))
    [read] = box.emails()
    assert read["Message-ID"] == f"<{'r' * 36}@{'long.' * 12}example.org>"
    assert read["In-Reply-To"] == answered
    assert read["Subject"] == "Ä" * 100
    content = box.got[0].content
    assert isinstance(content, bytes)
    assert f"In-Reply-To: {answered}\r\n".encode() in content


async def test_an_address_that_is_not_ascii_needs_a_server_that_takes_it() -> None:
    async with mail_server() as box:
        await transport_to(box).send(replaced(recipient="jürgen@exämple.net"))
    assert box.got[0].rcpt_tos == ["jürgen@exämple.net"]
    async with mail_server(utf8="no") as box:
        with pytest.raises(TransportRefused, match="takes no address such as 'jürgen@"):
            await transport_to(box).send(replaced(recipient="jürgen@exämple.net"))
        await transport_to(box).send(REPLY)
    assert len(box.got) == 1


def replaced(**changes: object) -> OutboundReply:
    import msgspec

    return msgspec.structs.replace(REPLY, **changes)


@pytest.mark.parametrize(
    "recipient",
    [
        "",
        "ann",
        "@example.net",
        "ann@",
        "+49301234",
        "ann@example.net\r\nBcc: eve@example.net",
        "ann@example.net\n",
        "ann@example.net, eve@example.net",
        "ann@example.net;eve@example.net",
        "Ann <ann@example.net>",
        "ann@example.net eve@example.net",
        "ann@eve@example.net",
        '"a b"@example.net',
        "=?utf-8?q?eve=40example.net=2C?=@example.net",
        "ann@=?utf-8?q?x=0d=0aBcc:eve?=",
        "ann\x00@example.net",
    ],
)
async def test_what_is_no_single_address_is_refused_before_anything_is_sent(recipient: str) -> None:
    transport = SmtpTransport("127.0.0.1", 9, sender=SENDER, tls="none")
    with pytest.raises(TransportRefused, match="is no email address"):
        await transport.send(replaced(recipient=recipient))


# Encryption and login


@pytest.mark.parametrize("tls", ["starttls", "implicit"])
async def test_emails_are_encrypted(
    tls: str, certificate: tuple[ssl.SSLContext, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    context, file = certificate
    async with mail_server(**{tls: context}) as box:  # type: ignore[arg-type]
        transport = transport_to(box, tls=tls, username="help", password=PASSWORD)
        with pytest.raises(TransportUnavailable, match=r"cannot be used: .*certificate verify failed"):
            await transport.send(REPLY)
        assert (box.got, box.logins) == ([], [])  # no password to a server that is not the right one
        monkeypatch.setenv("SSL_CERT_FILE", file)
        await transport.send(REPLY)
    assert box.logins == ["help"]
    assert len(box.got) == 1
    assert tls == "implicit" or box.encrypted == [True]


async def test_a_server_without_encryption_gets_nothing() -> None:
    async with mail_server() as box:
        with pytest.raises(TransportUnavailable, match="STARTTLS extension not supported"):
            await transport_to(box, tls="starttls", username="help", password=PASSWORD).send(REPLY)
    assert (box.got, box.logins) == ([], [])


async def test_a_wrong_password_may_be_corrected_and_is_not_shown(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "antiphon")
    wrong = "open-sesame-9876"
    async with mail_server() as box:
        transport = transport_to(box, username="help", password=wrong)
        with pytest.raises(TransportUnavailable, match=r"cannot be used: .*535") as caught:
            await transport.send(REPLY)
    assert wrong not in f"{transport!r} {caught.value!r} {caplog.text}"


async def test_a_secret_that_a_server_repeats_is_hidden() -> None:
    async with mail_server(DATA=f"554 no {PASSWORD}") as box:
        with pytest.raises(TransportRefused, match=r"answered 554: 'no \*\*\*'"):
            await transport_to(box, username="help", password=PASSWORD).send(REPLY)


# What an answer means


@pytest.mark.parametrize("command", ["MAIL", "RCPT", "DATA"])
@pytest.mark.parametrize("code", [550, 554, 451, 452, 421, 530, 534, 535, 538])
async def test_5xx_is_for_good_and_4xx_may_pass(command: str, code: int) -> None:
    """So may the answers to a sender that has not logged in, or has not encrypted."""
    expected = TransportRefused if code in (550, 554) else TransportUnavailable
    async with mail_server(**{command: f"{code} not now"}) as box:  # type: ignore[arg-type]
        with pytest.raises(expected, match=f"the mail server 127.0.0.1 (answered {code}: 'not now'|broke off)"):
            await transport_to(box).send(REPLY)
    assert box.got == []


async def test_no_server_may_be_there_later() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(TransportUnavailable, match=r"cannot be used: .*refused"):
        await SmtpTransport("127.0.0.1", port, sender=SENDER, tls="none").send(REPLY)


async def test_a_server_that_says_nothing_has_an_end() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        transport = SmtpTransport("127.0.0.1", silent.getsockname()[1], sender=SENDER, tls="none", timeout=0.2)
        with pytest.raises(TransportUnavailable, match=r"cannot be used: .*timed out"):
            await transport.send(REPLY)


async def test_a_server_that_leaves_in_the_middle_may_come_back() -> None:
    async def leave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for answer in (b"220 hi\r\n", b"250 hi\r\n", b""):
            writer.write(answer)
            await reader.readline() if answer else None
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(leave, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(TransportUnavailable, match="broke off"):
            await SmtpTransport("127.0.0.1", port, sender=SENDER, tls="none").send(REPLY)


async def test_the_event_loop_goes_on_meanwhile() -> None:
    """The server runs in the same loop: it could not answer otherwise."""
    async with mail_server() as box:
        await asyncio.gather(*(transport_to(box).send(replaced(reply_id=f"r-{number}")) for number in range(5)))
    assert {read["Message-ID"] for read in box.emails()} == {f"<r-{number}@example.org>" for number in range(5)}


# A server that does not answer


@asynccontextmanager
async def silent_server(said: bytes, came: Callable[[], None]) -> AsyncIterator[tuple[int, asyncio.Event]]:
    """A server that says no more than this; its port, and whether a client has left."""
    left = asyncio.Event()

    async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(said)
        came()
        while await reader.read(1000):
            pass
        left.set()
        writer.close()

    server = await asyncio.start_server(hold, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1], left


@pytest.mark.parametrize("said", [b"", b"220-still"])
async def test_an_attempt_takes_no_place_in_the_shared_pool_and_ends_with_its_caller(said: bytes) -> None:
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    clients = 0

    def came() -> None:
        nonlocal clients
        clients += 1

    async with silent_server(said, came) as (port, left):
        transport = SmtpTransport("127.0.0.1", port, sender=SENDER, tls="none", timeout=600)
        attempts = [asyncio.create_task(transport.send(REPLY)) for _ in range(4)]
        await wait_until(lambda: delivery_threads() == clients == 4)
        assert await soon(asyncio.to_thread(lambda: "free")) == "free"
        for attempt in attempts:
            attempt.cancel()
        await asyncio.wait(attempts)
        assert all(attempt.cancelled() for attempt in attempts)
        await soon(left.wait())
        await wait_until(lambda: delivery_threads() == 0)


def delivery_threads() -> int:
    return sum(each.name == "antiphon mail delivery" for each in threading.enumerate())


# What is declared


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"tls": "none"}, "would travel unencrypted; give tls='starttls' or tls='implicit', or allow_plain=True"),
        ({"tls": "ssl"}, "tls is 'ssl'; give one of starttls, implicit, none"),
        ({"host": ""}, "the mail server is ''"),
        ({"host": "smtp://x"}, "the mail server is 'smtp://x'"),
        ({"host": "a\r\nb"}, "the mail server is"),
        ({"port": 0}, "the port of the mail server is 0"),
        ({"port": "587"}, "the port of the mail server is '587'"),
        ({"sender": "help"}, "the sender of emails is 'help'"),
        ({"sender": "help@example.org\r\nBcc: x@y"}, "the sender of emails is"),
        ({"sender": None}, "the sender of emails is None"),
        ({"sender": ""}, "the sender of emails is ''"),
        ({"sender": "help@example.org, boss@example.org"}, "the sender of emails is 'help@example.org, boss@"),
        ({"sender": "desk: help@example.org;"}, "the sender of emails is 'desk: help@example.org;'"),
        ({"sender": f"x@{'a' * 70}.org"}, "the sender of emails is"),
        ({"subject": "Re:\r\nBcc: eve@example.net"}, "the subject of emails is"),
        ({"subject": "x" * 201}, "give one line of at most 200 characters"),
        ({"username": "help"}, "give username and password, or neither"),
        ({"password": PASSWORD}, "give username and password, or neither"),
        ({"username": "help", "password": "pässwörd-12"}, "the password of a mail server must be a text of ASCII"),
        ({"timeout": 0}, "the timeout of a transport is 0"),
    ],
)
def test_a_setting_that_cannot_be_used_is_refused_at_once(options: dict[str, object], said: str) -> None:
    settings: dict[str, object] = {"host": "smtp.example.org", "port": 587, "sender": SENDER, **options}
    with pytest.raises(UsageError) as caught:
        SmtpTransport(**settings)  # type: ignore[arg-type]
    assert said in str(caught.value)
    assert "pässwörd" not in str(caught.value)


def test_plain_connections_to_other_machines_are_a_choice() -> None:
    assert SmtpTransport("smtp.example.org", 25, sender=SENDER, tls="none", allow_plain=True).tls == "none"
    assert SmtpTransport("localhost", 25, sender=SENDER, tls="none").tls == "none"


def test_the_password_is_not_shown(tmp_path: Path) -> None:
    transport = SmtpTransport("smtp.example.org", sender=SENDER, username="help", password=PASSWORD)
    assert PASSWORD not in repr(transport)
