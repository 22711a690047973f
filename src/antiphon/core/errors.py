"""Every error a caller can meet.

    AntiphonError
    ├── Denied              a draft was refused; nothing was recorded in the channel
    ├── WaitTimeout         what was waited for did not happen in time
    ├── SlowConsumer        a subscriber fell behind its own limit; resume from `.cursor`
    ├── UsageError          you called it wrongly      (BadName, BadUrl, UnknownParticipant, UnknownChannel,
    │                                                   UnknownApproval, RulesInvalid)
    ├── StoreError          the log could not be used  (Conflict, OutcomeUnknown, StoreUnavailable, StoreRefused,
    │                                                   StoreGone, TooLarge, IdReused, LogCorrupt)
    ├── ModelError          the model misbehaved       (ModelUnavailable, ModelRefused, ReplyMalformed)
    ├── EngineError         a turn could not be run    (TurnFailed)
    ├── TransportRefused    the other side of a transport refuses a reply for good
    └── TransportUnavailable  a reply could not be delivered now; it is tried again later

A message says what happened, with the values; the docstring says what to do about it.
"""

from __future__ import annotations

from antiphon.core.text import describe


class AntiphonError(Exception):
    """The root of every error this package raises on purpose."""

    def __reduce__(self) -> tuple[object, ...]:
        """Copy and pickle the error as it is, for constructors with any arguments."""
        return _rebuild_error, (type(self), self.args), self.__dict__


def _rebuild_error(kind: type[AntiphonError], args: tuple[object, ...]) -> AntiphonError:
    return kind.__new__(kind, *args)


class Denied(AntiphonError):
    """A draft was refused. `.reason` is a stable word to branch on; the channel's log is untouched."""

    def __init__(self, reason: str, channel_id: str = "", detail: str = "") -> None:
        where = f" in channel {describe(channel_id)}" if channel_id else ""
        super().__init__(f"{reason}{where}" + (f": {detail}" if detail else ""))
        self.reason, self.channel_id, self.detail = reason, channel_id, detail


class WaitTimeout(AntiphonError, TimeoutError):
    """What was waited for did not happen in time. Nothing was cancelled: wait again, or look at the log."""


class SlowConsumer(AntiphonError):
    """A subscriber fell further behind than it allowed itself. Subscribe again with `after=error.cursor`."""

    def __init__(self, channel_id: str, cursor: int, behind: int) -> None:
        super().__init__(
            f"subscriber of {describe(channel_id)} is {behind} envelopes behind; resume with after={cursor}"
        )
        self.channel_id, self.cursor, self.behind = channel_id, cursor, behind


class UsageError(AntiphonError):
    """The call itself is wrong. Change the call; repeating it will not help."""


class BadName(UsageError):
    """A participant or channel name does not have the allowed shape, or is taken."""


class BadUrl(UsageError):
    """A store URL is of no known kind."""


class UnknownParticipant(UsageError):
    """No participant of this name is registered. Register it first."""

    def __init__(self, name: str, advice: str = "") -> None:
        advice = advice or f"register it with hub.register({describe(name)}) first"
        super().__init__(f"no participant is called {describe(name)}; {advice}")
        self.name = name


class UnknownChannel(UsageError):
    """There is no channel of this id, or it is not visible to the one who asks."""

    def __init__(self, channel_id: object) -> None:
        advice = "; give its channel_id" if hasattr(type(channel_id), "channel_id") else ""
        super().__init__(f"no channel {describe(channel_id)}{advice}")
        self.channel_id = channel_id


class UnknownApproval(UsageError):
    """Nothing waits, or waited, for a person under this id. `hub.approvals()` lists what waits now."""

    def __init__(self, approval_id: object) -> None:
        super().__init__(f"nothing waits under {describe(approval_id)}; hub.approvals() lists what does")
        self.approval_id = approval_id


class RulesInvalid(UsageError):
    """The rules given for a channel cannot be used: an unknown adapter, knob, expectation or target."""


class StoreError(AntiphonError):
    """The log could not be read or written."""


