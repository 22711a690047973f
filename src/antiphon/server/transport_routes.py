"""Messages that arrive over HTTP, signed by the program at the other side of a transport.

Rule 1: the signature authenticates the request; no key is needed, and none is looked at.
Rule 2: a transport that does not exist, or takes no requests, is answered as one whose secret is another: by the same
        check, against a secret that nothing knows.
Rule 3: a repeated message is answered like the first one.
"""

from __future__ import annotations

import logging
import secrets

from starlette.responses import Response

from antiphon.core.text import describe
from antiphon.core.transport import InboundRefused, InboundTransports
from antiphon.server.app import RequestContext, read_raw_body
from antiphon.server.problems import Fault, problem_response
from antiphon.server.schemas import Received
from antiphon.transports.signed_messages import SIGNATURE_HEADER, SignedInbound

logger = logging.getLogger("antiphon.server")

NO_TRANSPORT = SignedInbound(secrets.token_hex(32))


async def receive_message(ctx: RequestContext) -> Received | Response:
    """Receive a message of a transport, signed with its secret."""
    core, name = ctx.hub.core, ctx.request.path_params["name"]
    transports: InboundTransports = core.transports
    body = await read_raw_body(ctx.request, ctx.app_state.limits)
    try:
        reader = transports.inbound(name) or NO_TRANSPORT
        message = reader.read_inbound(ctx.request.headers, body, core.clock.now())
    except InboundRefused as error:
        logger.info("a request to the transport %s is refused: %s", describe(name), error.reason)
        refusal = problem_response(error.status, Fault(error.reason, str(error)), path=ctx.request.url.path)
        if error.status == 401:
            refusal.headers["www-authenticate"] = SIGNATURE_HEADER
        return refusal
    envelope = await transports.accept(name, message)
    return Received(message.message_id, envelope.channel_id, envelope.envelope_id)
