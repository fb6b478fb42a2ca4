"""Tells Slurm that a job has ended: `complete.py <libslurmfull.so> <number> <exit code>`."""

from __future__ import annotations

import ctypes
import sys

if __name__ == "__main__":
    library, *numbers = sys.argv[1:]
    slurm = ctypes.CDLL(library, ctypes.RTLD_GLOBAL)  # its plugins look for its symbols
    getattr(slurm, "slurm_init", id)(None)  # older versions need none
    sys.exit(slurm.slurm_complete_job(*map(ctypes.c_uint32, map(int, numbers))) != 0)