class Conflict(StoreError):
    """Someone else appended to the channel first. Reload the state and decide again."""

    def __init__(self, channel_id: str, expected: int, head: int) -> None:
        super().__init__(f"channel {describe(channel_id)} is at {head}, not {expected}")
        self.channel_id, self.expected, self.head = channel_id, expected, head


class OutcomeUnknown(StoreError):
    """The store failed while committing: the batch may or may not be there. Repeat the same call; ids make it safe."""


class StoreUnavailable(StoreError):
    """The store cannot take or give anything now, and nothing was recorded. Try again later."""


class StoreRefused(StoreError):
    """The store cannot be used at all: foreign, newer, unreadable, or owned by another hub. Retrying does not help."""


class StoreGone(StoreError):
    """The file of the store was deleted, replaced or moved away while it was open. Put it back, and open the hub again.

    Whether the call that met this was recorded is unknown: it may be in the file that was moved away.
    """


class TooLarge(StoreError):
    """One envelope is larger than the store takes."""

    def __init__(self, channel_id: str, size: int, limit: int) -> None:
        super().__init__(f"an envelope for {describe(channel_id)} has {size} bytes; the limit is {limit}")
        self.channel_id, self.size, self.limit = channel_id, size, limit


class IdReused(StoreError):
    """An envelope id that is recorded already came again with other content."""

    def __init__(self, channel_id: str, envelope_id: str) -> None:
        super().__init__(
            f"envelope id {describe(envelope_id)} is taken in channel {describe(channel_id)} by other content"
        )
        self.channel_id, self.envelope_id = channel_id, envelope_id


class LogCorrupt(StoreError):
    """A record of one channel cannot be trusted. That channel is read-only from there; all others work."""

    def __init__(self, channel_id: str, sequence: int, why: str) -> None:
        super().__init__(f"channel {describe(channel_id)}, sequence {sequence}: {why}")
        self.channel_id, self.sequence, self.why = channel_id, sequence, why


class ModelError(AntiphonError):
    """A model could not be asked, or did not answer. The turn that asked ends as failed, with `model_error`."""


RETRIED_STATUSES = frozenset({408, 409, 425, 429})
"""The statuses from 400 to 499 after which the same request may succeed."""


class ModelUnavailable(ModelError):
    """A model could not be reached, is overloaded, or broke off. Asking again later may help."""

    def __init__(self, message: str, *, status: int | None = None, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        """The HTTP status, if there was an answer at all."""
        self.retry_after = retry_after
        """After how many seconds the provider wants to be asked again; None if it does not say."""

    @property
    def may_pass(self) -> bool:
        """Whether the same request may succeed later: not if the provider has said that the request is wrong."""
        return self.status is None or self.status in RETRIED_STATUSES or not 400 <= self.status < 500


class ModelRefused(ModelError):
    """A model's provider does not take the request: a wrong key, an unknown model, too long a prompt. Change it."""

    def __init__(self, message: str, *, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class ReplyMalformed(ModelError):
    """What a model answered cannot be used."""


class EngineError(AntiphonError):
    """A turn could not be run."""


class TurnFailed(EngineError):
    """A turn ended without an answer. `.reason` is a stable word; the channel's log says it too, and goes on.

    `.agent` is the agent of the team that was active when it failed.
    """

    def __init__(self, reason: str, channel_id: str = "", detail: str = "", *, agent: str = "") -> None:
        where = f" in channel {describe(channel_id)}" if channel_id else ""
        super().__init__(f"{reason}{where}" + (f": {detail}" if detail else ""))
        self.reason, self.channel_id, self.detail, self.agent = reason, channel_id, detail, agent


class TransportRefused(AntiphonError):
    """The other side of a transport refuses a reply for good. The reply is not sent again; the refusal is recorded."""


class TransportUnavailable(AntiphonError):
    """A reply could not be delivered now. The hub tries again later."""

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        if retry_after is not None and not isinstance(retry_after, int | float):
            raise UsageError(f"retry_after is {describe(retry_after)}; give a number of seconds")
        self.retry_after = retry_after
        """After how many seconds the other side wants to be asked again; None if it does not say."""
