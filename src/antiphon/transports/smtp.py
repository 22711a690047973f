"""The SMTP transport: a reply is an email, handed to a mail server.

Rule 1: a call of `send` makes one attempt, in a thread of its own. The `Message-ID` is made from the reply's id, so
        mail programs recognise an email that arrives twice.
Rule 2: a mail server that answers 5xx to the email itself refuses it for good. Everything else may pass: 4xx, errors of
        the network, and a login or an encryption that fails, which says nothing of this email.
Rule 3: a recipient is one address. What could add a header, or another recipient, is refused before anything is sent.
Rule 4: mail and password travel unencrypted only to this machine, or with `allow_plain=True`.
"""

from __future__ import annotations

import asyncio
import re
import smtplib
import socket
import ssl
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from email.message import EmailMessage
from email.policy import SMTP, SMTPUTF8
from email.utils import formatdate, getaddresses, parseaddr
from functools import partial
from typing import Literal, get_args

from antiphon._net import is_loopback
from antiphon.core.errors import TransportRefused, TransportUnavailable, UsageError
from antiphon.core.text import describe
from antiphon.core.transport import OutboundReply
from antiphon.hub.blocking_calls import run_blocking
from antiphon.hub.known_secrets import KNOWN_SECRETS, redact_text
from antiphon.transports.transport_settings import check_timeout

SmtpEncryption = Literal["starttls", "implicit", "none"]

EMAIL_ADDRESS = re.compile(
    r"(?!.*=\?)[^\s@<>()\[\]\\,;:\"\x00-\x1f\x7f]{1,64}@[^\s@<>()\[\]\\,;:\"\x00-\x1f\x7f]{1,255}"
)
"""One address, without a display name, quotes, comments or encoded words."""
MAX_SUBJECT_CHARS = 200
READY_REPLY = 220
SERVER_WIDE_REFUSALS = frozenset({530, 534, 535, 538})
"""That a login or an encryption is missing, weak or wrong."""
INTERNATIONAL_OPTIONS = ("SMTPUTF8", "BODY=8BITMIME")
MESSAGE_ID = re.compile(r"<[!-;=?-~]+@[!-;=?-~]+>")
MESSAGE_ID_PART = re.compile(r"[A-Za-z0-9.!#$%&'*+/=?^_`{|}~:-]+")


@dataclass(frozen=True, slots=True)
class SmtpTransport:
    """Sends replies as emails."""

    host: str
    port: int = 587
    _: KW_ONLY
    sender: str
    """The address of the sender, also with a display name: `Help desk <help@example.org>`."""
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: SmtpEncryption = "starttls"
    """`starttls` encrypts after connecting, `implicit` from the beginning (port 465), `none` not at all."""
    allow_plain: bool = False
    """Whether `tls="none"` may be used to another machine."""
    subject: str = "Re: your message"
    timeout: float = 30.0
    """In seconds, for each step of the exchange."""

    def __post_init__(self) -> None:
        _check_server(self.host, self.port)
        _check_sender(self.sender)
        if not isinstance(self.subject, str) or not self.subject.isprintable() or len(self.subject) > MAX_SUBJECT_CHARS:
            advice = f"give one line of at most {MAX_SUBJECT_CHARS} characters"
            raise UsageError(f"the subject of emails is {describe(self.subject)}; {advice}")
        if self.tls not in get_args(SmtpEncryption):
            raise UsageError(f"tls is {describe(self.tls)}; give one of {', '.join(get_args(SmtpEncryption))}")
        if self.tls == "none" and not self.allow_plain and not is_loopback(self.host):
            said = f"emails to {self.host!r} would travel unencrypted"
            raise UsageError(f"{said}; give tls='starttls' or tls='implicit', or allow_plain=True")
        _check_login(self.username, self.password)
        check_timeout(self.timeout)

    async def send(self, reply: OutboundReply) -> None:
        """Hand a reply to the mail server, or raise `TransportRefused` or `TransportUnavailable`."""
        if not EMAIL_ADDRESS.fullmatch(reply.recipient):
            raise TransportRefused(f"{describe(reply.recipient)} is no email address")
        opened: list[smtplib.SMTP] = []
        deliver = partial(self._deliver, self._email(reply), reply.recipient, opened)
        try:
            await run_blocking(deliver, "mail delivery")
        except asyncio.CancelledError:
            for connection in opened:
                _break_off(connection)  # a server that answers slowly would hold the thread for hours
            raise

    @property
    def _sender_address(self) -> str:
        return parseaddr(self.sender)[1]

    @property
    def _domain(self) -> str:
        """The domain of the sender in ASCII, which makes ids unique."""
        return self._sender_address.partition("@")[2].encode("idna").decode("ascii")

    def _email(self, reply: OutboundReply) -> bytes:
        policy = SMTPUTF8 if self._is_international(reply.recipient) else SMTP
        email = EmailMessage(policy=policy)
        email["From"], email["To"], email["Subject"] = self.sender, reply.recipient, self.subject
        email["Date"] = formatdate(usegmt=True)
        email["Message-ID"] = f"<{reply.reply_id}@{self._domain}>"
        answered = _message_id_of(reply.answers or "", self._domain)
        if answered:
            email["In-Reply-To"] = email["References"] = answered
        email["Auto-Submitted"] = "auto-replied"
        email.set_content(reply.text, charset="utf-8", cte="quoted-printable")
        return email.as_bytes(policy=policy.clone(max_line_length=None))  # a folded id would be encoded, and lost

    def _is_international(self, recipient: str) -> bool:
        """Whether the mail server must take addresses that are not ASCII."""
        return not (recipient + self._sender_address).isascii()

    def _deliver(self, email: bytes, recipient: str, opened: list[smtplib.SMTP]) -> None:
        try:
            connection = self._connect(opened)
        except (smtplib.SMTPException, OSError, UnicodeError) as error:
            raise self._unavailable("cannot be used", error) from error
        try:
            options = INTERNATIONAL_OPTIONS if self._is_international(recipient) else ()
            if options and not connection.has_extn("smtputf8"):
                raise TransportRefused(f"the mail server {self.host} takes no address such as {describe(recipient)}")
            connection.sendmail(self._sender_address, [recipient], email, options)
        except smtplib.SMTPRecipientsRefused as error:
            code, said = next(iter(error.recipients.values()))
            raise self._refusal(code, said) from error
        except smtplib.SMTPResponseException as error:
            raise self._refusal(error.smtp_code, error.smtp_error) from error
        except (smtplib.SMTPException, OSError) as error:
            raise self._unavailable("broke off", error) from error
        finally:
            _leave(connection)

    def _connect(self, opened: list[smtplib.SMTP]) -> smtplib.SMTP:
        """A connection, encrypted and logged in. It is among the opened ones before anything is waited for."""
        trust = None if self.tls == "none" else ssl.create_default_context()
        own, wait = self._domain, self.timeout  # smtplib would look up its own name
        if self.tls == "implicit":
            connection: smtplib.SMTP = smtplib.SMTP_SSL(local_hostname=own, timeout=wait, context=trust)
        else:
            connection = smtplib.SMTP(local_hostname=own, timeout=wait)
        # The name that the certificate must have. smtplib itself sets it only where it connects at once.
        connection._host = self.host  # type: ignore[attr-defined]  # it is not declared
        opened.append(connection)
        try:
            code, said = connection.connect(self.host, self.port)
            if code != READY_REPLY:
                raise smtplib.SMTPConnectError(code, said)
            if self.tls == "starttls":
                connection.starttls(context=trust)
            connection.ehlo_or_helo_if_needed()
            if self.username is not None and self.password is not None:
                connection.login(self.username, self.password)
        except BaseException:
            connection.close()
            raise
        return connection

    def _refusal(self, code: int, said: bytes | str) -> TransportRefused | TransportUnavailable:
        text = said.decode("utf-8", "replace") if isinstance(said, bytes) else said
        sentence = f"the mail server {self.host} answered {code}: {describe(redact_text(text))}"
        final = 500 <= code < 600 and code not in SERVER_WIDE_REFUSALS
        return TransportRefused(sentence) if final else TransportUnavailable(sentence)

    def _unavailable(self, what: str, error: Exception) -> TransportUnavailable:
        return TransportUnavailable(f"the mail server {self.host} {what}: {describe(redact_text(str(error)))}")


