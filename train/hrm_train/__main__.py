"""torchrun --nproc-per-node N -m -- hrm_train ...: hrm-train on several GPUs or machines."""

from hrm_train.cli import main
from hrm_train.distributed import joined

if __name__ == "__main__":
    with joined():
        main()
