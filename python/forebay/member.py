"""A consumer's part in a job beside its stream: signs of life, what it took, reports of lost streams, commits."""

import collections
import contextlib
import secrets
import threading
import time
import weakref

from .errors import BadInput, Cancelled, Error, FailedPrecondition, NotFound, Unavailable

# A lease that was renewed longer ago than this share of its length is not surely good.
_SURE = 0.75
# Signs of life per lease.
_BEATS = 8
# How long a report or a commit looks for somebody who leads.
_PATIENCE = 60.0
# What is remembered where nobody confirms it: acknowledgements on a stream that went on for this long have arrived.
_REMEMBERED = 1 << 16

# Commits of a consumer are numbered over all loaders of this process that read as it.
_calls: collections.Counter = collections.Counter()
_lock = threading.Lock()


def now() -> float:
    """Seconds that go on while the machine sleeps, where the system can tell."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


class Member:
    """One loader's membership. ``exact``: a batch is yielded only while its lease is surely good.

    All methods may be called from any thread; what is taken during a commit waits for it.
    """

    def __init__(self, client, settings: dict, ranked: bool):
        self._client = client
        self.job, self._consumer = settings["job"], settings["consumer"]
        visitation = settings.get("visitation") or "at_most_once"
        self.exact = visitation == "exactly_once"
        # Another loader under the same name is another trainer, which must not use what this one holds.
        self.session = secrets.randbits(52) if self.exact else None
        self.redelivers = visitation != "at_most_once"
        self.reports = ranked or visitation != "at_most_once"
        self._turn = threading.RLock()
        self._taken: collections.OrderedDict[tuple[int, int], None] = collections.OrderedDict()
        self._number = 0
        self._calling = False
        self._place: dict | None = None
        self._renewed = now()
        self._fenced: Error | None = None
        self._stop = threading.Event()
        self._keeper: threading.Thread | None = None

    def joined(self, place: dict, asked_at: float) -> None:
        """What the server says of the consumer's place when a stream is asked for."""
        if self._place is not None and place["incarnation"] != self._place["incarnation"] and self.exact:
            raise FailedPrecondition(
                f"job `{self.job}` goes on from a checkpoint without this consumer", "load the checkpoint here too"
            )
        if self._place is not None and _is_another(self._place, place):
            raise FailedPrecondition(
                f"job `{self.job}` is another one of the same name: the dispatcher has lost what it knew of this one",
                "look for the journal of its root, and restart the trainers together",
            )
        self._place, self._renewed = place, max(self._renewed, asked_at)
        if self.reports and self._keeper is None:
            period = max(place["lease_ms"] / 1000 / _BEATS, 0.05)
            self._keeper = threading.Thread(
                target=_keep, args=(weakref.ref(self), self._stop, period), name="forebay-lease", daemon=True
            )
            self._keeper.start()

    @property
    def place(self) -> dict | None:
        """Job, incarnation, consumer, pass, lease_ms; None before the first stream."""
        return self._place

    def took(self, number: int, batch: int) -> None:
        """The trainer has this batch behind it."""
        with self._turn:
            self._taken[(number, batch)] = None
            while not self.reports and len(self._taken) > _REMEMBERED:
                self._taken.popitem(last=False)

    def check(self, timeout: float | None) -> None:
        """Waits until the lease is surely good.

        Raises what the server said where it is over: what is at hand may be another's by now.
        """
        if not self.exact or self._place is None:
            return
        end = None if timeout is None else now() + timeout
        while self._fenced is None and not self.sure():
            if end is not None and now() >= end:
                raise Cancelled("the dispatcher did not renew this consumer's lease in time", "look at the server")
            self._stop.wait(0.02)
        if self._fenced is not None:
            raise self._fenced

    def sure(self) -> bool:
        """Whether the lease can't have run out yet."""
        return self._place is not None and now() < self._renewed + _SURE * self._place["lease_ms"] / 1000

    def report(self) -> None:
        """Says what was received before the stream broke; everything else goes to others. Must come before the next stream."""
        if not self.reports or self._place is None:
            return
        with self._turn:
            # Counts up over all loaders that ever read under this name.
            self._number = max(self._number + 1, time.time_ns() // 1000)
            body = {"number": self._number, "received": self._grouped(self._taken)}
            self._say("forebay.job.report", body)

    def commit(self) -> dict:
        """The token of a complete commit, of which every live consumer of the job made its part."""
        with self._turn:
            if self._place is None:
                raise FailedPrecondition("nothing was read yet", "commit after the first batch")
            if self._calling:
                # A call that was interrupted still stands with the others.
                self._call([])
            with _lock:
                _calls[(self.job, self._consumer, self.session)] += 1
            self._calling = True
            taken = list(self._taken)
            token = self._call(self._grouped(taken))
            for each in taken:
                self._taken.pop(each, None)
            return token

    def _call(self, taken: list[dict]) -> dict:
        call = _calls[(self.job, self._consumer, self.session)]
        while True:
            try:
                answer = self._say("forebay.job.commit", {"call": call, "taken": taken})[0]
            except Unavailable:
                raise
            except Error:
                # It was answered: the next call is another one.
                self._calling = False
                raise
            if answer["complete"]:
                self._calling = False
                return answer["token"]

    def leave(self) -> None:
        """Takes part no more: what it held and did not commit goes to others at once."""
        self.close()
        if self.redelivers and self._place is not None and self._fenced is None:
            # A server that is gone hears it from the lease.
            with contextlib.suppress(Error):
                self._client.action("forebay.job.leave", self._about())

    def close(self) -> None:
        """No further signs of life."""
        self._stop.set()

    def beat(self) -> None:
        """One sign of life, which also tells what was taken."""
        taken = list(self._taken)
        asked_at = now()
        try:
            self._client.action("forebay.job.ack", self._about() | {"taken": self._grouped(taken)})
        except (FailedPrecondition, NotFound) as error:
            # Others only matter where rows must not be seen twice.
            self._fenced = error
            return
        except BadInput:
            # It is too late for some of them, and will not get better.
            pass
        except Error:
            return
        self._renewed = max(self._renewed, asked_at)
        for each in taken:
            self._taken.pop(each, None)

    def _about(self) -> dict:
        about = {"job": self.job, "consumer": self._consumer, "incarnation": self._place["incarnation"]}
        return about | {"session": self.session} if self.session is not None else about

    def _say(self, action: str, body: dict) -> list[dict]:
        """Repeated until somebody leads: each of these calls may be made twice."""
        end = time.monotonic() + _PATIENCE
        while True:
            asked_at = now()
            try:
                answers = self._client.action(action, self._about() | body)
            except Unavailable:
                if time.monotonic() >= end:
                    raise
                time.sleep(0.2)
                continue
            except (FailedPrecondition, NotFound) as error:
                if "can't be committed" not in error.message:
                    self._fenced = error
                raise
            self._renewed = max(self._renewed, asked_at)
            return answers

    @staticmethod
    def _grouped(taken) -> list[dict]:
        passes: dict[int, list[int]] = {}
        for number, batch in taken:
            passes.setdefault(number, []).append(batch)
        return [{"pass": number, "batches": batches} for number, batches in passes.items()]


def _is_another(here: dict, there: dict) -> bool:
    # Incarnations count up, and each has one beginning.
    if there["incarnation"] != here["incarnation"]:
        return there["incarnation"] < here["incarnation"]
    return there.get("created_ms") != here.get("created_ms")


def _keep(of: weakref.ref, stop: threading.Event, period: float) -> None:
    while not stop.wait(period):
        member = of()
        if member is None:
            return
        with contextlib.suppress(Exception):
            member.beat()
        del member
