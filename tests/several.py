"""Functions run in several connected processes (gloo), as a launcher would start them."""

from __future__ import annotations

import multiprocessing
import os
import socket
import traceback
from collections.abc import Callable
from typing import Any

_server = multiprocessing.get_context("forkserver")
_server.set_forkserver_preload(["torch", "transformers", "accelerate", "peft", "phloem.train", "tiny_models"])


class Died(Exception):
    """A process ended without a result."""


def several(size: int, work: Callable[..., Any], *arguments: Any, until: Callable[[], bool] | None = None) -> list[Any]:
    """What `work(*arguments)` returned in each process, in the order of their ranks.

    Raises:
        Died: a process raised or was killed; the others are ended, as a launcher does. All are killed (with signal 9)
            as soon as `until` is true.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    pipes = [_server.Pipe(duplex=False) for _ in range(size)]
    processes = [
        _server.Process(target=_run, args=(rank, size, port, pipes[rank][1], work, arguments)) for rank in range(size)
    ]
    for process in processes:
        process.start()
    for _, end in pipes:
        end.close()
    results: list[Any] = []
    try:
        while until is not None and not any(end.poll(0.0005) for end, _ in pipes):
            if until():
                raise Died("all were killed")
        for rank, (end, _) in enumerate(pipes):
            try:
                result, error = end.recv()
            except EOFError:
                raise Died(f"process {rank} was killed") from None
            if error:
                raise Died(f"process {rank}: {error}")
            results.append(result)
        return results
    finally:
        for process in processes if len(results) < size else ():
            process.kill()
        for process in processes:
            process.join()


def _run(rank: int, size: int, port: int, end: Any, work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size), "OMP_NUM_THREADS": "1"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "LOCAL_WORLD_SIZE": str(size)}
    import torch

    torch.set_num_threads(1)
    try:
        end.send((work(*arguments), None))
    except BaseException:
        end.send((None, traceback.format_exc()))
    end.close()
    os._exit(0)  # no destructors of process groups that others may have left
