"""Transient faults: a statement is sent again, until it is answered or a deadline is over.

Every statement here may run twice: a read changes nothing, a repeated version of a state replaces itself, and a lock
row that lands twice is one of the faults that the lock is made for. So nothing is assumed about a request whose answer
was lost: it is sent again, and what counts is decided by a later read.

Nobody waits for a server that never answered yet: its address may be wrong.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar
from weakref import WeakSet

from sqlalchemy import Engine
from tenacity import RetryCallState, Retrying, retry_if_exception_type, stop_after_delay, wait_random_exponential

from meltano_ch_state.errors import ServerBusyError, ServerUnreachableError

RETRY_SECONDS = 15.0
"""For so long a statement is sent again, in seconds: a server that is started anew is back by then."""
FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 1.0

logger = logging.getLogger(__name__)
_answered: WeakSet[Engine] = WeakSet()
T = TypeVar("T")


def retried(engine: Engine, send: Callable[[], T]) -> T:
    """Send a statement, and again while that fails in a way that may pass.

    Raises:
        ServerError: Whatever it failed with at last.
    """
    transient = (ServerBusyError, ServerUnreachableError) if engine in _answered else (ServerBusyError,)
    try:
        answer = _retrying(transient)(send)
    except (ServerBusyError, ServerUnreachableError):
        _answered.discard(engine)  # it is down: what follows, such as a release, need not wait for it once more
        raise
    _answered.add(engine)
    return answer


def _retrying(transient: tuple[type[Exception], ...]) -> Retrying:
    return Retrying(
        retry=retry_if_exception_type(transient),
        stop=stop_after_delay(RETRY_SECONDS),
        wait=wait_random_exponential(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS),
        before_sleep=_tell,
        reraise=True,
    )


def _tell(state: RetryCallState) -> None:
    if state.outcome and state.next_action:
        logger.info("Trying again in %.1f s: %s", state.next_action.sleep, state.outcome.exception())