def _break_off(connection: smtplib.SMTP) -> None:
    """End a connection that another thread is waiting for."""
    if connection.sock is not None:
        with suppress(OSError):
            connection.sock.shutdown(socket.SHUT_RDWR)


def _leave(connection: smtplib.SMTP) -> None:
    """End a connection. The email is accepted or refused by now."""
    with suppress(smtplib.SMTPException, OSError):
        connection.quit()
    connection.close()


def _message_id_of(answered: str, domain: str) -> str:
    """The id of the answered message as mail programs write it; "" if it has no such form."""
    if MESSAGE_ID.fullmatch(answered):
        return answered
    return f"<{answered}@{domain}>" if MESSAGE_ID_PART.fullmatch(answered) else ""


def _check_server(host: object, port: object) -> None:
    if not isinstance(host, str) or not host or not host.isprintable() or set(host) & set(" /@"):
        raise UsageError(f"the mail server is {describe(host)}; give its name, such as 'smtp.example.org'")
    if isinstance(port, bool) or not isinstance(port, int) or not 0 < port < 65_536:
        raise UsageError(f"the port of the mail server is {describe(port)}; give one such as 587 or 465")


def _check_sender(sender: object) -> None:
    advice = "give an address such as 'help@example.org' or 'Help desk <help@example.org>'"
    address = ""
    if isinstance(sender, str) and sender.isprintable() and not sender.rstrip().endswith(";"):  # which ends a group
        found = getaddresses([sender])
        address = found[0][1] if len(found) == 1 else ""
    try:
        address.partition("@")[2].encode("idna")
    except UnicodeError as error:
        raise UsageError(f"the sender of emails is {describe(sender)}: {error}; {advice}") from error
    if not EMAIL_ADDRESS.fullmatch(address):
        raise UsageError(f"the sender of emails is {describe(sender)}; {advice}")


def _check_login(username: object, password: object) -> None:
    if (username is None) != (password is None):
        raise UsageError("a login at a mail server needs both; give username and password, or neither")
    for option, value in {"username": username, "password": password}.items():
        if value is not None and (not isinstance(value, str) or not value or not value.isascii()):
            raise UsageError(f"the {option} of a mail server must be a text of ASCII characters; give it as it is")
    if isinstance(password, str):
        KNOWN_SECRETS.know(password)
