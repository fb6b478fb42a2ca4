"""The Ray cluster of this process."""

from __future__ import annotations

import signal
import socket
import threading

import ray

from envs.errors import InputError, in_one_line

SIGNALS = (signal.SIGINT, signal.SIGTERM)
CONNECT_S = 10.0  # within which a Ray cluster must answer


def connect(address: str | None) -> None:
    """Connect to the Ray cluster at `address`, or start one on this machine; once for a process.

    Raises:
        InputError: there is none at the address.
    """
    if ray.is_initialized():
        return
    host, _, port = (address or "").removeprefix("ray://").rpartition(":")
    try:
        if port.isdigit():  # Ray itself would try for minutes
            socket.create_connection((host, int(port)), CONNECT_S).close()
        handled = {number: signal.getsignal(number) for number in SIGNALS}
        ray.init(
            address=address or "local",  # not one that runs here by chance
            include_dashboard=None if address else False,
            log_to_driver=False,
            logging_level="error",
        )
        if threading.current_thread() is threading.main_thread():
            for number, handler in handled.items():  # Ray's own prints a stack and exits with 1
                signal.signal(number, handler)
    except (OSError, ValueError, RuntimeError) as error:
        message = in_one_line(error)
        raise InputError(f"{address!r}: {message}", field="ray.address") from error
