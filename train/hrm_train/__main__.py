"""torchrun --nproc-per-node N -m -- hrm_train ...: hrm-train on several GPUs or machines."""

import sys

from hrm_train.cli import main
from hrm_train.distributed import joined

if __name__ == "__main__":
    try:
        with joined():
            main()
    except ValueError as error:
        sys.exit(f"hrm-train: {error}.")
